"""SwitchSum: gradient sums inside the network (DESIGN: `switchsum/` is the public face)."""

__version__ = "0.1.0"

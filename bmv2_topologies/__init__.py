"""Emulated racks: hosts in network namespaces, shaped links, and a switch in the middle, from one YAML file."""

"""Readers of what torch.profiler leaves: Kineto's Chrome traces and execution traces (Chakra)."""

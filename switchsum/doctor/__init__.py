"""`switchsum doctor`: what stands in the way on this host, and what to do about it. Checks look; they change nothing."""

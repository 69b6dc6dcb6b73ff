"""Communication benchmarks as experiments: verified, interleaved, repeated, with raw samples kept (DESIGN section 8)."""

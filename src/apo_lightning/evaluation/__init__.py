"""Measures a policy: benchmarks, samples, pass@k with intervals, coverage of its reference."""

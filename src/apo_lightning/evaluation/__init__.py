"""Evaluation of a policy: benchmarks, samples, pass@k with intervals."""

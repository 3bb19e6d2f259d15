"""Statistics of the diagnostics, of comparisons between runs and of exact pass@k."""

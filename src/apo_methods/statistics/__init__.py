"""Statistics of the diagnostics."""

"""Statistics of exact pass@k and of entrances, and the verdicts of an edition."""

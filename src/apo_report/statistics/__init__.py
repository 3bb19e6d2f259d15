"""Statistics of training seeds, and of several comparisons at once."""

"""The laboratory: puzzles, base models, editions and their pages, coverage, and the theory of the methods."""

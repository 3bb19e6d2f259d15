"""Base models of the puzzles, trained on demonstrations."""

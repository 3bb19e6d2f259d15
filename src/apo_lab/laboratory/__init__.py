"""The laboratory: base models, every method on every puzzle over several seeds, one page."""

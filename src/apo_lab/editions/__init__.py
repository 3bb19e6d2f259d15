"""Editions of the laboratory: what is run and compared is written down, with a hash, before the first run."""

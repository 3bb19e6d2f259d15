"""The laboratory: trains base models, then every method on every puzzle with several seeds, and writes one page."""

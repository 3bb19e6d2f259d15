"""The language model: where it comes from, what one forward reads, how it scores tokens, its frozen reference."""

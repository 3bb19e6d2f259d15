"""Sampling completions: engines, weight sync and the collector."""

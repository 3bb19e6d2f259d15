"""Sampling completions: the engines, the weight sync and the collector."""

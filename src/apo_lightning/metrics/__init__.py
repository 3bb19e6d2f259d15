"""Metrics over problems: accuracy, confidence intervals and diversity, as pure functions."""

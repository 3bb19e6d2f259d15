"""Turns runs and evaluations into the paper's tables and figures, beside the published numbers."""

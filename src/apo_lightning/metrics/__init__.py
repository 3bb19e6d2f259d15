"""Metrics of a run: pure functions in `functional`, and torchmetrics classes that gather over ranks."""

"""What a run is measured by: pure functions in `functional`, and torchmetrics shells that gather over ranks."""

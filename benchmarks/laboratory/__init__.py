"""What the published tables of several editions say together: `python -m benchmarks.laboratory`."""

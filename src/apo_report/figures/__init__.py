"""Figures of a report: each a function from records to a `Figure`; `report_figures` makes all there is data for."""

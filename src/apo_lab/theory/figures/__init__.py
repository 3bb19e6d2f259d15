"""Figures of the theory in the style of the reports; no statement depends on them."""

from collections.abc import Callable, Mapping

from matplotlib.figure import Figure

from apo_lab.theory.figures.extinction import extinction_figure
from apo_lab.theory.figures.recovery import recovery_figure
from apo_lab.theory.figures.trust_region import trust_region_figure

FIGURES: Mapping[str, Callable[[], Figure]] = {
    "recovery": recovery_figure,
    "trust_region": trust_region_figure,
    "extinction": extinction_figure,
}
"""File stem → the function that draws the figure; the slowest is last."""

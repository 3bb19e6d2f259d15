"""One colour, one marker and one dash for each method, the same in every figure of a report."""

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from apo_report.names import METHOD_ROWS, METHODS, in_order

INK, QUIET, HAIRLINE = "#1f2328", "#6e7781", "#e6e8eb"
"""Colours of text, of explanations, and of grid lines."""
COLLAPSE = "#8a1c1c"
"""Colour of the arrow that marks a loss of diversity."""

COLUMN_INCHES, PAGE_INCHES = 3.3, 6.8
"""Widths of a column and of a page of a two-column paper: figures are made at the size they are printed at."""

Dash = tuple[float, ...]
"""Lengths of line and gap, in line widths; empty: a solid line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """How one method is drawn. No two methods share (marker, dash), so colour is never needed to tell them apart."""

    label: str
    """The method as it is printed."""
    color: str
    """`#rrggbb`"""
    marker: str
    dash: Dash
    rank: int = 0
    """Drawing order: a higher rank is drawn over a lower one; APO has the highest."""

    @property
    def line(self) -> dict[str, Any]:
        """Colour and dash, as keywords of `Axes.plot`."""
        return {"color": self.color, "linestyle": (0.0, self.dash) if self.dash else "-"}

    @property
    def marked_line(self) -> dict[str, Any]:
        """Colour, dash and marker, as keywords of `Axes.plot`."""
        return {**self.line, "marker": self.marker}


# The paper's six differ in lightness by 5 or more between any two (L*: Base 58, GRPO 47, NSR 53, GRPO-KL 71, error-only
# 64, APO 34), which is what a grey print leaves of a colour. Hues after Okabe & Ito, for colour-blind readers.
KNOWN: Mapping[str, Style] = {
    row["name"]: Style(
        label=row["name"], color=row["color"], marker=row["marker"], dash=tuple(map(float, row["dash"].split()))
    )
    for row in METHOD_ROWS
}
"""Style of each known method, by its printed name."""
UNNAMED = Style(label="other settings", color="#b9c0c8", marker="", dash=(), rank=-1)
"""How settings are drawn that are too many to be named."""
_SPARE_COLORS = ("#5b3a8c", "#00767a", "#8c6d1f", "#a8326e", "#4f6472", "#6b8f23", "#56a3d9", "#2b2b2b")
_SPARE_MARKERS = ("d", "p", "h", "X", "P", "<", ">", "v", "^", "D", "s", "o")
_LAST_MARKERS = ("*", "H", "8")
"""Taken where the pairs of the others are used up."""
_DASHES = ((4.0, 1.5), (1.0, 1.3), (5.0, 1.5, 1.0, 1.5), (8.0, 2.0), (3.0, 1.0, 1.0, 1.0, 1.0, 1.0))


def styles_of(methods: Iterable[str]) -> dict[str, Style]:
    """By printed method, in the order of the tables: its own style, or for an unknown method the next free one by name.

    Call it once a report, with every method that occurs: a method then has one style in all figures. With more unknown
    methods than free pairs of marker and dash, styles repeat.
    """
    ordered = in_order(methods, METHODS.values())
    used = {(style.marker, style.dash) for style in KNOWN.values()}
    # 5 dashes and 12 markers have no common factor: counting through both meets every pair once.
    pairs = [(_SPARE_MARKERS[i % 12], _DASHES[i % 5]) for i in range(60)]
    pairs += itertools.product(_LAST_MARKERS, _DASHES)
    free = itertools.cycle([pair for pair in pairs if pair not in used])
    colors, styles = itertools.cycle(_SPARE_COLORS), dict(KNOWN)
    for name in (name for name in ordered if name not in KNOWN):
        marker, dash = next(free)
        styles[name] = Style(label=name, color=next(colors), marker=marker, dash=dash)
    ranks = {name: rank for rank, name in enumerate(sorted(ordered, key=lambda name: name == METHODS["apo"]))}
    return {name: replace(styles[name], rank=ranks[name]) for name in ordered}

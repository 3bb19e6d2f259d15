"""One colour, one marker and one dash for each method, the same in every figure of a report."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from apo_lab.reporting.names import METHODS, in_method_order

INK, QUIET, HAIRLINE = "#1f2328", "#6e7781", "#e6e8eb"
"""Colours of text, of explanations, and of grid lines."""
COLLAPSE = "#8a1c1c"
"""Colour of the arrow that marks a loss of diversity."""

COLUMN_INCHES, PAGE_INCHES = 3.3, 6.8
"""Widths of a column and of a page of a two-column paper: figures are made at the size they are printed at."""

RC: Mapping[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 7.5,
    "axes.titlesize": 8,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.labelsize": 7.5,
    "axes.labelcolor": INK,
    "axes.edgecolor": QUIET,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "axes.formatter.useoffset": False,
    "grid.color": HAIRLINE,
    "grid.linewidth": 0.6,
    "text.color": INK,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "xtick.color": QUIET,
    "ytick.color": QUIET,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.major.size": 2.5,
    "ytick.major.size": 0,
    "xtick.major.width": 0.6,
    "lines.linewidth": 1.5,
    "lines.markersize": 4.5,
    "lines.solid_capstyle": "round",
    "legend.fontsize": 7,
    "legend.frameon": False,
    "legend.handlelength": 3.2,
    "figure.constrained_layout.use": True,
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
    "svg.fonttype": "none",
    "svg.hashsalt": "apo-lightning",
    # Type 42: conferences refuse matplotlib's default, Type 3.
    "pdf.fonttype": 42,
}
"""Settings of matplotlib under which every figure is drawn *and* saved: ticks are made as late as that."""

Dash = tuple[float, ...]
SOLID: Dash = ()
DASHES: tuple[Dash, ...] = (
    SOLID,
    (4.0, 1.5),
    (1.0, 1.3),
    (5.0, 1.5, 1.0, 1.5),
    (8.0, 2.0),
    (3.0, 1.0, 1.0, 1.0, 1.0, 1.0),
)
"""Lengths of line and gap, in line widths."""


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
    def linestyle(self) -> tuple[float, Dash] | Literal["-"]:
        """The dash in the form that matplotlib takes."""
        return (0.0, self.dash) if self.dash else "-"

    @property
    def line(self) -> dict[str, Any]:
        """Colour and dash, as keywords of `Axes.plot`."""
        return {"color": self.color, "linestyle": self.linestyle}

    @property
    def marked_line(self) -> dict[str, Any]:
        """Colour, dash and marker, as keywords of `Axes.plot`."""
        return {**self.line, "marker": self.marker}


# The paper's six differ in lightness by 5 or more between any two (L*: Base 58, GRPO 47, NSR 53, GRPO-KL 71, error-only
# 64, APO 34), which is what a grey print leaves of a colour. Hues after Okabe & Ito, for colour-blind readers.
_OWN = {
    "base": ("#8c8c8c", "X", (1.0, 1.3)),
    "grpo": ("#c8401f", "s", (4.0, 1.5)),
    "nsr": ("#0a8f6a", "D", (3.0, 1.0, 1.0, 1.0, 1.0, 1.0)),
    "psr": ("#7a9a01", "P", (4.0, 1.5)),
    "w_reinforce": ("#3f7f2f", "h", (5.0, 1.5, 1.0, 1.5)),
    "rloo": ("#a0522d", "<", (8.0, 2.0)),
    "dr_grpo": ("#b5562a", ">", (3.0, 1.0, 1.0, 1.0, 1.0, 1.0)),
    "pass_at_k": ("#7b5ea7", "p", (4.0, 1.5)),
    "grpo_kl": ("#e69f00", "^", (5.0, 1.5, 1.0, 1.5)),
    "grpo_kl_error_only": ("#d083b4", "v", (8.0, 2.0)),
    "apo_naive": ("#56b4e9", "h", (1.0, 1.3)),
    "apo_pass_at_k": ("#3f7fbf", "d", (8.0, 2.0)),
    "push_only": ("#5b3a8c", "d", (4.0, 1.5)),
    "clip_higher": ("#8c6d1f", "<", (4.0, 1.5)),
    "entropy_bonus": ("#a8326e", ">", (1.0, 1.3)),
    "apo_k2": ("#4f6472", "P", (8.0, 2.0)),
    "apo_k4": ("#00767a", "p", (5.0, 1.5, 1.0, 1.5)),
    "apo_k12": ("#6b8f23", "X", (4.0, 1.5)),
    "grpo_topk_forward_kl": ("#b8860b", "v", (3.0, 1.0, 1.0, 1.0, 1.0, 1.0)),
    "apo_gate_only": ("#7f7f2a", "h", (8.0, 2.0)),
    "apo_ungated": ("#356b8a", "^", (1.0, 1.3)),
    "apo_log_mass": ("#6a5acd", ">", (5.0, 1.5, 1.0, 1.5)),
    "apo_cross_entropy": ("#a0396b", "D", (5.0, 1.5, 1.0, 1.5)),
    "apo_random_anchors": ("#8a6f5a", "P", (1.0, 1.3)),
    "apo_always": ("#2a8f9f", "s", (8.0, 2.0)),
    "apo": ("#0b4f9e", "o", SOLID),
}
_SPARE_COLORS = ("#5b3a8c", "#00767a", "#8c6d1f", "#a8326e", "#4f6472", "#6b8f23")
_SPARE_MARKERS = ("d", "p", "h", "X", "P", "<", ">", "v", "^", "D", "s", "o")

KNOWN: Mapping[str, Style] = {
    METHODS[algo]: Style(label=METHODS[algo], color=color, marker=marker, dash=dash)
    for algo, (color, marker, dash) in _OWN.items()
}
"""Style of each known method, by its printed name."""


def styles_of(methods: Iterable[str]) -> dict[str, Style]:
    """By printed method, in the order of the tables: its own style, or for an unknown method the next free one by name.

    Call it once a report, with every method that occurs: a method then has one style in all figures. From the 49th
    unknown method on, styles repeat.

    Example:
        >>> styles = styles_of(["my_loss", "APO", "Base"])
        >>> list(styles), styles["APO"].color, styles["my_loss"].marker
        (['Base', 'APO', 'my_loss'], '#0b4f9e', 'p')
    """
    ordered = in_method_order(methods)
    used = {(style.marker, style.dash) for style in KNOWN.values()}
    # 5 dashes and 12 markers have no common factor: counting through both meets every pair once.
    dashes, markers = DASHES[1:], _SPARE_MARKERS
    pairs = [(markers[i % len(markers)], dashes[i % len(dashes)]) for i in range(len(markers) * len(dashes))]
    free = [pair for pair in pairs if pair not in used]
    styles = dict(KNOWN)
    for index, name in enumerate(sorted(set(ordered) - KNOWN.keys())):
        marker, dash = free[index % len(free)]
        styles[name] = Style(label=name, color=_SPARE_COLORS[index % len(_SPARE_COLORS)], marker=marker, dash=dash)
    ranks = {name: rank for rank, name in enumerate(sorted(ordered, key=lambda name: name == METHODS["apo"]))}
    return {name: replace(styles[name], rank=ranks[name]) for name in ordered}

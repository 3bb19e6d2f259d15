"""The paper's own numbers, transcribed cell by cell from its tables into `paper/*.csv`."""

import csv
import functools
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from importlib import resources
from typing import Literal

from apo_lab.reporting.names import method_name, model_name

Name = Literal["main_results", "sensitivity", "distribution", "coverage", "hyperparameters"]

AVERAGE = "average"
"""Stands in place of a benchmark for the mean over the five."""
NUM_PROBLEMS: Mapping[str, int] = {
    "aime2024": 30,
    "aime2025": 30,
    "amc2023": 40,
    "math500": 500,
    "minerva_math": 272,
}
"""P, the number of problems, of each benchmark."""
NUM_SAMPLES: Mapping[str, int] = {
    "aime2024": 256,
    "aime2025": 256,
    "amc2023": 256,
    "math500": 16,
    "minerva_math": 16,
}
"""K, the paper's samples a problem, of each benchmark, for Pass@1 and Pass@K alike."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedCell:
    """One number as the paper prints it. Stems as in our configs; accuracies and recalls in per cent."""

    table: str
    model: str
    method: str
    setting: str
    """`key=value` where it is not the default: `algo.loss.pull_coef=0.01`."""
    benchmark: str
    metric: str
    """`pass@1`, `pass@256`, `recall@8`, a config key; `pass@K` in the average over benchmarks of different K."""
    text: str
    """The number as the paper prints it."""
    mark: str
    """The fault of the cell, in the words of `published_check.KINDS`, space between; empty: nothing known."""

    @property
    def value(self) -> float:
        """The number.

        Raises:
            ValueError: a hyper-parameter that is no number.
        """
        return float(self.text)

    @property
    def exact(self) -> Fraction:
        """The number, as printed and without binary rounding."""
        return Fraction(self.text)

    @property
    def half_unit(self) -> Fraction:
        """Half of the last printed digit: how far the number before rounding can lie from it.

        Example:
            >>> published("coverage")[0].text, published("coverage")[0].half_unit
            ('83.84', Fraction(1, 200))
        """
        return Fraction(1, 2 * 10 ** len(self.text.partition(".")[2]))


@functools.cache
def published(table: Name) -> tuple[PublishedCell, ...]:
    """The cells of one of the paper's tables, in its order.

    Source: the paper's tables of main results, hyper-parameter sensitivity, distributional health, oracle coverage
        and hyper-parameters.

    Example:
        >>> published("coverage")[0].text, published("coverage")[0].metric
        ('83.84', 'recall@1')
    """
    path = resources.files("apo_lab.reporting") / "paper" / f"{table}.csv"
    rows = csv.DictReader(path.read_text(encoding="utf-8").splitlines())
    return tuple(
        PublishedCell(**{"text" if key == "value" else key: text for key, text in row.items()}) for row in rows
    )


def published_cell(
    table: Name, *, model: str, method: str, benchmark: str, metric: str, setting: str = ""
) -> PublishedCell | None:
    """The cell with these printed names; None where the paper has none.

    Args:
        table: which of the paper's tables.
        model: as tables print it, `Qwen2.5-7B`.
        method: as tables print it, `APO`.
        benchmark: a config stem, or `average`.
        metric: such as `pass@1`; a `pass@K` of any K but the paper's is not found.
        setting: as in `PublishedCell`.

    Example:
        >>> published_cell("main_results", model="Qwen2.5-7B", method="APO", benchmark="math500", metric="pass@16").text
        '90.00'
    """
    wanted = (model, method, benchmark, metric, setting)
    for cell in published(table):
        if (model_name(cell.model), method_name(cell.method), cell.benchmark, cell.metric, cell.setting) == wanted:
            return cell
    return None

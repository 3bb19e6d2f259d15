"""The paper's own numbers, transcribed cell by cell from its tables into `paper/*.csv`."""

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from apo_lightning.evaluation.records import Estimate
from apo_report.names import METHODS, MODELS, data_rows
from apo_report.records import Measurement, bare

Name = Literal["main_results", "sensitivity", "distribution", "coverage", "hyperparameters"]

AVERAGE = "average"
"""Stands in place of a benchmark for the mean over the five."""
NUM_SAMPLES: Mapping[str, int] = {"aime2024": 256, "aime2025": 256, "amc2023": 256, "math500": 16, "minerva_math": 16}
"""K, the paper's samples a problem, of each benchmark, for Pass@1 and Pass@K alike."""
FAULTS: Mapping[str, str] = {
    "average": "is not the mean of its row's cells",
    "count": "is no share of the problems and samples there are",
    "cut": "is such a share only if its digits were cut off, not rounded",
    "repeats": "repeats the K = 16 value under K = 32",
}
"""What is wrong with a marked cell; the tests recompute each mark in exact fractions."""


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
    """Keys of `FAULTS`, separated by spaces; empty where no fault is known."""

    @property
    def value(self) -> float:
        """The number; ValueError where a hyper-parameter is none."""
        return float(self.text)


@functools.cache
def published(table: Name) -> tuple[PublishedCell, ...]:
    """The cells of one of the paper's tables, in its order.

    Source: the paper's tables of main results, hyper-parameter sensitivity, distributional health, oracle coverage
        and hyper-parameters.
    """
    rows = data_rows(f"paper/{table}.csv")
    return tuple(PublishedCell(text=row.pop("value"), **row) for row in rows)


def published_cell(
    table: Name, *, model: str, method: str, benchmark: str, metric: str, setting: str = ""
) -> PublishedCell | None:
    """The cell of a printed model and method; None where the paper has none. Other arguments as in `PublishedCell`."""
    wanted = (model, method, benchmark, metric, setting)
    names = ((MODELS[c.model], METHODS[c.method], c.benchmark, c.metric, c.setting) for c in published(table))
    return next((cell for cell, name in zip(published(table), names, strict=True) if name == wanted), None)


def as_measurements(cells: Iterable[PublishedCell]) -> list[Measurement]:
    """The published accuracies as figures take measurements: one a model, method, setting and benchmark, no intervals.

    The printed averages are left out: a figure takes the mean over the benchmarks that it shows.
    """
    found: dict[tuple[str, str, str, str], dict[str, Estimate]] = {}
    for cell in cells:
        if cell.benchmark in NUM_SAMPLES and cell.metric.startswith("pass@"):
            key = (cell.model, cell.method, cell.setting, cell.benchmark)
            found.setdefault(key, {})[cell.metric] = bare(cell.value / 100)
    return [
        Measurement(
            model=MODELS[model],
            method=METHODS[method],
            settings=dict([setting.split("=", 1)]) if setting else {},
            benchmark=benchmark,
            num_samples=NUM_SAMPLES[benchmark],
            metrics=metrics,
        )
        for (model, method, setting, benchmark), metrics in found.items()
    ]

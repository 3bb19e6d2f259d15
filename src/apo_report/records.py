"""The records of a report: runs and evaluations as found on disk, measurements, and tables before rendering.

folders → RunCard, Evaluations → Measurement → Table → Markdown, CSV, HTML
"""

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

import pandas as pd

from apo_lightning.common.identity import Identity
from apo_lightning.evaluation.records import Estimate, EvaluationResult, ProblemCount
from apo_report.coverage import CoverageResult
from apo_report.names import BASE, METHODS, MODELS, variant_name

Result = TypeVar("Result", EvaluationResult, CoverageResult)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCard:
    """One training run's folder."""

    folder: Path
    algo: str
    """Stem of its `algo=` config: `apo`."""
    model: str
    """`model.name` of its config: `qwen_math7b`."""
    config: Mapping[str, str] = field(default_factory=dict)
    """The whole composed config, flat: dotted key → value as text; and the option of each config group."""
    derived: frozenset[str] = frozenset()
    """The keys whose values are those of other keys."""
    identity: Identity = field(default_factory=dict)
    """identity.json: what the run read besides its settings."""
    metrics: pd.DataFrame = field(default_factory=pd.DataFrame, compare=False)
    """metrics.csv, a row a step, a column a key; NaN where a key was not logged or its value was not finite."""
    summary: Mapping[str, Any] = field(default_factory=dict)
    """summary.json; empty where a run did not get so far."""

    @property
    def label(self) -> str:
        """The method's name in tables and figures: `GRPO-KL`."""
        return METHODS[self.algo]

    @property
    def seed(self) -> str:
        """The run's seed; runs that differ in it alone are averaged."""
        return self.config.get("seed", "")


@dataclass(frozen=True, kw_only=True)
class ResultFile(Generic[Result]):
    """A file that measures one policy, and the training run it came from where that run is among those read."""

    path: Path
    result: Result
    run: RunCard | None = None

    @property
    def method(self) -> str:
        """The printed name of the method; `Base` for a model as it was downloaded."""
        return METHODS[self.result.model.algo] if self.result.model.algo else BASE

    @property
    def model(self) -> str:
        """The model's name in tables: `Qwen2.5-Math-7B`."""
        return MODELS[self.result.model.name]


Evaluated = ResultFile[EvaluationResult]
"""One `results.json`."""
Covered = ResultFile[CoverageResult]
"""One `coverage.json`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluations:
    """All evaluations found, in the order of their paths."""

    results: tuple[Evaluated, ...] = ()
    coverage: tuple[Covered, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One policy on one set of problems: an evaluation, or what a training run's summary says of its held-out set."""

    model: str
    method: str
    """Printed names: `Qwen2.5-Math-7B`, `GRPO-KL`; `Base` for the untrained policy."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Settings in which the run differs from others of its method: axis key → value, in the order of the axes."""
    seed: str = ""
    weights: str = ""
    """The seed of the training run, and SHA-256 or another identity of the policy; empty where they are not known."""
    which: str = ""
    """Tells its policy from others of this name that are not training seeds of one method: `weights 3f9a1c2b`."""
    sampling: Mapping[str, str] = field(default_factory=dict)
    """Printed name → value of every setting that may decide a number, except n and the sampling seed."""
    apart: Mapping[str, str] = field(default_factory=dict)
    """The entries of `sampling` that other measurements of its model and benchmark do not share; they are named."""
    benchmark: str
    """Config stem: `aime2024`."""
    num_samples: int
    """n completions a problem."""
    metrics: Mapping[str, Estimate]
    """The metrics of `EvaluationResult`; `gain` [fraction] is pass@1 minus the untrained policy's."""
    pass_at_k: tuple[Estimate, ...] = ()
    """Entry k − 1 is pass@k."""
    problems: tuple[ProblemCount, ...] = ()
    by_problem: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """Each problem's counts, and its value of other metrics where known; empty for a mean over seeds."""
    held_out: bool = False
    """True: of a training run's own held-out problems, not from an evaluation."""
    exact: bool = False
    """True: from all completions of a run's held-out problems, without samples; metrics are pass@1 and pass@64."""
    seeds: tuple["Measurement", ...] = ()
    """The single-seed measurements behind a mean over training seeds, by seed; empty for a single policy."""

    @property
    def policies(self) -> tuple["Measurement", ...]:
        """The measurements of single seeds: `seeds`, or this one alone."""
        return self.seeds or (self,)

    @property
    def block(self) -> str:
        """Model, and the settings of `apart`: numbers of one block are comparable. `tiny, temperature = 0.6`."""
        return ", ".join([self.model, *(f"{name} = {value}" for name, value in self.apart.items())])

    @property
    def name(self) -> str:
        """The name of a row, line or point: the method, where it departs from its defaults, which weights."""
        return variant_name(self.method, self.settings, self.which)


def bare(value: float) -> Estimate:
    """A number without an interval."""
    return Estimate(value=value, low=math.nan, high=math.nan)


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table: of texts, or of numbers, which are set to the right."""

    title: str
    is_number: bool = True


def left(*titles: str) -> tuple[Column, ...]:
    """Columns of text."""
    return tuple(Column(title, is_number=False) for title in titles)


def right(*titles: str, group: str = "") -> tuple[Column, ...]:
    """Columns of numbers; the group stands before each title: `AIME 24 Pass@1`."""
    return tuple(Column(f"{group} {title}".strip()) for title in titles)


@dataclass(frozen=True, slots=True)
class Cell:
    """The content of one place of a table: a text, and the number behind it in the printed unit if it is one."""

    text: str
    value: float | None = None
    interval: tuple[float, float] | None = None
    interval_text: str = ""
    """The 95 % interval in the text's unit, and as it is printed: `[41.2, 45.0]`."""
    bold: bool = False
    """True for the best of its model's rows."""
    marked: bool = False
    """True for a cell with a fault or a peculiarity that the table's notes explain."""

    @property
    def mark(self) -> str:
        """The sign behind the text of a marked cell."""
        return "†" if self.marked else ""


@dataclass(frozen=True, slots=True)
class TableRow:
    """One line of a table, under the heading of its section."""

    cells: tuple[Cell, ...]
    section: str = ""


def row_of(*cells: Cell | str, section: str = "") -> TableRow:
    """A row; a text stands for a cell without a number."""
    return TableRow(tuple(Cell(cell) if isinstance(cell, str) else cell for cell in cells), section)


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table, not yet written in any language."""

    name: str
    """Stem of its files: `main_results`."""
    title: str
    columns: tuple[Column, ...]
    rows: tuple[TableRow, ...]
    notes: tuple[str, ...] = ()
    """Sentences below it; one that begins with `†:` explains the mark."""

    @property
    def sections(self) -> list[tuple[str, list[TableRow]]]:
        """Neighbouring rows of one section, under its heading."""
        return [(name, list(rows)) for name, rows in itertools.groupby(self.rows, key=lambda row: row.section)]

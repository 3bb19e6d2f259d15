"""Reads the folders that `apo lab` writes: `<puzzle>/<method>/seed_<n>/exact/…`."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
import yaml
from jaxtyping import Float
from torch import Tensor

from apo_lab.reporting.names import METHODS, in_order
from apo_lab.statistics.exact import AnswerScores, exact_pass_at_k
from apo_lightning.errors import ConfigError

REVIVAL = "revival_"
"""Before the method's name: a run that began with a collapsed policy."""
BASELINES = "baselines_"
"""Before the method's name: no run, but what was measured on its last policy without training."""
SWEEP = "sweep_"
"""Before a name: APO with one coefficient changed, which no table of methods shows."""


@dataclass(frozen=True)
class LabRun:
    """One finished run of the laboratory."""

    puzzle: str
    method: str
    seed: int
    folder: Path
    problems: tuple[str, ...]
    """The held-out problems, the same for all runs of a puzzle."""
    answers: AnswerScores
    """Their listed answers; log-probs are those of no policy."""
    points: tuple[dict[str, float | int], ...]
    """The evaluation points of `exact/metrics.jsonl`, in order of steps; the first is the base model's."""

    @property
    def steps(self) -> list[int]:
        """The step of each evaluation point."""
        return [int(point["step"]) for point in self.points]

    def curve(self, metric: str) -> list[float]:
        """One metric, a value for each evaluation point."""
        return [point[metric] for point in self.points]

    def scores(self, point: int) -> AnswerScores:
        """All answers' log-probs at an evaluation point, −1 being the last."""
        return self.scored(self.folder / "exact" / f"step_{self.steps[point]:06d}.npz")

    def scored(self, path: Path) -> AnswerScores:
        """All answers with the log-probs of a file."""
        return replace(self.answers, logprobs=torch.from_numpy(np.load(path)["logprobs"]).double())

    @cached_property
    def last(self) -> AnswerScores:
        """The answers at the last evaluation point."""
        return self.scores(-1)

    @cached_property
    def loss(self) -> dict[str, Any]:
        """`algo.loss` of the run's configuration."""
        return yaml.safe_load((self.folder / ".hydra" / "config.yaml").read_text())["algo"]["loss"]

    @cached_property
    def metrics(self) -> pd.DataFrame:
        """`metrics.csv`."""
        return pd.read_csv(self.folder / "metrics.csv")


Methods = Mapping[str, Sequence[LabRun]]
"""The runs of one puzzle, by method."""


def read_laboratory(folder: Path) -> list[LabRun]:
    """All finished runs, by puzzle, method and seed.

    Raises:
        ConfigError: there is none.
    """
    listed: dict[str, tuple[tuple[str, ...], AnswerScores]] = {}
    runs = []
    for path in sorted(folder.glob("*/*/seed_*/finished.json")):
        puzzle, method, name = path.parent.parts[-3:]
        if method.startswith(BASELINES):
            continue
        exact = path.parent / "exact"
        if puzzle not in listed:
            listed[puzzle] = _listed_answers(exact / "answers.json")
        points = tuple(json.loads(line) for line in (exact / "metrics.jsonl").read_text().splitlines())
        runs.append(LabRun(puzzle, method, int(name.removeprefix("seed_")), path.parent, *listed[puzzle], points))
    if not runs:
        raise ConfigError(f"{folder} has no finished run: `apo lab` makes them")
    return runs


def by_puzzle(runs: Sequence[LabRun], prefix: str = "") -> dict[str, dict[str, list[LabRun]]]:
    """Puzzle → method → its runs, locks first and methods in the order of tables, seeds ascending.

    Of runs that began with the base model, or with `REVIVAL` of those that began with a collapsed policy.
    """
    methods = in_order((run.method.removeprefix(prefix) for run in runs), METHODS)
    puzzles = in_order((run.puzzle for run in runs), ["locks"])
    found: dict[str, dict[str, list[LabRun]]] = {puzzle: {} for puzzle in puzzles}
    for run in sorted(runs, key=lambda run: (methods.index(run.method.removeprefix(prefix)), run.seed)):
        if next((known for known in (REVIVAL, SWEEP) if run.method.startswith(known)), "") == prefix:
            found[run.puzzle].setdefault(run.method.removeprefix(prefix), []).append(run)
    return {puzzle: of_method for puzzle, of_method in found.items() if of_method}


def base_point(methods: Methods) -> Mapping[str, float]:
    """The base model's evaluation point, the same for all runs of a puzzle."""
    return next(iter(methods.values()))[0].points[0]


def pass_table(runs: Sequence[LabRun], k: int, point: int = -1) -> Float[Tensor, "seeds problems"]:
    """Exact pass@k of each problem at an evaluation point, −1 being the last."""
    scores = [run.last if point == -1 else run.scores(point) for run in runs]
    return torch.stack([exact_pass_at_k(each.success, k) for each in scores])


def _listed_answers(path: Path) -> tuple[tuple[str, ...], AnswerScores]:
    """The problems of a puzzle, and their listed answers."""
    content = json.loads(path.read_text())
    rows = content["problems"]
    flat = [(place, strategy, is_valid) for place, row in enumerate(rows) for _, strategy, is_valid in row["answers"]]
    strategies = [name for name in content["strategies"] if any(name == strategy for _, strategy, _ in flat)]
    answers = AnswerScores(
        problem=torch.tensor([place for place, _, _ in flat]),
        strategy=torch.tensor([strategies.index(strategy) for _, strategy, _ in flat]),
        is_valid=torch.tensor([is_valid for _, _, is_valid in flat]),
        logprobs=torch.full((len(flat),), torch.nan, dtype=torch.float64),
        num_problems=len(rows),
        num_strategies=len(strategies),
    )
    return tuple(row["problem"] for row in rows), answers

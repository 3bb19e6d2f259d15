"""Reads the folders that `apo lab` writes: `<puzzle>/<method>/seed_<n>/exact/…`."""

import csv
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from jaxtyping import Bool, Float, Int
from torch import Tensor

from apo_lab.statistics.exact import AnswerScores, exact_pass_at_k
from apo_lightning.errors import ConfigError


@dataclass(frozen=True)
class Listing:
    """The listed answers of a puzzle's held-out problems, the same for all its runs."""

    problems: tuple[str, ...]
    strategies: tuple[str, ...]
    """Strategies that occur, as the puzzle orders them."""
    problem: Int[Tensor, "answers"]
    strategy: Int[Tensor, "answers"]
    is_valid: Bool[Tensor, "answers"]

    def scores(self, logprobs: Float[Tensor, "answers"]) -> AnswerScores:
        """These answers with their log-probs under a policy."""
        return AnswerScores(
            problem=self.problem,
            strategy=self.strategy,
            is_valid=self.is_valid,
            logprobs=logprobs.double(),
            num_problems=len(self.problems),
            num_strategies=len(self.strategies),
        )


@dataclass(frozen=True)
class LabRun:
    """One finished run of the laboratory."""

    puzzle: str
    method: str
    seed: int
    folder: Path
    listing: Listing
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
        path = self.folder / "exact" / f"step_{self.steps[point]:06d}.npz"
        return self.listing.scores(torch.from_numpy(np.load(path)["logprobs"]))

    @cached_property
    def last(self) -> AnswerScores:
        """The answers at the last evaluation point."""
        return self.scores(-1)

    def pass_at(self, k: int, point: int = -1) -> Float[Tensor, "problems"]:
        """Exact pass@k of each problem."""
        scores = self.last if point == -1 else self.scores(point)
        return exact_pass_at_k(scores.success, k)

    @cached_property
    def loss(self) -> dict[str, Any]:
        """`algo.loss` of the run's configuration."""
        return yaml.safe_load((self.folder / ".hydra" / "config.yaml").read_text())["algo"]["loss"]

    def column(self, name: str) -> list[float]:
        """A column of `metrics.csv`, rows without a value left out."""
        with (self.folder / "metrics.csv").open() as file:
            return [float(row[name]) for row in csv.DictReader(file) if row.get(name)]


def read_laboratory(folder: Path) -> list[LabRun]:
    """All finished runs, by puzzle, method and seed.

    Raises:
        ConfigError: there is none.
    """
    listings: dict[str, Listing] = {}
    runs = []
    for path in sorted(folder.glob("*/*/seed_*/finished.json")):
        run_folder = path.parent
        puzzle, method = run_folder.parts[-3:-1]
        if method.startswith(BASELINES):
            continue
        if puzzle not in listings:
            listings[puzzle] = _listing(run_folder / "exact" / "answers.json")
        lines = (run_folder / "exact" / "metrics.jsonl").read_text().splitlines()
        runs.append(
            LabRun(
                puzzle=puzzle,
                method=method,
                seed=int(run_folder.name.removeprefix("seed_")),
                folder=run_folder,
                listing=listings[puzzle],
                points=tuple(json.loads(line) for line in lines),
            )
        )
    if not runs:
        raise ConfigError(f"{folder} has no finished run: `apo lab` makes them")
    return runs


REVIVAL = "revival_"
"""Before the method's name: a run that began with a collapsed policy."""
BASELINES = "baselines_"
"""Before the method's name: no run, but what was measured on its last policy without training."""
SWEEP = "sweep_"
"""Before a name: APO with one coefficient changed, which no table of methods shows."""


def puzzles_of(runs: Sequence[LabRun]) -> list[str]:
    """Names of the puzzles, locks first."""
    return sorted({run.puzzle for run in runs}, key=lambda name: (name != "locks", name))


def by_method(runs: Sequence[LabRun], puzzle: str, *, revivals: bool = False) -> dict[str, list[LabRun]]:
    """The runs of one puzzle that began with the base model (or with a collapsed policy), seeds ascending."""
    found: dict[str, list[LabRun]] = {}
    for run in runs:
        is_method = run.puzzle == puzzle and not run.method.startswith(SWEEP)
        if is_method and run.method.startswith(REVIVAL) == revivals:
            found.setdefault(run.method.removeprefix(REVIVAL), []).append(run)
    return {method: sorted(members, key=lambda run: run.seed) for method, members in found.items()}


def _listing(path: Path) -> Listing:
    content = json.loads(path.read_text())
    flat = [
        (place, strategy, is_valid)
        for place, row in enumerate(content["problems"])
        for _, strategy, is_valid in row["answers"]
    ]
    strategies = [name for name in content["strategies"] if any(name == strategy for _, strategy, _ in flat)]
    places = {name: place for place, name in enumerate(strategies)}
    return Listing(
        problems=tuple(row["problem"] for row in content["problems"]),
        strategies=tuple(strategies),
        problem=torch.tensor([problem for problem, _, _ in flat]),
        strategy=torch.tensor([places[strategy] for _, strategy, _ in flat]),
        is_valid=torch.tensor([is_valid for _, _, is_valid in flat]),
    )

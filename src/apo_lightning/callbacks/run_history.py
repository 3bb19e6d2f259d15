"""Metrics of a whole run, and comparisons of its beginning with its end."""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from apo_lightning.common.formatting import mean_of_finite
from apo_lightning.metrics.intervals import CONFIDENCE, paired_interval
from apo_lightning.types import StepOutput, ValidationOutput

NUM_EDGE_STEPS = 5
VERDICT_PREFIX = "reward/num_"


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationPass:
    """Result of one validation pass over one held-out set."""

    samples_per_problem: int
    accuracies: Mapping[str, float]
    """Problem id → share of its samples that were correct."""
    metrics: Mapping[str, float]


@dataclass(slots=True)
class RunHistory:
    """Metrics of all steps so far; steps repeated after a resume replace their first run."""

    steps: dict[int, dict[str, float]] = field(default_factory=dict)
    validations: dict[str, dict[int, ValidationPass]] = field(default_factory=dict)
    group_size: int = 1

    def add_step(self, step: StepOutput) -> None:
        """Keep the metrics that a step logged."""
        self.group_size = step.rollouts.group_size
        self.steps[step.step] = dict(step.metrics)

    def add_validation(self, output: ValidationOutput) -> None:
        """Keep the metrics of a validation pass, and the accuracy on each problem."""
        shares = output.rollouts.is_correct.double().mean(1).tolist()
        ids = [prompt.id for prompt in output.rollouts.prompts]
        self.validations.setdefault(output.name, {})[output.step] = ValidationPass(
            samples_per_problem=output.rollouts.group_size,
            accuracies=dict(zip(ids, shares, strict=True)),
            metrics=dict(output.metrics),
        )

    def series(self, key: str) -> tuple[list[int], list[float]]:
        """Steps and values of one training metric; NaN where a step did not log it."""
        steps = sorted(self.steps)
        return steps, [self.steps[step].get(key, math.nan) for step in steps]

    def state_dict(self) -> dict[str, Any]:
        """The history as plain data, so that loading a checkpoint runs no code."""
        return asdict(self)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Prepend the saved history to that of this process."""
        self.steps = state["steps"] | self.steps
        self.group_size = state["group_size"]
        for name, passes in state["validations"].items():
            saved = {step: ValidationPass(**fields) for step, fields in passes.items()}
            self.validations[name] = saved | self.validations.get(name, {})


def first_and_last(history: RunHistory) -> dict[str, Any]:
    """Means of every logged metric over the first and the last five steps.

    "First" is at most half of the run, so that the two share no step. Non-finite values are left out and counted.
    """
    steps = sorted(history.steps)
    edge = min(NUM_EDGE_STEPS, max(1, len(steps) // 2))
    keys = sorted({key for metrics in history.steps.values() for key in metrics})
    result: dict[str, Any] = {"num_edge_steps": edge if steps else 0, "metrics": {}, "num_nonfinite": {}}
    for key in keys:
        values = [history.steps[step][key] for step in steps if key in history.steps[step]]
        first = [history.steps[step].get(key, math.nan) for step in steps[:edge]]
        last = [history.steps[step].get(key, math.nan) for step in steps[-edge:]]
        result["metrics"][key] = {"first": mean_of_finite(first), "last": mean_of_finite(last)}
        if num_nonfinite := sum(not math.isfinite(value) for value in values):
            result["num_nonfinite"][key] = num_nonfinite
    return result


def held_out_change(passes: Mapping[int, ValidationPass]) -> dict[str, Any]:
    """pass@1 at the first and last validation pass, and an interval of the difference, paired by problem.

    `num_correct` has the counts of each problem, which the interval of a mean over several runs needs.
    """
    first, last = min(passes), max(passes)
    before, after = passes[first], passes[last]
    ids = [identifier for identifier in before.accuracies if identifier in after.accuracies]
    paired = [torch.tensor([one.accuracies[i] for i in ids], dtype=torch.float64) for one in (before, after)]
    interval = paired_interval(paired[0], paired[1])
    return {
        "num_problems": len(ids),
        "samples_per_problem": after.samples_per_problem,
        "samples_per_problem_before": before.samples_per_problem,
        "step_before": first,
        "step_after": last,
        "pass@1_before": float(paired[0].mean()),
        "pass@1_after": float(paired[1].mean()),
        "change": asdict(interval) | {"confidence": CONFIDENCE},
        "metrics_before": dict(before.metrics),
        "metrics_after": dict(after.metrics),
        "num_correct": {
            i: [round(one.accuracies[i] * one.samples_per_problem) for one in (before, after)] for i in ids
        },
    }


def total_verdicts(history: RunHistory) -> dict[str, int]:
    """Training completions by verdict status, over the whole run and all ranks."""
    counts = Counter[str]()
    for metrics in history.steps.values():
        for key, value in metrics.items():
            if key.startswith(VERDICT_PREFIX):
                counts[key.removeprefix(VERDICT_PREFIX)] += round(value)
    return dict(counts)

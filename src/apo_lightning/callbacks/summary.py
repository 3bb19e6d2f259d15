"""The results of a run: a closing table and `summary.json`."""

import math
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.trainer.states import TrainerFn
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from apo_lightning.callbacks.step_callback import StepCallback
from apo_lightning.common.console import say, show
from apo_lightning.common.files import to_json, write_atomically
from apo_lightning.common.formatting import duration, mean_of_finite, number
from apo_lightning.metrics.intervals import CONFIDENCE, paired_interval
from apo_lightning.model.fingerprint import versions
from apo_lightning.types import StepOutput, ValidationOutput

NUM_EDGE_STEPS = 5
SAID_AFTER = 10
"""Steps in a row without a gradient, after which the user is told."""
VERDICT_PREFIX = "reward/num_"
# Metric key (a prefix where it ends in @), label, decimals.
ROWS = (
    ("train/reward", "reward", 3),
    ("train/pass@", "pass@", 3),
    ("train/entropy", "entropy [nats]", 3),
    ("train/max_prob", "max-prob", 3),
    ("train/completion_tokens", "tokens a completion", 1),
    ("train/truncated_fraction", "truncated fraction", 3),
    ("train/grad_norm", "gradient norm", 3),
    ("sync/logprob_gap", "engine-trainer gap [nats]", 5),
    ("time/step", "seconds a step", 1),
    ("perf/tokens_per_second", "tokens a second", 0),
)

Steps = Mapping[int, Mapping[str, float]]
"""Step → its metrics."""
Passes = Mapping[int, Mapping[str, Any]]
"""Step → the validation pass of one held-out set after it: `accuracies` (problem id → share of its samples that were
correct), `samples_per_problem` and `metrics`."""


class RunSummary(StepCallback):
    """Compares the first steps with the last, and held-out accuracy before training with after.

    The file is written when training ends, and again after the validation pass that follows; the table is printed once,
    at the later of the two. The summary of a resumed run covers all of the run.
    """

    def __init__(self) -> None:
        self._steps: dict[int, dict[str, float]] = {}
        self._passes: dict[str, dict[int, dict[str, Any]]] = {}
        self._started: float | None = None
        self._seconds_before = 0.0
        self._weights_sha256: str | None = None
        self._untrained_in_a_row = 0

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Start the wall clock at the first stage of this process."""
        if self._started is None:
            self._started = time.monotonic()

    def on_step(self, step: StepOutput) -> None:
        """Keep the step's numbers; say once when no completion has had a gradient for some steps."""
        self._steps[step.step] = metrics = dict(step.metrics)
        self._untrained_in_a_row = self._untrained_in_a_row + 1 if metrics.get("train/skipped_fraction") == 1 else 0
        if self._untrained_in_a_row == SAID_AFTER:
            say(
                f"{SAID_AFTER} steps in a row no completion had a gradient, since the rewards of each group were "
                f"equal: mean reward {metrics['train/reward']:.3f}, {metrics['train/truncated_fraction']:.0%} of the "
                "completions were cut at data.max_completion_tokens"
            )

    def on_validated(self, output: ValidationOutput) -> None:
        """Keep the accuracy on each problem, for the paired comparison."""
        shares = output.rollouts.is_correct.double().mean(1).tolist()
        self._passes.setdefault(output.name, {})[output.step] = {
            "samples_per_problem": output.rollouts.group_size,
            "accuracies": dict(zip((prompt.id for prompt in output.rollouts.prompts), shares, strict=True)),
            "metrics": dict(output.metrics),
        }

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Write the summary, and print it unless a last validation pass follows."""
        validated = max((max(passes) for passes in self._passes.values()), default=trainer.global_step)
        self._finish(trainer, pl_module, is_printed=validated >= trainer.global_step)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Complete the summary after the validation pass that follows training."""
        super().on_validation_end(trainer, pl_module)
        # A run that was killed before this pass is resumed without a step that is left to train.
        is_trained = self._weights_sha256 is not None or trainer.global_step >= trainer.max_steps
        if is_trained and trainer.state.fn == TrainerFn.VALIDATING:
            self._finish(trainer, pl_module, is_printed=True)

    def state_dict(self) -> dict[str, Any]:
        """The numbers so far as plain data, so that loading a checkpoint runs no code."""
        return {"steps": self._steps, "passes": self._passes, "seconds": self._seconds}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Prepend the numbers of the run that is resumed; steps that are repeated replace their first run."""
        self._steps = state_dict["steps"] | self._steps
        for name, passes in state_dict["passes"].items():
            self._passes[name] = passes | self._passes.get(name, {})
        self._seconds_before = state_dict["seconds"]

    @property
    def _seconds(self) -> float:
        """Wall time of this process and of the ones it resumed from, up to their last checkpoint [s]."""
        return self._seconds_before + (time.monotonic() - self._started if self._started is not None else 0.0)

    def _finish(self, trainer: pl.Trainer, pl_module: Any, *, is_printed: bool) -> None:
        if self._weights_sha256 is None:
            self._weights_sha256 = pl_module.weights_sha256  # by all ranks: a sharded policy is gathered
        if not trainer.is_global_zero:
            return
        skipped = [metrics.get("train/skipped_fraction") for metrics in self._steps.values()]
        summary = {
            "steps": trainer.global_step,
            "max_steps": trainer.max_steps,
            "seed": getattr(pl_module, "seed", None),
            "wall_seconds": round(self._seconds, 1),
            "num_untrained_steps": skipped.count(1.0),
            "train": first_and_last(self._steps),
            "held_out": {name: held_out_change(passes) for name, passes in self._passes.items()},
            "verdicts": total_verdicts(self._steps),
            "versions": versions(),
            "weights_sha256": self._weights_sha256,
        }
        folder = Path(trainer.default_root_dir)
        write_atomically(folder / "summary.json", to_json(summary, indent=2) + b"\n")
        if is_printed:
            say("")
            show(closing_table(summary))
            say(f"summary.json and rollouts/ are in {folder}")


def first_and_last(steps: Steps) -> dict[str, Any]:
    """Means of every logged metric over the first and the last five steps.

    "First" is at most half of the run, so that the two share no step. Non-finite values are left out and counted.
    """
    ordered = [steps[step] for step in sorted(steps)]
    edge = min(NUM_EDGE_STEPS, max(1, len(ordered) // 2)) if ordered else 0
    result: dict[str, Any] = {"num_edge_steps": edge, "metrics": {}, "num_nonfinite": {}}
    for key in sorted({key for metrics in ordered for key in metrics}):
        values = [metrics.get(key, math.nan) for metrics in ordered]
        result["metrics"][key] = {"first": mean_of_finite(values[:edge]), "last": mean_of_finite(values[-edge:])}
        if num_nonfinite := sum(not math.isfinite(metrics.get(key, 0.0)) for metrics in ordered):
            result["num_nonfinite"][key] = num_nonfinite
    return result


def held_out_change(passes: Passes) -> dict[str, Any]:
    """pass@1 at the first and last validation pass, and an interval of the difference, paired by problem.

    `num_correct` has the counts of each problem, which the interval of a mean over several runs needs.
    """
    first, last = min(passes), max(passes)
    both = before, after = passes[first], passes[last]
    ids = [identifier for identifier in before["accuracies"] if identifier in after["accuracies"]]
    paired = [torch.tensor([one["accuracies"][i] for i in ids], dtype=torch.float64) for one in both]
    return {
        "num_problems": len(ids),
        "samples_per_problem": after["samples_per_problem"],
        "samples_per_problem_before": before["samples_per_problem"],
        "step_before": first,
        "step_after": last,
        "pass@1_before": float(paired[0].mean()),
        "pass@1_after": float(paired[1].mean()),
        "change": asdict(paired_interval(paired[0], paired[1])) | {"confidence": CONFIDENCE},
        "metrics_before": before["metrics"],
        "metrics_after": after["metrics"],
        "num_correct": {i: [round(one["accuracies"][i] * one["samples_per_problem"]) for one in both] for i in ids},
    }


def total_verdicts(steps: Steps) -> dict[str, int]:
    """Training completions by verdict status, over the whole run and all ranks."""
    counts = Counter[str]()
    for metrics in steps.values():
        for key, value in metrics.items():
            if key.startswith(VERDICT_PREFIX):
                counts[key.removeprefix(VERDICT_PREFIX)] += round(value)
    return dict(counts)


def closing_table(summary: Mapping[str, Any]) -> RenderableType:
    """First and last training steps, held-out sets before and after, and the counts of verdicts."""
    parts: list[RenderableType] = [_training(summary["train"])] if summary["steps"] else []
    parts += [_held_out(name, change) for name, change in summary["held_out"].items()]
    if 2 * (untrained := summary["num_untrained_steps"]) > summary["steps"]:
        what = "nothing was trained" if untrained == summary["steps"] else f"{untrained} steps trained nothing"
        parts.append(Text(f"{what}: no completion had a gradient, since the rewards of each group were equal"))
    judged = ", ".join(f"{count} {status}" for status, count in summary["verdicts"].items() if count)
    steps = f"{summary['steps']} steps in {duration(summary['wall_seconds'])}"
    parts.append(Text(f"{steps}; completions: {judged or 'none'}"))
    parts.append(Text(f"weights sha256 {summary['weights_sha256'][:16]}", style="dim"))
    return Group(*parts)


def _training(train: Mapping[str, Any]) -> Table:
    of_steps = "step" if train["num_edge_steps"] == 1 else f"{train['num_edge_steps']} steps"
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="dim")
    table.add_column("training", no_wrap=True)
    for title in (f"first {of_steps}", f"last {of_steps}", "change"):
        table.add_column(title, justify="right", no_wrap=True)
    for name, label, decimals in ROWS:
        for key, means in train["metrics"].items():
            if key == name or (name.endswith("@") and key.startswith(name)):
                first, last = means["first"], means["last"]
                row = label + key.removeprefix(name)
                change = _signed(last - first, decimals)
                table.add_row(row, number(first, decimals), number(last, decimals), change)
    return table


def _held_out(name: str, change: Mapping[str, Any]) -> Text:
    interval = change["change"]
    text = f"\nheld-out {name}, {change['num_problems']} problems: "
    text += f"pass@1 {number(change['pass@1_before'])} at step {change['step_before']}"
    if change["step_before"] < change["step_after"]:
        mean, low, high = (_signed(interval[end], 3) for end in ("mean", "low", "high"))
        text += f" -> {number(change['pass@1_after'])} at step {change['step_after']},\nchange {mean}"
        text += f", paired {interval['confidence']:.0%} interval [{low}, {high}]"
    return Text(f"{text}\n")


def _signed(value: float, decimals: int) -> str:
    return f"{value:+z.{decimals}f}" if math.isfinite(value) else "-"

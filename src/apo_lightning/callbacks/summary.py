"""The results of a run: a closing table, `summary.json` and `curves.png`."""

import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from apo_lightning.callbacks.curves import curves_png
from apo_lightning.callbacks.model_card import write_card
from apo_lightning.callbacks.run_history import RunHistory, first_and_last, held_out_change, total_verdicts
from apo_lightning.callbacks.run_loggers import RunLogger
from apo_lightning.callbacks.step_callback import StepCallback
from apo_lightning.common.console import say, show
from apo_lightning.common.files import to_json, write_atomically
from apo_lightning.common.formatting import duration, number
from apo_lightning.model.fingerprint import versions, weights_sha256
from apo_lightning.types import StepOutput, ValidationOutput

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


class RunSummary(StepCallback):
    """Compares the first steps with the last, and held-out accuracy before training with after.

    Files, the model card of `checkpoints/final` among them, are written when training ends, and again after the
    validation pass that follows; the table is printed once, at the later of the two.
    """

    def __init__(self) -> None:
        self._history = RunHistory()
        self._started: float | None = None
        self._seconds_before = 0.0
        self._weights_sha256: str | None = None

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Start the wall clock at the first stage of this process."""
        if self._started is None:
            self._started = time.monotonic()

    def on_step(self, step: StepOutput) -> None:
        """Keep the step's numbers."""
        self._history.add_step(step)

    def on_validated(self, output: ValidationOutput) -> None:
        """Keep the accuracy on each problem, for the paired comparison."""
        self._history.add_validation(output)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Write the summary, and print it unless a last validation pass follows."""
        policy: Any = pl_module.policy
        self._weights_sha256 = weights_sha256(policy)
        summary = self._write(trainer, pl_module)
        validated = [max(passes) for passes in self._history.validations.values()]
        if not validated or max(validated) >= trainer.global_step:
            self._print(trainer, summary)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Complete the summary after the validation pass that follows training."""
        super().on_validation_end(trainer, pl_module)
        # A run that resumes from a finished one has loaded its weight hash, so the step must be checked as well.
        if self._weights_sha256 is not None and trainer.global_step >= trainer.max_steps:
            self._print(trainer, self._write(trainer, pl_module))

    def state_dict(self) -> dict[str, Any]:
        """The history so far, so that the summary of a resumed run covers all of it."""
        return {"history": self._history.state_dict(), "seconds": self._seconds, "weights_sha256": self._weights_sha256}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the history of the run that is resumed."""
        self._history.load_state_dict(state_dict["history"])
        self._seconds_before = state_dict["seconds"]
        self._weights_sha256 = state_dict["weights_sha256"]

    @property
    def _seconds(self) -> float:
        """Wall time of this process and of the ones it resumed from, up to their last checkpoint [s]."""
        return self._seconds_before + (time.monotonic() - self._started if self._started is not None else 0.0)

    def _write(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> dict[str, Any]:
        history = self._history
        summary = {
            "steps": trainer.global_step,
            "max_steps": trainer.max_steps,
            "seed": getattr(pl_module, "seed", None),
            "wall_seconds": round(self._seconds, 1),
            "num_untrained_steps": sum(share == 1 for share in history.series("train/skipped_fraction")[1]),
            "train": first_and_last(history),
            "held_out": {name: held_out_change(passes) for name, passes in history.validations.items()},
            "verdicts": total_verdicts(history),
            "versions": versions(),
            "weights_sha256": self._weights_sha256,
        }
        if trainer.is_global_zero:
            folder = Path(trainer.default_root_dir)
            write_atomically(folder / "summary.json", to_json(summary, indent=2) + b"\n")
            write_atomically(folder / "curves.png", curves_png(history))
            if (final := folder / "checkpoints" / "final").is_dir():
                write_card(folder, final, trainer.global_step)
            for logger in trainer.loggers:
                if isinstance(logger, RunLogger):
                    logger.log_summary(summary)
        return summary

    def _print(self, trainer: pl.Trainer, summary: dict[str, Any]) -> None:
        if trainer.is_global_zero:
            say("")
            show(closing_table(summary))
            say(f"summary.json, curves.png and rollouts/ are in {trainer.default_root_dir}")


def closing_table(summary: Mapping[str, Any]) -> RenderableType:
    """First and last training steps, held-out sets before and after, and the counts of verdicts."""
    parts: list[RenderableType] = [_training(summary)] if summary["steps"] else []
    parts += [_held_out(name, change) for name, change in summary["held_out"].items()]
    if 0 < summary["steps"] == summary["num_untrained_steps"]:
        parts.append(
            Text("nothing was trained: no completion had a gradient, since the rewards of each group were equal")
        )
    judged = ", ".join(f"{count} {status}" for status, count in summary["verdicts"].items() if count)
    steps = f"{summary['steps']} steps in {duration(summary['wall_seconds'])}"
    parts.append(Text(f"{steps}; completions: {judged or 'none'}"))
    parts.append(Text(f"weights sha256 {summary['weights_sha256'][:16]}", style="dim"))
    return Group(*parts)


def _training(summary: Mapping[str, Any]) -> Table:
    edge = summary["train"]["num_edge_steps"]
    of_steps = "step" if edge == 1 else f"{edge} steps"
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="dim")
    table.add_column("training", no_wrap=True)
    for title in (f"first {of_steps}", f"last {of_steps}", "change"):
        table.add_column(title, justify="right", no_wrap=True)
    for name, label, decimals in ROWS:
        for key, means in summary["train"]["metrics"].items():
            if key == name or (name.endswith("@") and key.startswith(name)):
                first, last = means["first"], means["last"]
                change = _signed(last - first, decimals)
                row = label + key.removeprefix(name)
                table.add_row(Text(row), number(first, decimals), number(last, decimals), change)
    return table


def _held_out(name: str, change: Mapping[str, Any]) -> Text:
    interval = change["change"]
    before, after = change["step_before"], change["step_after"]
    text = f"\nheld-out {name}, {change['num_problems']} problems: "
    text += f"pass@1 {number(change['pass@1_before'])} at step {before}"
    if before < after:
        mean, low, high = (_signed(interval[end], 3) for end in ("mean", "low", "high"))
        text += f" -> {number(change['pass@1_after'])} at step {after},\nchange {mean}"
        text += f", paired {interval['confidence']:.0%} interval [{low}, {high}]"
    return Text(f"{text}\n")


def _signed(value: float, decimals: int) -> str:
    return f"{value:+z.{decimals}f}" if math.isfinite(value) else "-"

"""The table printed at the end of a run."""

import math
from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from apo_lightning.common.formatting import duration, number

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


def closing_table(summary: Mapping[str, Any]) -> RenderableType:
    """First and last training steps, held-out sets before and after, and the counts of verdicts."""
    parts: list[RenderableType] = [_training(summary)] if summary["steps"] else []
    parts += [_held_out(name, change) for name, change in summary["held_out"].items()]
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
    return f"{value:+.{decimals}f}" if math.isfinite(value) else "-"

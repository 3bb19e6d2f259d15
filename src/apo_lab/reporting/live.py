"""A training run as its files show it at one moment: state, curves, phases and newest completions.

.hydra/config.yaml, metrics.csv, summary.json, rollouts/step_*.jsonl → LiveRun → `watch.html.j2`
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import yaml

from apo_lab.reporting.render import template
from apo_lab.reporting.rollouts import read_completions
from apo_lab.reporting.runs import read_metrics, read_summary, run_name
from apo_lightning.common.formatting import duration
from apo_lightning.errors import ConfigError

Series = tuple[np.ndarray, np.ndarray]
"""Steps, and the value of a metric at each."""
PANELS = (
    ("reward", ("train/reward",)),
    ("pass@k", (r"train/pass@\d+", r"val/[^/]+/pass@\d+")),
    ("entropy [nats]", ("train/entropy",)),
    ("engine-trainer gap [nats]", ("sync/logprob_gap", "sync/logprob_gap_tolerance")),
    ("seconds a step", ("time/step",)),
    ("tokens a second", ("perf/tokens_per_second",)),
)
"""Title of each panel, and patterns of the metrics in it."""
MOST_POINTS = 400
"""Points of a line; where a run has more steps, each is the mean of several."""
NUM_COMPLETIONS = 6
RECENT_STEPS = 10
"""Steps over which the times of the phases are averaged."""
FILES = ("metrics.csv", "summary.json", "run.log", ".hydra/config.yaml")


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One metric in a panel whose corners are (0, 0) and (100, 100)."""

    label: str
    is_dots: bool
    """Held-out problems, which few steps have."""
    last: float
    points: Sequence[tuple[float, float]]
    """x and y in percent, y from the top."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One small chart."""

    title: str
    steps: tuple[int, int]
    bounds: tuple[float, float]
    lines: Sequence[Line]


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveRun:
    """The content of the page."""

    title: str
    state: Literal["waiting", "running", "silent", "ended"]
    headline: str
    panels: Sequence[Panel]
    phases: Sequence[tuple[str, float]]
    """Phase → seconds a step, the longest first."""
    completions: Sequence[Mapping[str, Any]]
    files: Sequence[str]
    """Files of the run that exist, relative to its folder."""


def read_live(folder: Path, now: float) -> LiveRun:
    """Read a run's folder; `now` [s since the epoch] decides how long ago its last step was.

    Raises:
        ConfigError: the folder is no training run, or one of its files is malformed.
    """
    config, path = folder / ".hydra" / "config.yaml", folder / "metrics.csv"
    max_steps = _max_steps(config)
    metrics = _series(read_metrics(path)) if path.is_file() else {}
    age = now - (path if path.is_file() else config).stat().st_mtime
    state = _state(folder, metrics, max_steps, age)
    return LiveRun(
        title=run_name(folder),
        state=state,
        headline=_headline(state, metrics, max_steps, age),
        panels=panels(metrics),
        phases=_phases(metrics),
        completions=_completions(folder / "rollouts"),
        files=[name for name in FILES if (folder / name).is_file()],
    )


def live_page(run: LiveRun) -> str:
    """The whole page, as HTML."""
    return template("watch.html.j2").render(run=run, short=short)


def short(value: float) -> str:
    """A number in at most eight characters.

    Example:
        >>> short(11043.2), short(0.41667), short(4.839e-8)
        ('11,043', '0.417', '4.84e-08')
    """
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e6 else f"{value:.3g}"


def panels(metrics: Mapping[str, Series]) -> list[Panel]:
    """The panels that have a value."""
    found = []
    for title, patterns in PANELS:
        keys = [key for pattern in patterns for key in sorted(metrics) if re.fullmatch(pattern, key)]
        if keys:
            found.append(_panel(title, {key: metrics[key] for key in keys}))
    return found


def _panel(title: str, metrics: Mapping[str, Series]) -> Panel:
    thinned = {key: _thinned(*series) for key, series in metrics.items()}
    steps, values = (np.concatenate(parts) for parts in zip(*thinned.values(), strict=True))
    first, last, low, high = int(steps.min()), int(steps.max()), float(values.min()), float(values.max())
    lines = [
        Line(
            label=re.sub("^(train|sync|time|perf)/", "", key),
            is_dots=key.startswith("val/"),
            last=float(metrics[key][1][-1]),
            points=[
                (round(100 * (step - first) / max(last - first, 1), 2), _percent_from_top(value, low, high))
                for step, value in zip(*of_line, strict=True)
            ],
        )
        for key, of_line in thinned.items()
    ]
    return Panel(title=title, steps=(first, last), bounds=(low, high), lines=lines)


def _percent_from_top(value: float, low: float, high: float) -> float:
    return round(100 * (high - value) / (high - low), 2) if high > low else 50.0


def _series(table: Any) -> dict[str, Series]:
    """Steps and values of each metric, where it was logged."""
    return {key: (column.dropna().index.to_numpy(), column.dropna().to_numpy()) for key, column in table.items()}


def _thinned(steps: np.ndarray, values: np.ndarray) -> Series:
    """Means over equal numbers of steps, each at its last step.

    Example:
        >>> steps, values = _thinned(np.arange(1, 802), np.arange(801.0))
        >>> len(steps), steps[:2].tolist(), values[:2].tolist(), int(steps[-1])
        (267, [3, 6], [1.0, 4.0], 801)
    """
    starts = np.arange(0, len(values), math.ceil(len(values) / MOST_POINTS))
    ends = np.append(starts[1:], len(values))
    return steps[ends - 1], np.add.reduceat(values, starts) / (ends - starts)


def _max_steps(config: Path) -> int:
    try:
        return int(yaml.safe_load(config.read_text(encoding="utf-8"))["trainer"]["max_steps"])
    except FileNotFoundError:
        raise ConfigError(f"{config.parent.parent} is no training run: it has no .hydra/config.yaml") from None
    except (ValueError, TypeError, KeyError, yaml.YAMLError) as error:
        raise ConfigError(f"{config}: names no trainer.max_steps: give the folder of a training run") from error


def _state(
    folder: Path, metrics: Mapping[str, Series], max_steps: int, age: float
) -> Literal["waiting", "running", "silent", "ended"]:
    # A resumed run with more steps still has the summary of its first part.
    if read_summary(folder / "summary.json").get("steps", 0) >= max_steps:
        return "ended"
    if "train/reward" not in metrics:
        return "waiting"
    if age <= max(60.0, 10 * _recent(metrics, "time/step")):
        return "running"
    # A run whose callbacks write no summary has ended too.
    return "ended" if metrics["train/reward"][0][-1] >= max_steps else "silent"


def _headline(state: str, metrics: Mapping[str, Series], max_steps: int, age: float) -> str:
    if state == "ended":
        return f"The run has ended, after {max_steps} steps."
    if state == "waiting":
        return f"None of {max_steps} steps has ended yet; the run wrote its last file {duration(age)} ago."
    step, seconds = int(metrics["train/reward"][0][-1]), _recent(metrics, "time/step")
    if state == "silent":
        return (
            f"Step {step} of {max_steps} ended {duration(age)} ago, and a step takes {seconds:.1f} s: the run was "
            "stopped, failed or hangs. run.log has the messages; resume=auto continues it."
        )
    left = duration(seconds * (max_steps - step))
    return f"Step {step} of {max_steps}, {seconds:.1f} s a step, about {left} left."


def _recent(metrics: Mapping[str, Series], key: str) -> float:
    """The mean over recent steps."""
    return float(metrics[key][1][-RECENT_STEPS:].mean())


def _phases(metrics: Mapping[str, Series]) -> list[tuple[str, float]]:
    """Mean seconds of each phase in recent steps, without those that took none."""
    keys = [key for key in metrics if key.startswith("time/") and key != "time/step"]
    means = {key.removeprefix("time/"): _recent(metrics, key) for key in keys}
    return sorted(((name, mean) for name, mean in means.items() if mean > 0), key=lambda phase: -phase[1])


def _completions(folder: Path) -> Sequence[Mapping[str, Any]]:
    """One completion of each of the first prompts of the newest step."""
    written = sorted(folder.glob("step_*.jsonl"))
    if not written:
        return []
    return [line for line in read_completions(written[-1]) if line["sample"] == 0][:NUM_COMPLETIONS]

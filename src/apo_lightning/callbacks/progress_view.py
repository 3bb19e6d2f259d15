"""Rendering of the state of a run: a panel for a terminal, lines for a log."""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.constrain import Constrain
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from apo_lightning.common.formatting import duration, number, sparkline
from apo_lightning.types import StepOutput, ValidationOutput

NOT_SHOWN = frozenset({"between_steps", "prepare", "metrics", "step"})
"""Timings left out of the line of phases: they are short, or not a phase of a step."""
SHOWN_FROM_SECONDS = 0.05
MAX_WIDTH = 100


@dataclass(slots=True)
class RunState:
    """The displayed state of a run; the rendering functions only read it."""

    max_steps: int = 0
    first_step: int = 0
    """Finished steps when training began: more than 0 in a resumed run."""
    started: float = field(default_factory=time.monotonic)
    history: list[Mapping[str, float]] = field(default_factory=list)
    """The logged metrics of each step."""
    timings: Mapping[str, float] = field(default_factory=dict)
    group_size: int = 1
    phase: str | None = None
    phase_since: float = field(default_factory=time.monotonic)
    held_out: dict[str, list[float]] = field(default_factory=dict)
    """pass@1 of every validation pass over each held-out set."""

    @property
    def step(self) -> int:
        """Number of finished training steps."""
        return self.first_step + len(self.history)

    @property
    def seconds_left(self) -> float:
        """Estimated time to the end of training, validation included; NaN before the first step [s]."""
        if not self.history:
            return math.nan
        return (time.monotonic() - self.started) / len(self.history) * (self.max_steps - self.step)

    def start_training(self, step: int, max_steps: int) -> None:
        """Begin a run whose first `step` steps are finished."""
        self.first_step, self.max_steps = step, max_steps
        self.history = []
        self.started = time.monotonic()

    def enter(self, phase: str | None) -> None:
        """Record the phase that runs now; the clock calls this at every change."""
        self.phase, self.phase_since = phase, time.monotonic()

    def add(self, step: StepOutput) -> None:
        """Record a finished training step."""
        self.group_size = step.rollouts.group_size
        self.max_steps = step.max_steps
        self.timings = step.timings
        self.history.append(step.metrics)

    def add_held_out(self, output: ValidationOutput) -> None:
        """Record a validation pass over a held-out set."""
        self.held_out.setdefault(output.name, []).append(output.metrics.get(f"val/{output.name}/pass@1", math.nan))

    def series(self, key: str) -> list[float]:
        """One metric over the steps; NaN where a step did not log it."""
        return [metrics.get(key, math.nan) for metrics in self.history]

    def rows(self) -> list[tuple[str, str]]:
        """(label, key) of the displayed metrics; pass@G only where it differs from pass@1."""
        pass_at_g = [(f"pass@{self.group_size}", f"train/pass@{self.group_size}")] if self.group_size > 1 else []
        return [
            ("reward", "train/reward"),
            ("pass@1", "train/pass@1"),
            *pass_at_g,
            ("entropy", "train/entropy"),
            ("max-prob", "train/max_prob"),
        ]


def header(state: RunState) -> str:
    """Column names of `step_line`."""
    labels = [label for label, _ in state.rows()]
    return _aligned(["step", *labels, "tokens/s", "s/step", "left"])


def step_line(state: RunState) -> str:
    """The newest step, in plain ASCII."""
    metrics = state.history[-1]
    values = [number(metrics.get(key, math.nan)) for _, key in state.rows()]
    tokens = number(metrics.get("perf/tokens_per_second", math.nan), 0)
    seconds = number(state.timings.get("step", math.nan), 1)
    return _aligned([f"{state.step}/{state.max_steps}", *values, tokens, seconds, duration(state.seconds_left)])


def held_out_line(output: ValidationOutput) -> str:
    """One validation pass over one held-out set, in plain ASCII.

    Example: `held-out arithmetic at step 10: pass@1 0.412, pass@4 0.688 (256 problems)`; where the verifier failed,
    `(256 problems, 2 completions could not be judged)`.
    """
    prefix = f"val/{output.name}/"
    scores = ", ".join(
        f"{key.removeprefix(prefix)} {number(value)}"
        for key, value in output.metrics.items()
        if key.startswith(prefix + "pass@")
    )
    num_errors = output.rollouts.verdict_counts["error"]
    errors = f", {num_errors} completions could not be judged" if num_errors else ""
    return f"held-out {output.name} at step {output.step}: {scores} ({len(output.rollouts.prompts)} problems{errors})"


def _aligned(cells: Sequence[str]) -> str:
    first, *others = cells
    return f"{first:>9}" + "".join(f"{cell:>9}" for cell in others)


def panel(state: RunState) -> RenderableType:
    """The whole panel; legible from 60 columns, no wider than 100."""
    if state.max_steps == 0:
        return Padding(_activity(state), (0, 1))
    parts: list[RenderableType] = [Text(), _progress(state), Text()]
    if state.history:
        parts += [_metrics(state), Text()]
    return Padding(Constrain(Group(*parts, _activity(state), Text()), MAX_WIDTH), (0, 1))


class _Sparkline:
    """A sparkline that fills the available width."""

    def __init__(self, values: Sequence[float]) -> None:
        self.values = values

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        yield Text(sparkline(self.values, options.max_width), style="cyan", no_wrap=True)


def _progress(state: RunState) -> Table:
    grid = Table.grid(padding=(0, 2), expand=True)
    grid.add_column(no_wrap=True)
    grid.add_column(ratio=1)
    grid.add_column(no_wrap=True, justify="right")
    grid.add_column(no_wrap=True, justify="right")
    speed = state.history[-1].get("perf/tokens_per_second", math.nan) if state.history else math.nan
    tokens = Text("" if math.isnan(speed) else f"{speed:.0f} tokens/s", style="dim")
    left = Text.assemble(("time left ", "dim"), duration(state.seconds_left))
    bar = ProgressBar(total=state.max_steps, completed=state.step, complete_style="cyan", finished_style="green")
    grid.add_row(Text.assemble("step ", (f"{state.step}/{state.max_steps}", "bold")), bar, tokens, left)
    return grid


def _metrics(state: RunState) -> Table:
    table = Table(box=None, expand=True, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("", no_wrap=True)
    table.add_column("now", justify="right", no_wrap=True)
    table.add_column("change", justify="right", no_wrap=True)
    table.add_column("since the first step", ratio=1)
    for label, key in state.rows():
        series = state.series(key)
        table.add_row(label, Text(number(series[-1]), style="bold"), _change(series), _Sparkline(series))
    for name, series in state.held_out.items():
        table.add_row(Text(f"held-out {name}", style="green"), number(series[-1]), _change(series), _Sparkline(series))
    return table


def _change(series: Sequence[float]) -> Text:
    change = series[-1] - series[0]
    return Text(f"{change:+.3f}" if math.isfinite(change) and len(series) > 1 else "", style="dim")


def _activity(state: RunState) -> Text:
    """The phases with their seconds in the last step; the current phase is highlighted with its time so far."""
    elapsed = time.monotonic() - state.phase_since
    seconds = state.timings if state.history else {}
    phases = [p for p, spent in seconds.items() if p not in NOT_SHOWN and spent >= SHOWN_FROM_SECONDS]
    cells = Text(no_wrap=True, overflow="ellipsis")
    if state.phase is None and not state.history:
        cells.append(f"● starting {elapsed:.0f}s", style="bold cyan")
    if state.phase is not None and state.phase not in phases:
        phases.append(state.phase)
    for phase in phases:
        if cells:
            cells.append("  ")
        if phase == state.phase:
            cells.append(f"● {phase} {elapsed:.0f}s", style="bold cyan")
        else:
            cells.append(f"{phase} {state.timings[phase]:.1f}s", style="dim")
    return cells

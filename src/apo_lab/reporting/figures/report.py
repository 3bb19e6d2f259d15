"""All figures of a report, named and captioned, from everything that was read."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure

from apo_lab.reporting.averages import series_name
from apo_lab.reporting.axes import Defaults
from apo_lab.reporting.figures.collapse import collapse_figure
from apo_lab.reporting.figures.coverage import coverage_figure
from apo_lab.reporting.figures.monitors import monitor_panels, monitors_figure
from apo_lab.reporting.figures.paper import as_measurements, as_recall
from apo_lab.reporting.figures.pass_at_k import pareto_figure, pareto_points, pass_at_k_figure, shown_methods
from apo_lab.reporting.figures.sensitivity import sensitivity_figure, sensitivity_panels
from apo_lab.reporting.figures.training import (
    ENTROPY,
    RunsByMethod,
    entropy_figure,
    method_curves,
    runs_by_method,
    training_figure,
    training_panels,
)
from apo_lab.reporting.names import METHODS, benchmark_name
from apo_lab.reporting.published import published
from apo_lab.reporting.records import Covered, Measurement, RunCard
from apo_lab.reporting.style import Style, styles_of
from apo_lab.reporting.tables.main_results import without_variants
from apo_lab.reporting.tables.sensitivity import swept_methods
from apo_lab.reporting.tables.series import Series, evaluated_or_held_out, interval_note, num_seeds, series
from apo_lab.reporting.trajectories import Trajectory, trajectories

SMOOTHING = (
    "Strong lines: mean over seeds, each smoothed over the last twentieth of its run; bands: smallest to largest seed; "
    "faint lines: runs as logged. Training seeds: "
)

MONITORS = "Dotted: 0 of a difference or a count, the alarm's threshold, or else the first logged value, of the base. "


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedFigure:
    """A figure and what is said of it."""

    name: str
    """Stem of its files: `pareto`."""
    title: str
    caption: str
    figure: Figure


def report_figures(
    runs: Sequence[RunCard],
    measurements: Sequence[Measurement],
    covered: Sequence[Covered] = (),
    defaults: Defaults | None = None,
    snapshots: Sequence[Measurement] = (),
) -> list[NamedFigure]:
    """Every figure that there is data for, a method looking the same in each.

    Args:
        runs: the training runs.
        measurements: of evaluations and of the runs' held-out problems.
        covered: coverage of worked solutions.
        defaults: as in `axes.settings`; the same as `measurements` was given.
        snapshots: from `evaluations.snapshot_measurements`.
    """
    paper = as_measurements(published("main_results"))
    by_model = runs_by_method(runs, defaults)
    lines = trajectories(snapshots)
    names = [*(series_name(item) for item in (*measurements, *paper)), *(line.method for line in lines)]
    styles = styles_of([*names, *(method for methods in by_model.values() for method in methods)])
    figures = [
        *_evaluated(measurements, paper, styles),
        *_along_training(lines, styles),
        *_swept(measurements, defaults or {}),
    ]
    for model, methods in by_model.items():
        suffix = f"_{_stem(model)}" if len(by_model) > 1 else ""
        if method_curves(methods, ENTROPY):
            figure = entropy_figure(methods, styles)
            caption = SMOOTHING + _runs(methods)
            figures.append(_named(f"entropy{suffix}", f"Token entropy, {model}", caption, figure))
        if training_panels(methods):
            figure = training_figure(methods, styles)
            caption = SMOOTHING + _runs(methods)
            figures.append(_named(f"training{suffix}", f"Training, {model}", caption, figure))
        if monitor_panels(methods):
            figure = monitors_figure(methods, styles)
            caption = MONITORS + SMOOTHING + _runs(methods)
            figures.append(_named(f"monitors{suffix}", f"Diagnostics, {model}", caption, figure))
    if covered:
        caption = (
            "Share of the tokens of worked solutions that are among the K most likely ones of the model, the solution "
            "so far given; bands: 95 % intervals over problems. Hollow: published."
        )
        figure = coverage_figure(covered, as_recall(published("coverage")))
        figures.append(_named("oracle_coverage", "Oracle coverage", caption, figure))
    return figures


def _evaluated(
    measurements: Sequence[Measurement], paper: Sequence[Measurement], styles: dict[str, Style]
) -> Iterator[NamedFigure]:
    items = without_variants(series([item for item in measurements if not item.held_out]))
    if pareto_points(measurements):
        caption = (
            "Pass@1 against Pass@K, means over the benchmarks that all methods of a panel have; crosses: "
            f"{interval_note(items)}. {_seeds(items)} "
            "Hollow: published. The dashed arrow marks a gain of Pass@1 that is paid for with Pass@K."
        )
        figure = pareto_figure(measurements, styles, published=paper)
        yield _named("pareto", "Efficiency against coverage", caption, figure)
    if any(item.pass_at_k for item in shown_methods(measurements)):
        caption = f"pass@k against k, unbiased; bands: {interval_note(items)}. {_seeds(items)}"
        yield _named("pass_at_k", "What more samples buy", caption, pass_at_k_figure(measurements, styles))


def _along_training(lines: Sequence[Trajectory], styles: dict[str, Style]) -> Iterator[NamedFigure]:
    """One figure for each block, benchmark and number of samples."""
    together: dict[tuple[str, str, int], list[Trajectory]] = {}
    for line in lines:
        together.setdefault((line.block, line.benchmark, line.num_samples), []).append(line)
    for (block, benchmark, num_samples), group in together.items():
        suffix = f"_{_stem(block)}_{_stem(benchmark)}_{num_samples}" if len(together) > 1 else ""
        items = series([line.points[-1][1] for line in group])
        caption = (
            f"Snapshots of a training run, {num_samples} samples a problem under the same seeds at every step; bands: "
            f"{interval_note(items)}. Dotted: the model before training, with its interval. {_seeds(items)}"
        )
        title = f"Along training, {block}, {benchmark_name(benchmark)}"
        yield _named(f"collapse{suffix}", title, caption, collapse_figure(group, styles))


def _swept(measurements: Sequence[Measurement], defaults: Defaults) -> Iterator[NamedFigure]:
    paper = as_measurements(published("sensitivity"))
    swept = swept_methods(measurements)
    for block, method in swept:
        usual = next((defaults[algo] for algo, name in METHODS.items() if name == method and algo in defaults), {})
        theirs = [item for item in paper if item.benchmark in {ours.benchmark for ours in measurements}]
        panels = sensitivity_panels(measurements, block=block, method=method, defaults=usual, published=theirs)
        if panels:
            suffix = f"_{_stem(block)}_{_stem(method)}" if len(swept) > 1 else ""
            chosen = evaluated_or_held_out(measurements)
            items = series([item for item in chosen if (item.block, item.method) == (block, method)])
            caption = (
                f"Mean over benchmarks, one setting varied at a time; vertical lines: {interval_note(items)}. "
                f"{_seeds(items)} Star: the default. Hollow: published."
            )
            figure = sensitivity_figure(panels)
            yield _named(f"sensitivity{suffix}", f"Sensitivity of {method} on {block}", caption, figure)


def _runs(methods: RunsByMethod) -> str:
    return ", ".join(f"{method} {len(runs)}" for method, runs in methods.items()) + "."


def _seeds(items: Sequence[Series]) -> str:
    """How many training seeds are behind each line or point."""
    measured: dict[str, list[Measurement]] = {}
    for item in items:
        measured.setdefault(item.name, []).extend(item.by_benchmark.values())
    counts = {name: num_seeds(of_name) for name, of_name in measured.items()}
    trained = [f"{name} {count}" for name, count in counts.items() if count.strip("–")]
    return f"Training seeds: {', '.join(trained)}." if trained else ""


def _named(name: str, title: str, caption: str, figure: Figure) -> NamedFigure:
    return NamedFigure(name=name, title=title, caption=caption, figure=figure)


def _stem(name: str) -> str:
    """A printed name as part of a file name."""
    return "".join(letter if letter.isalnum() else "_" for letter in name.lower()).strip("_")

"""All figures of a report, named and captioned, from everything that was read."""

from collections.abc import Iterator, Mapping, Sequence

from apo_lab.reporting.axes import Defaults
from apo_lab.reporting.figures.canvas import NamedFigure
from apo_lab.reporting.figures.collapse import Trajectory, collapse_figure, trajectories
from apo_lab.reporting.figures.coverage import coverage_figure
from apo_lab.reporting.figures.pass_at_k import pareto_figure, pareto_points, pass_at_k_figure, shown_methods
from apo_lab.reporting.figures.sensitivity import sensitivity_figure, sensitivity_panels
from apo_lab.reporting.figures.training import (
    DIAGNOSTICS,
    ENTROPY,
    TRAINING,
    RunsByMethod,
    curve_panels,
    curves_figure,
    entropy_figure,
    method_curves,
    runs_by_method,
)
from apo_lab.reporting.names import algo_of, benchmark_name, slug
from apo_lab.reporting.published import as_measurements, published
from apo_lab.reporting.records import Covered, Measurement, RunCard
from apo_lab.reporting.style import Style, styles_of
from apo_lab.reporting.tables.sensitivity import swept_methods
from apo_lab.reporting.tables.series import (
    Series,
    evaluated,
    interval_note,
    num_seeds,
    series,
    series_of,
    without_variants,
)

SMOOTHING = (
    "Strong lines: mean over seeds, each smoothed over the last twentieth of its run; bands: smallest to largest seed; "
    "faint lines: runs as logged. Training seeds: "
)

MONITORS = "Dotted: 0 of a difference or a count, the alarm's threshold, or else the first logged value, of the base. "


def report_figures(
    runs: Sequence[RunCard],
    measurements: Sequence[Measurement],
    covered: Sequence[Covered] = (),
    defaults: Defaults | None = None,
    snapshots: Sequence[Measurement] = (),
) -> list[NamedFigure]:
    """Every figure that there is data for; a method has the same style in each.

    Args:
        runs: the training runs.
        measurements: of evaluations and of the runs' held-out problems, from `evaluations.measurements`.
        covered: coverage of worked solutions.
        defaults: what a run uses where nothing is overridden; the same as `measurements` was given.
        snapshots: from `evaluations.snapshot_measurements`.
    """
    paper = as_measurements(published("main_results"))
    by_model = runs_by_method(runs, defaults)
    lines = trajectories(snapshots)
    names = [*(item.name for item in (*measurements, *paper)), *(line.method for line in lines)]
    styles = styles_of([*names, *(method for methods in by_model.values() for method in methods)])
    return [
        *_evaluated(measurements, paper, styles),
        *_along_training(lines, styles),
        *_swept(measurements, defaults or {}),
        *_logged(by_model, styles),
        *_covered(covered),
    ]


def _logged(by_model: Mapping[str, RunsByMethod], styles: dict[str, Style]) -> Iterator[NamedFigure]:
    for model, methods in by_model.items():
        suffix = f"_{slug(model)}" if len(by_model) > 1 else ""
        caption = SMOOTHING + ", ".join(f"{method} {len(runs)}" for method, runs in methods.items()) + "."
        if method_curves(methods, ENTROPY):
            yield NamedFigure(f"entropy{suffix}", f"Token entropy, {model}", caption, entropy_figure(methods, styles))
        if shown := curve_panels(methods, TRAINING):
            yield NamedFigure(f"training{suffix}", f"Training, {model}", caption, curves_figure(shown, styles))
        if shown := curve_panels(methods, DIAGNOSTICS):
            figure = curves_figure(shown, styles)
            yield NamedFigure(f"monitors{suffix}", f"Diagnostics, {model}", MONITORS + caption, figure)


def _covered(covered: Sequence[Covered]) -> Iterator[NamedFigure]:
    caption = (
        "Share of the tokens of worked solutions that are among the K most likely ones of the model, the solution "
        "so far given; bands: 95 % intervals over problems. Hollow: published."
    )
    if covered:
        figure = coverage_figure(covered)
        yield NamedFigure("oracle_coverage", "Oracle coverage", caption, figure)


def _evaluated(
    measurements: Sequence[Measurement], paper: Sequence[Measurement], styles: dict[str, Style]
) -> Iterator[NamedFigure]:
    items = without_variants(series(evaluated(measurements)))
    if pareto_points(measurements):
        caption = (
            "Pass@1 against Pass@K, means over the benchmarks that all methods of a panel have; crosses: "
            f"{interval_note(items)}. {_seeds(items)} "
            "Hollow: published. The dashed arrow marks a gain in Pass@1 with a loss in Pass@K."
        )
        figure = pareto_figure(measurements, styles, published=paper)
        yield NamedFigure("pareto", "Efficiency against coverage", caption, figure)
    if any(item.pass_at_k for item in shown_methods(measurements)):
        caption = f"pass@k against k, unbiased; bands: {interval_note(items)}. {_seeds(items)}"
        yield NamedFigure("pass_at_k", "pass@k against k", caption, pass_at_k_figure(measurements, styles))


def _along_training(lines: Sequence[Trajectory], styles: dict[str, Style]) -> Iterator[NamedFigure]:
    """One figure for each block, benchmark and number of samples."""
    together: dict[tuple[str, str, int], list[Trajectory]] = {}
    for line in lines:
        together.setdefault((line.block, line.benchmark, line.num_samples), []).append(line)
    for (block, benchmark, num_samples), group in together.items():
        suffix = f"_{slug(block)}_{slug(benchmark)}_{num_samples}" if len(together) > 1 else ""
        items = series([line.points[-1][1] for line in group])
        caption = (
            f"Snapshots of a training run, {num_samples} samples a problem under the same seeds at every step; bands: "
            f"{interval_note(items)}. Dotted: the model before training, with its interval. {_seeds(items)}"
        )
        title = f"Along training, {block}, {benchmark_name(benchmark)}"
        yield NamedFigure(f"collapse{suffix}", title, caption, collapse_figure(group, styles))


def _swept(measurements: Sequence[Measurement], defaults: Defaults) -> Iterator[NamedFigure]:
    paper = as_measurements(published("sensitivity"))
    swept = swept_methods(measurements)
    for block, method in swept:
        usual = defaults.get(algo_of(method), {})
        theirs = [item for item in paper if item.benchmark in {ours.benchmark for ours in measurements}]
        panels = sensitivity_panels(measurements, block=block, method=method, defaults=usual, published=theirs)
        if panels:
            suffix = f"_{slug(block)}_{slug(method)}" if len(swept) > 1 else ""
            items = series_of(measurements, block, method)
            caption = (
                f"Mean over benchmarks, one setting varied at a time; vertical lines: {interval_note(items)}. "
                f"{_seeds(items)} Star: the default. Hollow: published."
            )
            figure = sensitivity_figure(panels)
            yield NamedFigure(f"sensitivity{suffix}", f"Sensitivity of {method} on {block}", caption, figure)


def _seeds(items: Sequence[Series]) -> str:
    """The number of training seeds of each line or point."""
    measured: dict[str, list[Measurement]] = {}
    for item in items:
        measured.setdefault(item.name, []).extend(item.by_benchmark.values())
    counts = {name: num_seeds(of_name) for name, of_name in measured.items()}
    trained = [f"{name} {count}" for name, count in counts.items() if count.strip("–")]
    return f"Training seeds: {', '.join(trained)}." if trained else ""

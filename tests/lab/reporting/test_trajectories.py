"""Snapshots along a run: averaged over seeds step by step, against the model before training; ends go into tables."""

from dataclasses import replace
from pathlib import Path

import pytest
from apo_lab.reporting.figures.collapse import collapse_figure, trajectories

from apo_lab.reporting.evaluations import measurements, snapshot_measurements
from apo_lab.reporting.figures.report import report_figures
from apo_lab.reporting.records import Evaluated, Evaluations
from apo_lab.reporting.style import styles_of
from report_records import make_result, make_run

SMALL = {"num_problems": 8, "num_samples": 4}


def snapshot(run, step, shift=0.0):
    """The run's evaluation at a step; all runs begin as one model."""
    result = make_result(None if step == 0 else run.algo, **SMALL)
    model = replace(
        result.model,
        run=str(run.folder),
        step=step,
        weights_sha256=f"{1000 * int(run.seed) + step if step else 0:064x}",
        seed=None,
    )
    entropy = result.metrics["entropy"]
    metrics = {**result.metrics, "entropy": replace(entropy, value=entropy.value + shift)}
    by_problem = {"entropy": (entropy.value + shift,) * 8}
    path = run.folder / "evaluation" / f"step_{step:06d}" / "aime2024" / "results.json"
    return Evaluated(path=path, result=replace(result, model=model, metrics=metrics, by_problem=by_problem), run=run)


@pytest.fixture
def runs():
    return [replace(run, config={**run.config, "trainer.max_steps": "20"}) for run in map(_run, (1, 2))]


def _run(seed):
    return make_run("apo", seed=seed, num_steps=20, folder=f"/outputs/apo_{seed}")


def evaluations(runs, steps=(0, 10, 20), shifts=(0.0, 0.2)):
    found = [snapshot(run, step, shift=shift) for run, shift in zip(runs, shifts, strict=True) for step in steps]
    return Evaluations(results=tuple(found))


def test_a_line_has_each_step_averaged_over_seeds_and_the_model_before_training_once(runs):
    [(where, lines)] = trajectories(snapshot_measurements(runs, evaluations(runs))).items()
    assert where == ("Qwen2.5-Math-7B", "aime2024", 4)
    assert [(step, len(item.policies)) for step, item in lines["APO"].items()] == [(10, 2), (20, 2)]
    # The factory's entropy is 0.3, of the second seed 0.2 more.
    assert lines["APO"][10].metrics["entropy"].value == pytest.approx(0.4)
    assert list(lines["Base"]) == [0]
    assert lines["Base"][0].metrics["entropy"].value == pytest.approx(0.5)


def test_a_step_that_one_seed_lacks_is_no_point_of_the_line(runs):
    both = evaluations(runs).results
    [lines] = trajectories(snapshot_measurements(runs, Evaluations(results=both[:-1]))).values()
    assert list(lines["APO"]) == [10]


def test_of_the_snapshots_only_the_ends_count_in_tables(runs):
    found = measurements(runs, evaluations(runs))
    assert sorted((item.method, item.seed, item.which) for item in found) == [
        ("APO", "1", ""),
        ("APO", "2", ""),
        ("Base", "", ""),
    ]
    # Its own evaluation stands for an end.
    last = evaluations(runs).results[2]
    itself = replace(last, result=replace(last.result, model=replace(last.result.model, step=None)), path=Path("/x"))
    more = Evaluations(results=(*evaluations(runs).results, itself))
    assert len(measurements(runs, more)) == 3


def test_the_figure_has_a_panel_a_metric_and_the_base_as_a_horizontal_line(runs):
    [lines] = trajectories(snapshot_measurements(runs, evaluations(runs))).values()
    figure = collapse_figure(lines, styles_of(["APO"]), 4)
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert titles == ["Pass@1", "Pass@4", "Token entropy [nats]"]
    axes = figure.axes[2]
    horizontal, curve = (line.get_ydata() for line in axes.get_lines())
    assert list(horizontal) == pytest.approx([0.5, 0.5])
    assert list(curve) == pytest.approx([0.4, 0.4])
    assert list(axes.get_lines()[1].get_xdata()) == [10, 20]


def test_a_report_draws_it(runs):
    found = snapshot_measurements(runs, evaluations(runs))
    [figure] = [f for f in report_figures([], [], snapshots=found) if f.name.startswith("collapse")]
    assert figure.title == "Along training, Qwen2.5-Math-7B, AIME 24"
    assert "4 samples a problem" in figure.caption

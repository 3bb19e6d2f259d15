"""Snapshots along a run: drawn over steps against the model before training."""

from dataclasses import replace

import pytest

from apo_lab.reporting.evaluations import measurements, with_snapshots
from apo_lab.reporting.figures.report import report_figures
from apo_lab.reporting.records import Evaluated, Evaluations
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


def test_snapshots_are_metrics_of_their_run_at_their_step(runs):
    first, _ = with_snapshots(runs, evaluations(runs))
    found = first.metrics["snapshot/aime2024/entropy"].dropna()
    # The factory's entropy is 0.5 before training and 0.3 after it.
    assert found.to_dict() == {0: 0.5, 10: pytest.approx(0.3), 20: pytest.approx(0.3)}
    assert measurements(runs, evaluations(runs)) == (), "a snapshot stands in no table"
    assert "snapshot/aime2024/pass@2" not in first.metrics
    assert first.metrics["train/entropy"].equals(runs[0].metrics["train/entropy"].reindex(range(21)))


def test_the_figure_has_a_panel_a_metric(runs):
    [figure] = [f for f in report_figures(with_snapshots(runs, evaluations(runs)), []) if f.name == "collapse"]
    assert figure.title == "Snapshots along training, Qwen2.5-Math-7B"
    assert "APO 2" in figure.caption
    titles = [axes.get_title(loc="left") for axes in figure.figure.axes][:3]
    assert titles == ["Pass@1, aime2024", "Pass@4, aime2024", "Token entropy [nats], aime2024"]

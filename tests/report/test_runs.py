"""What is read from run folders, which settings a sweep varied, and snapshots along a run."""

from dataclasses import replace
from pathlib import Path

import pytest

from apo_lightning.common.identity import sealed
from apo_lightning.errors import ConfigError
from apo_lightning.evaluation.loading import write_record
from apo_report.commands.report import training_defaults
from apo_report.evaluations import measurements, read_evaluations, with_snapshots
from apo_report.figures.report import report_figures
from apo_report.records import Evaluated, Evaluations, Measurement, RunCard
from apo_report.runs import axes, read_runs, settings
from report_cases import result, write_run
from report_records import make_result, make_run

DEFAULTS = {"apo": {"algo.loss.pull_coef": "0.1"}}


def test_a_run_is_read_with_its_method_model_and_series(tmp_path: Path) -> None:
    write_run(tmp_path / "run", seed=3)
    (run,) = read_runs([tmp_path])
    assert (run.algo, run.label, run.model, run.seed) == ("apo", "APO", "tiny", "3")
    # Step 1 stands there twice, as after a resume; step 2 is NaN; step 0 has no entropy.
    assert run.metrics["train/entropy"].dropna().to_dict() == {1: 2.0}
    assert run.metrics["val/arithmetic/pass@1"].dropna().to_dict() == {0: 0.25}


def test_a_run_is_found_once_through_two_folders(tmp_path: Path) -> None:
    for index in range(2):
        write_run(tmp_path / "multirun" / str(index))
    write_run(tmp_path / "checkpoints" / "not searched")
    with pytest.raises(ConfigError, match="nowhere is no folder"):
        read_runs([tmp_path / "nowhere"])
    assert [run.folder.name for run in read_runs([tmp_path, tmp_path / "multirun"])] == ["0", "1"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (".hydra/config.yaml", "a: [", r"config\.yaml: cannot be read"),
        (".hydra/config.yaml", "[1]", r"config\.yaml: holds list, not dict"),
        (".hydra/hydra.yaml", "hydra: {}", r"hydra\.yaml lacks 'runtime'"),
        ("summary.json", "{", r"summary\.json: not JSON"),
        ("metrics.csv", "step,a\nx,1\n", r"metrics\.csv: Unable to parse string .x. at position 0"),
        ("metrics.csv", "epoch,a\n1,1\n", r"metrics\.csv: has no column `step`"),
        ("identity.json", "{}", r"identity\.json has format None"),
        (
            "identity.json",
            sealed({"format": 1, "identity": {"a": [1]}}).decode(),
            r"identity\.json is damaged: identity\.a",
        ),
    ],
)
def test_a_broken_file_is_named_in_one_line(tmp_path: Path, name: str, content: str, message: str) -> None:
    (write_run(tmp_path / "run") / name).write_text(content)
    with pytest.raises(ConfigError, match=message) as caught:
        read_runs([tmp_path])
    assert "\n" not in str(caught.value)


def run(pull: str | None = None, *, algo: str = "apo", seed: str = "1", **config: str) -> RunCard:
    composed = {"seed": seed, "algo.loss.pull_coef": pull or "0.1"} | config
    return RunCard(folder=Path(f"{algo}{pull}{seed}"), algo=algo, model="tiny", config=composed)


def test_methods_and_seeds_are_no_axes_but_settings_are() -> None:
    runs = [run("0.10"), run("0.1"), run(seed="2"), run(algo="grpo")]
    assert axes(runs) == ()
    assert axes([*runs, run("0.02")]) == ("algo.loss.pull_coef",)


def test_an_experiment_stands_for_the_config_keys_in_which_runs_differ() -> None:
    experiments = {"paper/sensitivity_pull_0.02": run("0.02", seed="9"), "paper/apo": run("0.1")}
    runs = [replace(one, config={**one.config, "experiment": name}) for name, one in experiments.items()]
    assert axes(runs) == ("algo.loss.pull_coef",)


def test_a_group_stands_for_the_keys_below_it_and_a_key_for_those_that_follow_it(tmp_path: Path) -> None:
    assert axes([run(data=name, **{"data.path": name}) for name in ("locks", "countdown")]) == ("data",)
    for rate in (1, 2):
        config = {"optimizer": {"lr": rate}, "critic": {"lr": "${optimizer.lr}"}}
        write_run(tmp_path / str(rate), config=config)
    runs = read_runs([tmp_path])
    assert axes(runs) == ("optimizer.lr",)
    assert [run.config["critic.lr"] for run in runs] == ["1", "2"]


def test_the_defaults_are_those_that_training_composes() -> None:
    defaults = training_defaults({"apo", "grpo", "dr_grpo", "of an older version"})
    assert defaults.keys() == {"apo", "grpo", "dr_grpo"}
    expected = {"algo.loss.pull_coef": "0.1", "group_size": "8", "optimizer.lr": "1e-05", "data.max_operand": "99"}
    assert {key: defaults["apo"][key] for key in expected} == expected
    assert "algo.loss.pull_coef" not in defaults["grpo"]
    assert defaults["apo"]["aggregation"] == "token_mean"
    assert defaults["dr_grpo"]["aggregation"] == "sequence_mean_token_sum_norm"
    keys = ["algo.loss.pull_coef", "group_size"]
    assert settings(run(), keys, defaults) == {}
    assert settings(run("0.02"), keys, defaults) == {"algo.loss.pull_coef": "0.02"}


def test_an_evaluation_inside_a_run_belongs_to_it_whatever_its_card_says(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    path = folder / "evaluation" / "math500" / "results.json"
    write_record(path, result(algo="apo", run="/gone"))
    write_record(tmp_path / "base" / "math500" / "results.json", result())
    found = read_evaluations([tmp_path], read_runs([tmp_path]))
    assert [(item.method, item.run.folder if item.run else None) for item in found.results] == [
        ("Base", None),
        ("APO", folder),
    ]


def test_evaluations_without_their_runs_tell_settings_by_the_typed_overrides(tmp_path: Path) -> None:
    for index, override in enumerate(["algo.loss.pull_coef=0.02", "algo.loss.pull_coef=0.10"]):
        card = {"algo": "apo", "run": f"/gone/{index}", "overrides": ("algo=apo", override)}
        write_record(tmp_path / str(index) / "results.json", result(**card))
    found = measurements((), read_evaluations([tmp_path]), DEFAULTS)
    assert [item.settings for item in found] == [{"algo.loss.pull_coef": "0.02"}, {"algo.loss.pull_coef": "0.1"}]


def test_a_summary_gives_the_untrained_policy_and_the_gain(tmp_path: Path) -> None:
    write_run(tmp_path / "run", before=0.25, after=0.75)
    base, trained = measurements(read_runs([tmp_path]), Evaluations(), DEFAULTS)
    assert (base.method, base.metrics["pass@1"].value) == ("Base", 0.25)
    assert (trained.method, trained.metrics["pass@1"].value, trained.metrics["gain"].value) == ("APO", 0.75, 0.5)
    assert isinstance(trained, Measurement)
    assert trained.held_out


def test_exact_values_of_other_problems_or_of_a_run_that_stopped_are_kept_apart(tmp_path: Path) -> None:
    for name, last in (("one", 3), ("two", 2)):
        folder = write_run(tmp_path / name, config={"trainer": {"max_steps": 3}}, problems=name)
        (folder / "metrics.csv").write_text(f"step,val/locks/exact/pass@1\n0,0.25\n{last},0.5\n")
        (folder / "summary.json").unlink()
    found = measurements(read_runs([tmp_path]), Evaluations(), DEFAULTS)
    assert [(item.method, item.settings, item.metrics["pass@1"].value) for item in found] == [
        *(("Base", {}, 0.25), ("APO", {}, 0.5)),
        *(("Base", {}, 0.25), ("APO", {"steps": "2"}, 0.5)),
    ]
    first, second = {item.block for item in found[:2]}, {item.block for item in found[2:]}
    assert len(first) == len(second) == 1
    assert first != second


def test_equal_ids_with_other_answers_are_other_problems(tmp_path: Path) -> None:
    for seed, problems in ((1, "1f"), (2, "1f"), (3, "07")):
        write_run(tmp_path / str(seed), seed=seed, problems=problems)
    blocks = [item.block for item in measurements(read_runs([tmp_path]), Evaluations())]
    assert blocks == ["tiny, problems = 20 (1f)"] * 4 + ["tiny, problems = 20 (07)"] * 2


@pytest.mark.parametrize("lost", ["the file", "the set"])
def test_a_run_that_does_not_say_what_it_read_is_refused(tmp_path: Path, lost: str) -> None:
    path = write_run(tmp_path / "run") / "identity.json"
    if lost == "the file":
        path.unlink()
        with pytest.raises(ConfigError, match=r"identity\.json is missing: .* name other folders in runs="):
            read_runs([tmp_path])
    else:
        path.write_bytes(sealed({"format": 1, "identity": {}}))
        with pytest.raises(ConfigError, match=r"does not know the problems of validation on arithmetic"):
            measurements(read_runs([tmp_path]), Evaluations())


def test_a_summary_of_another_shape_is_refused(tmp_path: Path) -> None:
    (write_run(tmp_path / "run") / "summary.json").write_text('{"held_out": {"arithmetic": {}}}')
    with pytest.raises(ConfigError, match=r"held_out\.arithmetic lacks"):
        measurements(read_runs([tmp_path]), Evaluations())


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


def test_a_run_measured_at_step_0_as_others_at_their_end_is_their_base_model(runs):
    final = evaluations(runs, steps=(20,)).results[0]
    final = replace(final, result=replace(final.result, model=replace(final.result.model, step=None, seed=1)))
    found = Evaluations(results=(*evaluations(runs, steps=(0,)).results, final))
    # Two runs of one model: its weights count once.
    assert [item.method for item in measurements(runs, found)] == ["APO", "Base"]
    otherwise = replace(final.result, settings=replace(final.result.settings, temperature=0.6))
    found = Evaluations(results=(*found.results[:2], replace(final, result=otherwise)))
    assert [item.method for item in measurements(runs, found)] == ["APO"]
    assert "collapse" not in [figure.name for figure in report_figures(with_snapshots(runs, found), [])]


def test_the_figure_has_a_panel_a_metric(runs):
    [figure] = [f for f in report_figures(with_snapshots(runs, evaluations(runs)), []) if f.name == "collapse"]
    assert figure.title == "Snapshots along training, Qwen2.5-Math-7B"
    assert figure.caption.endswith("Training seeds: 2.")
    titles = [axes.get_title(loc="left") for axes in figure.figure.axes][:3]
    assert titles == ["Pass@1, aime2024", "Pass@4, aime2024", "Token entropy [nats], aime2024"]

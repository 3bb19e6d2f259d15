"""The laboratory end to end: a base model, runs, a revival, a page; and what is refused."""

import html
import json

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf

from apo_lab.laboratory.runs import plan
from apo_lab.reporting.laboratory.baselines import BASE_WEIGHTS, TEMPERATURES, averaged_name, temperature_name
from apo_lab.reporting.laboratory.predictions import PREDICTIONS
from apo_lab.reporting.laboratory.reading import read_laboratory
from apo_lab.reporting.laboratory.sweeps import sweep_of
from apo_lab.statistics.exact import exact_pass_at_k
from apo_lightning.errors import ConfigError
from apo_lightning.run.choices import composed
from processes import start_script
from running import finish, read_metrics, start_cold

SIZES = ["data.num_validation=16", "data.num_train=256"]
QUICK = (
    "puzzles=[locks]",
    "seeds=[1,2]",
    "only=[grpo,apo]",
    "sweep_seeds=[1]",
    *(f"~sweeps.{name}" for name in ("k1", "k4", "beta002", "beta020", "lambda100", "lambda110", "lambda120")),
    "revivals=[apo]",
    "overrides=" + json.dumps(["trainer.max_steps=2", "trainer.val_check_interval=1", *SIZES]),
    "base_overrides=" + json.dumps(["pretraining.num_steps=4", "pretraining.scheduler.num_warmup_steps=1", *SIZES]),
)


def lab_config(**changes):
    return OmegaConf.merge(composed("lab"), changes)


@pytest.mark.slow
def test_a_laboratory_from_its_base_model_to_its_page(tmp_path):
    """In one test, since a fixture would make all runs once in every process that tests."""
    lab, bases = tmp_path / "lab", tmp_path / "bases"
    arguments = (*QUICK, f"output_dir={lab}", f"bases={bases}")
    assert "9 of 9" in finish(start_cold("lab", *arguments))
    runs = {(run.method, run.seed): run for run in read_laboratory(lab)}
    twice = [(method, seed) for method in ("apo", "grpo", "revival_apo") for seed in (1, 2)]
    assert sorted(runs) == [*twice, ("sweep_beta005", 1)]
    assert [[value for value, _ in values] for values in sweep_of(list(runs.values()), "locks").values()] == [
        [0.05, 0.1]
    ]
    page = (lab / "report" / "report.html").read_text()
    assert PREDICTIONS[0].statement in html.unescape(page)

    all_begin_with_the_base_model_and_a_revival_with_the_collapsed_one(runs, bases)
    the_numbers_are_those_of_the_file_of_log_probs(runs["apo", 1])
    a_run_is_measured_again_from_its_weights(runs["apo", 1].folder)
    baselines_are_measured_on_the_last_policy(runs["grpo", 1])

    finished = {path: path.stat().st_mtime_ns for path in lab.rglob("finished.json")}
    assert "9 of 9 runs are finished already" in start_script("lab", *arguments).finish()
    assert finished == {path: path.stat().st_mtime_ns for path in lab.rglob("finished.json")}


def all_begin_with_the_base_model_and_a_revival_with_the_collapsed_one(runs, bases):
    base = json.loads((bases / "locks" / "base.json").read_text())["metrics"]["pass@8"]
    for method in ("grpo", "apo"):
        assert runs[method, 1].points[0]["pass@8"] == pytest.approx(base, rel=1e-4)
    recovered = runs["revival_apo", 2].points[0]["pass@8"]
    assert recovered == pytest.approx(runs["grpo", 2].points[-1]["pass@8"], rel=1e-4)


def the_numbers_are_those_of_the_file_of_log_probs(run):
    logprobs = np.load(run.folder / "exact" / "step_000002.npz")["logprobs"]
    content = json.loads((run.folder / "exact" / "answers.json").read_text())
    valid = [[is_valid for _, _, is_valid in row["answers"]] for row in content["problems"]]
    success = (np.exp(logprobs.astype(np.float64)).reshape(16, 12) * np.array(valid)).sum(1)
    expected = exact_pass_at_k(torch.from_numpy(success), 64).mean().item()
    assert run.points[-1]["pass@64"] == pytest.approx(expected, abs=1e-6)
    logged = [row["val/locks/exact/pass@64"] for row in read_metrics(run.folder)]
    assert float([value for value in logged if value][-1]) == pytest.approx(expected, abs=1e-6)


def baselines_are_measured_on_the_last_policy(run):
    folder = run.folder.parents[1] / "baselines_grpo" / "seed_1"
    names = {*map(temperature_name, TEMPERATURES), *map(averaged_name, BASE_WEIGHTS)}
    assert {path.name for path in folder.iterdir() if path.is_dir()} == names
    last = np.load(run.folder / "exact" / "step_000002.npz")["logprobs"]
    for name in names:
        found = np.load(folder / name / "step_000000.npz")["logprobs"]
        assert found.shape == last.shape
        # Nothing was learnt in two steps, so the average of two policies is each of them.
        assert np.array_equal(found, last) == name.startswith("averaged")


def a_run_is_measured_again_from_its_weights(run):
    said = start_script("exact", f"run={run}").finish()
    found = json.loads((run / "evaluation" / "exact_locks" / "metrics.jsonl").read_text())
    expected = json.loads((run / "exact" / "metrics.jsonl").read_text().splitlines()[-1])
    for key in ("pass@64", "alive", "support/strategy", "entropy/digit"):
        assert found[key] == pytest.approx(expected[key], abs=1e-6)
    assert f"pass@64 {found['pass@64']:.4f}" in said


def test_seeds_come_one_after_the_other_and_controls_on_their_puzzles_alone():
    jobs = [job for job in plan(lab_config()) if not job.is_base]
    firsts = [job.seed for job in jobs if job.after is None]
    assert firsts == sorted(firsts)
    assert {job.puzzle for job in jobs if job.method == "push_only"} == {"locks"}
    assert {job.puzzle for job in jobs if job.method == "apo"} == {"locks", "countdown"}


def test_sweeps_are_made_where_seeds_are_given_and_change_one_coefficient_of_apo():
    assert not any(job.method.startswith("sweep_") for job in plan(lab_config()))
    swept = [job for job in plan(lab_config(sweep_seeds=[1, 2])) if job.method.startswith("sweep_")]
    assert {(job.puzzle, job.seed) for job in swept} == {("locks", 1), ("locks", 2)}
    assert all(job.overrides[1] == "algo=apo" for job in swept)
    changed = [[word for word in job.overrides if word.startswith("algo.loss.")] for job in swept]
    assert {len(words) for words in changed} == {1}
    assert len({words[0] for words in changed}) == len(lab_config().sweeps)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"only": ["grppo"]}, "only has 'grppo': choose from grpo,"),
        ({"puzzles": ["lock"]}, "puzzles has 'lock': choose from countdown, locks"),
        ({"seeds": []}, r"seeds is \[\]"),
        ({"processes": 0}, "processes 0"),
    ],
)
def test_what_cannot_be_run_is_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        plan(lab_config(**changes))

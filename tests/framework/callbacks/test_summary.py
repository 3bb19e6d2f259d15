import importlib.metadata
import json
import math

import pytest
import torch
from torch import nn

from apo_lightning.callbacks import RunSummary, StepCallback
from apo_lightning.callbacks.summary import first_and_last, held_out_change
from apo_lightning.model.fingerprint import weights_sha256
from composing import tiny_policy
from factories import make_step, make_validation


def rewarding(step, max_steps):
    """Reward equals the step's number."""
    metrics = {"train/reward": float(step), "train/entropy": 1 / step, "train/pass@1": 0.5, "train/pass@2": 0.75}
    return make_step(step=step, max_steps=max_steps, metrics=metrics)


def learning(step):
    """Four problems; none correct before training, three of them after."""
    return make_validation(("incorrect",) * 8 if step == 0 else ("correct",) * 6 + ("incorrect",) * 2, step=step)


KEYS = "steps max_steps seed wall_seconds num_untrained_steps train held_out verdicts versions weights_sha256"


def test_a_run_leaves_its_summary_and_prints_it(scripted_run, capsys):
    run = scripted_run([RunSummary()], max_steps=12, step_output=rewarding, validation_output=learning)
    summary = json.loads((run.folder / "summary.json").read_text())
    assert list(summary) == KEYS.split()
    assert (summary["steps"], summary["max_steps"], summary["seed"]) == (12, 12, 7)
    # Steps 1-5 against 8-12.
    assert summary["train"]["metrics"]["train/reward"] == {"first": 3.0, "last": 10.0}
    assert summary["verdicts"] == {"correct": 12, "incorrect": 12, "unparsed": 0}
    assert summary["versions"]["torch"] == importlib.metadata.version("torch")
    assert summary["weights_sha256"] == weights_sha256(run.module.policy)
    sums = summary["held_out"]["sums"]
    assert (sums["step_before"], sums["step_after"], sums["num_problems"]) == (0, 12, 4)
    assert (sums["pass@1_before"], sums["pass@1_after"], sums["change"]["mean"]) == (0.0, 0.75, 0.75)
    assert 0 <= sums["change"]["low"] < 0.75 < sums["change"]["high"] <= 1
    # Counts of every problem, before and after: what a mean over runs needs for its interval.
    before, after = zip(*sums["num_correct"].values(), strict=True)
    num_samples = 4 * sums["samples_per_problem"]
    assert (sum(before) / num_samples, sum(after) / num_samples) == (0.0, 0.75)
    out = capsys.readouterr().out
    rows = {line.split("  ")[0]: line.split() for line in out.splitlines() if line}
    assert rows["reward"] == ["reward", "3.000", "10.000", "+7.000"]
    assert rows["pass@2"] == ["pass@2", "0.750", "0.750", "+0.000"]
    assert rows["entropy [nats]"][:2] == ["entropy", "[nats]"]
    assert "pass@1 0.000 at step 0 -> 0.750 at step 12" in out
    assert "paired 95% interval [" in out
    assert "completions: 12 correct, 12 incorrect" in out
    assert max(len(line) for line in out.splitlines() if "summary.json" not in line) <= 80


@pytest.mark.parametrize(
    ("shares", "said"),
    [
        ((1.0, 1.0), ["nothing was trained: no completion had a gradient"]),
        ((1.0, 0.75), []),
        ((1.0, 1.0, 0.75), ["2 steps trained nothing: no completion"]),
        (
            (1.0,) * 10,
            ["10 steps in a row no completion had a gradient", "reward 0.500, 97% of", "nothing was trained"],
        ),
    ],
)
def test_a_run_that_has_trained_nothing_says_so(shares, said, scripted_run, capsys):
    rest = {"train/reward": 0.5, "train/truncated_fraction": 0.97}

    def skipping(step, max_steps):
        metrics = {"train/skipped_fraction": shares[step - 1], **rest}
        return make_step(step=step, max_steps=max_steps, metrics=metrics)

    scripted_run([RunSummary()], max_steps=len(shares), step_output=skipping)
    out = capsys.readouterr().out
    assert all(words in out for words in said)
    assert ("no completion had a gradient" in out) == bool(said)


def test_the_comparison_follows_the_problem_and_not_its_place():
    before = {"accuracies": {"p0": 1.0, "p1": 0.0}, "samples_per_problem": 2, "metrics": {}}
    # By place every problem would have changed; by name none has.
    change = held_out_change({0: before, 5: before | {"accuracies": {"p1": 0.0, "p0": 1.0}}})["change"]
    assert change["mean"] == 0.0
    assert change["low"] < 0 < change["high"]


class StopAtThree(StepCallback):
    def setup(self, trainer, pl_module, stage):
        self.trainer = trainer

    def on_step(self, step):
        self.trainer.should_stop = step.step == 3


@pytest.mark.parametrize(("callbacks", "interval", "steps"), [([], 2, 4), ([], 100, 4), ([StopAtThree()], 100, 3)])
def test_the_table_is_printed_once_after_the_last_validation(callbacks, interval, steps, scripted_run, capsys):
    how = {"step_output": rewarding, "validation_output": learning}
    run = scripted_run([*callbacks, RunSummary()], max_steps=4, val_check_interval=interval, **how)
    assert capsys.readouterr().out.count("weights sha256") == 1
    assert json.loads((run.folder / "summary.json").read_text())["held_out"]["sums"]["step_after"] == steps


def test_first_and_last_share_no_step_and_skip_what_is_not_finite():
    values = enumerate([1.0, math.nan, 3.0, 5.0, 7.0, math.inf, 9.0], start=1)
    result = first_and_last({step: {"train/grad_norm": value} for step, value in values} | {8: {}})
    # Eight steps, the last without the number: four against four. 1, NaN, 3, 5 and 7, ∞, 9.
    assert result["num_edge_steps"] == 4
    assert result["metrics"]["train/grad_norm"] == {"first": 3.0, "last": 8.0}
    assert result["num_nonfinite"] == {"train/grad_norm": 2}
    assert first_and_last({})["num_edge_steps"] == 0


def test_a_resumed_run_knows_its_beginning(tmp_path):
    whole, before, after = RunSummary(), RunSummary(), RunSummary()
    for step in range(1, 9):
        for summary in (whole, before if step <= 4 else after):
            summary.on_step(rewarding(step, 8))
    for step, summaries in ((0, (whole, before)), (4, (whole, after))):
        for summary in summaries:
            summary.on_validated(learning(step))
    torch.save(before.state_dict(), tmp_path / "state.pt")
    after.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert after.state_dict() | {"seconds": 0} == whole.state_dict() | {"seconds": 0}


def test_the_hash_tells_weights_names_and_dtypes_apart():
    layer = nn.Linear(2, 1)
    original = weights_sha256(layer)
    assert weights_sha256(layer) == original
    assert weights_sha256(nn.Sequential(layer)) != original
    assert weights_sha256(nn.Linear(2, 1).to(torch.bfloat16)) != original
    with torch.no_grad():
        layer.bias.add_(2**-20)
    assert weights_sha256(layer) != original


def test_a_critics_head_is_no_weight_of_the_policy():
    """An export and an evaluation have none, and their hash is compared with the run's."""
    policy = tiny_policy()
    without = weights_sha256(policy)
    policy.value_head = nn.Linear(2, 1)
    assert weights_sha256(policy) == without

"""What need not run does not run, and nothing comes out differently. Whole runs on a random model."""

import json
import math
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import apo_lightning.module
import apo_lightning.run.training
import apo_lightning.step.passes
import apo_lightning.step.plan
import apo_lightning.step.update_record
from apo_lightning.common.phases import PhaseClock
from apo_lightning.model.policy import Policy
from apo_lightning.module import RLVRModule
from apo_lightning.parts.engine_check import EngineCheck
from apo_lightning.types import Needs
from running import SIGNAL, on_one_and_two_ranks, train_tiny, training_rows
from running import weights as final_weights

# Groups of two, so that every other one is all right or all wrong; eps=1, so that Adam does not blow up the last bits;
# decay and momentum, so that an optimizer step with a gradient of zero is not the same as none.
SIZES = ("prompts_per_minibatch=4", "group_size=2", "trainer.max_steps=3")
OPTIMIZER = ("optimizer.lr=1e-2", "optimizer.eps=1", "optimizer.weight_decay=0.5")
# A random model gets no sum right.
NO_SIGNAL = ("reward=numeric",)
MONITOR = (
    "+callbacks.monitor._target_=apo_lightning.callbacks.DistributionMonitor",
    "+callbacks.monitor.every_n_steps=2",
    "+callbacks.monitor.anchor_size=12",
)


def run(folder: Path, *overrides: str) -> tuple[dict[str, torch.Tensor], list[dict[str, float]]]:
    """Final weights, and the training rows of metrics.csv."""
    weights = final_weights(train_tiny(folder, *SIZES, *OPTIMIZER, *overrides))
    rows = [{name: float(value or "nan") for name, value in row.items()} for row in training_rows(folder)]
    return weights, rows


@pytest.fixture
def calls(monkeypatch):
    """What goes through the policy in training steps: counts of forwards, and completions scored as a reference."""
    seen = SimpleNamespace(training=False, with_gradient=0, without_gradient=0, reference=[], steps=[])
    hidden_states, as_reference, training_step = Policy.run_backbone, Policy.as_reference, RLVRModule.training_step

    def counted(self, microbatch):
        is_reference = not next(self.parameters()).requires_grad
        if seen.training and not is_reference:
            name = "with_gradient" if torch.is_grad_enabled() else "without_gradient"
            setattr(seen, name, getattr(seen, name) + 1)
        return hidden_states(self, microbatch)

    def counted_reference(self, microbatch, *args, **kwargs):
        seen.reference.append(microbatch)
        return as_reference(self, microbatch, *args, **kwargs)

    def watched_step(self, *args, **kwargs):
        seen.training = True
        output = training_step(self, *args, **kwargs)
        seen.training = False
        seen.steps.append(output["step_output"])
        return output

    monkeypatch.setattr(Policy, "run_backbone", counted)
    monkeypatch.setattr(Policy, "as_reference", counted_reference)
    monkeypatch.setattr(RLVRModule, "training_step", watched_step)
    return seen


def run_everything(monkeypatch):
    """Every loss says that any token can have a gradient."""
    monkeypatch.setattr(Needs, "gradient_mask", lambda needs, advantages, is_correct: torch.ones_like(is_correct))


@pytest.mark.parametrize(
    ("algo", "prompts_per_minibatch"),
    [("apo", 4), ("apo", 1), ("grpo", 1), ("grpo_kl", 4), ("grpo_kl_error_only", 1), ("nsr", 4)],
)
def test_what_is_skipped_changes_no_gradient_and_no_weight(tmp_path, monkeypatch, algo, prompts_per_minibatch):
    arguments = (*SIGNAL, f"algo={algo}", f"prompts_per_minibatch={prompts_per_minibatch}")
    skipping, rows = run(tmp_path / "skipping", *arguments)
    run_everything(monkeypatch)
    thorough, all_rows = run(tmp_path / "thorough", *arguments)
    for row, full in zip(rows, all_rows, strict=True):
        for name in ("train/reward", "train/loss", "train/grad_norm"):
            assert row[name] == pytest.approx(full[name], rel=1e-5, abs=1e-7), name
    for name in thorough:
        torch.testing.assert_close(skipping[name], thorough[name], rtol=1e-5, atol=1e-7)
    # Without this, there was nothing to skip. nsr drops what it does not learn from; grpo_kl learns from every token.
    if algo not in ("nsr", "grpo_kl"):
        assert max(row["train/skipped_fraction"] for row in rows) > 0
        assert max(row["train/skipped_fraction"] for row in all_rows) == 0


@pytest.mark.parametrize(
    ("algo", "prompts_per_minibatch"),
    [("algo=apo", 4), ("algo=apo", 2), ("algo=grpo", 2), ("algo=grpo_kl algo.loss.kl_coef=0", 4)],
)
def test_groups_that_teach_nothing_cost_one_small_forward_a_step(tmp_path, calls, algo, prompts_per_minibatch):
    sizes = (f"prompts_per_minibatch={prompts_per_minibatch}", "tokens_per_microbatch=100000")
    _, rows = run(tmp_path, *NO_SIGNAL, *algo.split(), *sizes)
    assert (calls.with_gradient, calls.without_gradient, len(calls.reference)) == (0, 3, 0)
    for row in rows:
        assert row["train/skipped_fraction"] == 1
        assert row["sync/logprob_gap"] < 1e-3
        assert row["train/grad_norm"] == row["train/num_empty_minibatches"] == row["train/num_skipped_steps"] == 0
        assert 0 < row["train/entropy"] < math.log(97)
        assert math.isnan(row["train/entropy_updated"])
        assert row["perf/update_tokens_per_second"] == row["train/num_nonfinite"] == 0


def test_an_optimizer_step_without_a_gradient_still_decays_the_weights(tmp_path):
    weights, _ = run(tmp_path / "decayed", *NO_SIGNAL, "algo=grpo")
    fresh, _ = run(tmp_path / "fresh", *NO_SIGNAL, "algo=grpo", "optimizer.weight_decay=0")
    for name, weight in fresh.items():
        # AdamW: w ← w·(1 − lr·decay), three times.
        torch.testing.assert_close(weights[name], weight * (1 - 1e-2 * 0.5) ** 3)


def test_the_reference_runs_the_wrong_completions_of_apo_alone(tmp_path, calls):
    _, rows = run(tmp_path, *SIGNAL, "algo=apo", "tokens_per_microbatch=100000")
    assert any(row["train/skipped_fraction"] > 0 for row in rows)
    expected = []
    for step in calls.steps:
        rollouts = step.rollouts
        right = rollouts.is_correct
        completions = torch.tensor([len(c.token_ids) for c in rollouts.completions]).view_as(right)
        mixed = right.any(1) & ~right.all(1)
        if mixed.any():
            prompts = sum(len(p.token_ids) for p, is_mixed in zip(rollouts.prompts, mixed, strict=True) if is_mixed)
            # The last token of a completion predicts nothing.
            expected.append(prompts + int((completions - 1)[mixed[:, None] & ~right].sum()))
    assert [len(part.input_ids) for part in calls.reference] == expected


def test_dropped_completions_are_not_run_and_are_counted(tmp_path, calls):
    _, rows = run(tmp_path, *SIGNAL, "algo=nsr", "tokens_per_microbatch=100000")
    assert (calls.with_gradient, calls.without_gradient) == (3, 0)
    for row, step in zip(rows, calls.steps, strict=True):
        right = step.rollouts.is_correct.flatten()[step.tokens.sequence_ids]
        assert row["train/skipped_fraction"] == pytest.approx(float(right.float().mean()))
        assert step.tokens.entropy[right].isnan().all()
        assert row["train/entropy_updated"] == pytest.approx(float(step.tokens.entropy[~right].mean()))


@pytest.mark.parametrize("prompts_per_minibatch", [4, 2])
def test_a_diagnostic_sees_all_tokens_and_moves_no_other_number(tmp_path, calls, prompts_per_minibatch):
    arguments = (*SIGNAL, "algo=apo", f"prompts_per_minibatch={prompts_per_minibatch}")
    alone, rows = run(tmp_path / "alone", *arguments)
    assert any(step.tokens.entropy.isnan().any() for step in calls.steps)
    calls.steps.clear()
    watched, watched_rows = run(tmp_path / "watched", *arguments, *MONITOR)
    due = calls.steps[1]
    for values in (due.tokens.entropy, due.tokens.max_prob, due.tokens.old_logprobs, due.tokens.ref_logprobs):
        assert values.isfinite().all()
    assert watched_rows[1]["support/num_tokens"] == len(due.tokens.entropy)
    assert [row["support/num_tokens"] > 0 for row in watched_rows] == [False, True, False]
    assert all(torch.equal(alone[name], watched[name]) for name in alone)
    for row, other in zip(rows, watched_rows, strict=True):
        for name in ("entropy", "max_prob", "entropy_updated", "skipped_fraction", "loss", "ratio_updated"):
            assert row[f"train/{name}"] == other[f"train/{name}"], name


def test_entropy_and_max_prob_of_all_tokens_are_the_same_whatever_the_algorithm_skips(tmp_path):
    sizes = (*SIGNAL, "trainer.max_steps=1", "prompts_per_step=64", "prompts_per_minibatch=64")
    rows = {algo: run(tmp_path / algo, *sizes, f"algo={algo}")[1][0] for algo in ("apo", "grpo_kl", "nsr")}
    for name in ("train/entropy", "train/max_prob"):
        assert len({row[name] for row in rows.values()}) == 1
    # Every token is run with grpo_kl: there the exact entropy has the same expectation.
    exact = rows["grpo_kl"]
    assert exact["train/skipped_fraction"] == 0
    assert exact["train/entropy"] == pytest.approx(exact["train/entropy_updated"], abs=0.1)
    assert exact["train/max_prob"] == pytest.approx(exact["train/max_prob_updated"], rel=1e-5)


def test_the_triggered_fraction_is_of_all_tokens(tmp_path, calls):
    _, rows = run(tmp_path / "apo", *SIGNAL, "algo=apo", "trainer.max_steps=2")
    assert any(row["train/skipped_fraction"] > 0 for row in rows)
    for row, step in zip(rows, calls.steps, strict=True):
        assert row["apo/triggered_fraction"] == pytest.approx(float((step.tokens.advantages < 0).float().mean()))
    _, rows = run(tmp_path / "nothing", *NO_SIGNAL, "algo=apo", "trainer.max_steps=1")
    assert rows[0]["apo/triggered_fraction"] == 0


def test_the_rollout_file_says_null_of_a_completion_that_was_not_run(tmp_path):
    writer = "+callbacks.rollout_writer._target_=apo_lightning.callbacks.RolloutWriter"
    run(tmp_path, *SIGNAL, "algo=nsr", writer, "trainer.max_steps=1")
    lines = [json.loads(line) for line in (tmp_path / "rollouts/step_000001.jsonl").read_text().splitlines()]
    assert {line["status"]: line["mean_entropy"] is None for line in lines} == {"correct": True, "incorrect": False}


def test_all_that_a_step_does_is_in_a_phase(tmp_path, monkeypatch):
    """On a clock that only moves while something works, a second a call."""
    seconds = 0.0
    monkeypatch.setattr(apo_lightning.run.training, "PhaseClock", lambda: PhaseClock(now=lambda: seconds))

    def slow(owner, name):
        work = getattr(owner, name)

        def taking_a_second(*args, **kwargs):
            nonlocal seconds
            seconds += 1
            return work(*args, **kwargs)

        monkeypatch.setattr(owner, name, taking_a_second)

    for name in ("score_reference", "score_policy", "publish", "check_error_rate"):
        slow(apo_lightning.module, name)
    slow(apo_lightning.step.passes, "clip_grad_norm")
    slow(apo_lightning.step.update_record, "work_of")
    for name in ("StepTable", "updated_tokens", "plan_minibatches"):
        slow(apo_lightning.step.plan, name)
    slow(EngineCheck, "compare")
    slow(apo_lightning.module, "step_metrics")
    slow(apo_lightning.module, "total_work")
    for name in ("hidden_states", "as_reference"):
        slow(Policy, name)
    for name in ("on_train_batch_start", "on_train_batch_end"):
        slow(RLVRModule, name)
    _, rows = run(tmp_path, *SIGNAL, "algo=apo", "prompts_per_minibatch=2", "trainer.val_check_interval=1")
    for row in rows:
        parts = {name: value for name, value in row.items() if name.startswith("time/") and name != "time/step"}
        assert sum(parts.values()) == row["time/step"]
        assert all(
            parts[f"time/{name}"] > 0 for name in ("prepare", "reference", "update", "engine_check", "sync", "metrics")
        )
    # The hooks around the steps: the end of the one before and the beginning of this one.
    assert [row["time/between_steps"] for row in rows] == [1, 2, 2]


@pytest.mark.slow
def test_ranks_of_which_some_have_nothing_to_run_make_the_run_that_one_process_makes(tmp_path):
    # A prompt a rank: where one group is mixed and the other is not, one rank has nothing to run.
    sizes = ("trainer.max_steps=4", "group_size=2", "data.num_validation=8")
    optimizer = ("optimizer.lr=1e-3", "optimizer.eps=1", "optimizer.weight_decay=0.5")
    for reward, trainers in (("even_start", ("ddp_cpu2", "fsdp_cpu2")), ("never", ("fsdp_cpu2",))):
        function = f"reward.function._target_=rewarding.{reward}"
        alone, *others = on_one_and_two_ranks(tmp_path / reward, trainers, *sizes, *optimizer, function)
        skipped = [float(row["train/skipped_fraction"]) for row in alone]
        assert any(0 < fraction < 1 for fraction in skipped) if reward == "even_start" else min(skipped) == 1
        for together in others:
            for one, two in zip(alone, together, strict=True):
                for name in ("train/reward", "train/loss", "train/grad_norm", "train/skipped_fraction"):
                    assert float(two[name]) == pytest.approx(float(one[name]), rel=1e-3, abs=1e-5), name
                for name in ("entropy", "max_prob"):
                    assert float(two[f"train/{name}"]) == pytest.approx(float(one[f"train/{name}"]), rel=1e-3), name

"""Whole training steps on a random model, with the real trainer, engine, reward and data."""

import math
from pathlib import Path

import pytest
import torch
from hydra.utils import instantiate

import apo_lightning.module
from apo_lightning.errors import StaleWeightsError
from apo_lightning.model.policy import Policy
from apo_lightning.rollout.transformers_engine import TransformersEngine
from composing import composed
from running import RUN, SIGNAL, read_metrics, train_tiny, training_rows
from running import run as run_of

SETTINGS = ("prompts_per_minibatch=4", "optimizer.lr=1e-3")


def run(folder: Path, *overrides: str) -> tuple[dict[str, torch.Tensor], list[dict[str, str]]]:
    """Final weights, and the training rows of metrics.csv."""
    return run_of(folder, *SIGNAL, *SETTINGS, *overrides)


def same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(first[name], second[name]) for name in first)


def shared_columns(first: list[dict[str, str]], second: list[dict[str, str]]) -> set[str]:
    columns = first[0].keys() & second[0].keys()
    return {name for name in columns if not name.startswith(("time/", "perf/"))}


@pytest.mark.parametrize("prompts_per_minibatch", [2, 4])
def test_apo_that_neither_pushes_harder_nor_pulls_is_grpo_bit_for_bit(tmp_path, prompts_per_minibatch):
    sizes = f"prompts_per_minibatch={prompts_per_minibatch}"
    grpo, grpo_rows = run(tmp_path / "grpo", "algo=grpo", sizes)
    coefs = ("algo.loss.push_coef=1", "algo.loss.pull_coef=0")
    apo, apo_rows = run(tmp_path / "apo", "algo=apo", *coefs, sizes)
    assert same(grpo, apo)
    for name in shared_columns(grpo_rows, apo_rows):
        assert [row[name] for row in grpo_rows] == [row[name] for row in apo_rows], name
    assert {"train/loss", "train/clip_fraction", "train/entropy"} <= shared_columns(grpo_rows, apo_rows)


def test_the_pull_changes_where_training_ends(tmp_path):
    pulled, rows = run(tmp_path / "a", "algo=apo")
    free, _ = run(tmp_path / "b", "algo=apo", "algo.loss.pull_coef=0")
    assert float(rows[0]["apo/triggered_fraction"]) > 0
    assert float(rows[0]["apo/anchor_ratio"]) == pytest.approx(1, abs=1e-3)
    assert not same(pulled, free)


def test_two_runs_of_one_seed_are_the_same_run(tmp_path):
    first, first_rows = run(tmp_path / "a", "seed=3")
    second, second_rows = run(tmp_path / "b", "seed=3")
    other, _ = run(tmp_path / "c", "seed=4")
    assert same(first, second)
    assert not same(first, other)
    for name in shared_columns(first_rows, second_rows):
        assert [row[name] for row in first_rows] == [row[name] for row in second_rows], name


def test_the_size_of_a_microbatch_is_a_matter_of_memory_alone(tmp_path):
    whole, rows = run(tmp_path / "a", "tokens_per_microbatch=100000", "trainer.max_steps=1", "optimizer.eps=1")
    split, split_rows = run(tmp_path / "b", "tokens_per_microbatch=64", "trainer.max_steps=1", "optimizer.eps=1")
    assert float(rows[0]["train/grad_norm"]) == pytest.approx(float(split_rows[0]["train/grad_norm"]), rel=1e-4)
    for name in whole:
        torch.testing.assert_close(whole[name], split[name], atol=1e-6, rtol=1e-4)


def test_no_diagnostic_steers(tmp_path):
    """With two mini-batches, so that what is probed before the update is not what its second one starts from."""
    sizes = ("algo=apo", "prompts_per_minibatch=2", "trainer.val_check_interval=1")
    monitors = ("monitor", "squeezing_monitor", "reachability")
    each_step = [f"callbacks.{name}.every_n_steps=1" for name in monitors]
    alone, _ = run(tmp_path / "alone", *sizes)
    watched, _ = run(tmp_path / "watched", *sizes, "callbacks=diagnostics", *each_step)
    assert same(alone, watched)
    rows = read_metrics(tmp_path / "watched")
    for prefix in ("support/", "squeeze/", "alarm/", "reach/"):
        assert any(name.startswith(prefix) and row[name] for name in rows[0] for row in rows), prefix


def test_a_rollout_with_nothing_to_learn_from_takes_no_optimizer_step_and_is_counted(tmp_path):
    # A random model gets no sum right, and psr drops what is wrong.
    psr = ("algo=psr", "reward=numeric", "trainer.max_steps=1", "optimizer.weight_decay=0.5")
    module = train_tiny(tmp_path, *SETTINGS, *psr)
    (row,) = training_rows(tmp_path)
    assert float(row["train/num_empty_minibatches"]) == 1
    assert math.isnan(float(row["train/grad_norm"]))
    fresh = instantiate(composed(*RUN).model, _convert_="all").load_model(seed=1)
    assert same(dict(module.policy.model.named_parameters()), dict(fresh.named_parameters()))


def test_with_one_optimizer_step_old_log_probs_cost_no_forward(tmp_path, monkeypatch):
    forwards = []
    plain = Policy.run_backbone

    def counted(self, microbatch):
        forwards.append(torch.is_grad_enabled())
        return plain(self, microbatch)

    monkeypatch.setattr(Policy, "run_backbone", counted)
    sizes = ("trainer.max_steps=1", "tokens_per_microbatch=100000", "algo=grpo")
    run(tmp_path / "one", *sizes)
    one = forwards.count(True), forwards.count(False)
    forwards.clear()
    run(tmp_path / "two", *sizes, "prompts_per_minibatch=2")
    two = forwards.count(True), forwards.count(False)
    # Each run looks at the engine twice in validation, without a gradient. Of two mini-batches the first is run by the
    # policy that sampled it.
    assert one == (1, 2)
    assert two == (2, 2 + 1)


@pytest.mark.parametrize("algo", ["grpo_kl", "grpo_kl_error_only", "apo_naive", "apo_pass_at_k", "rloo"])
def test_every_kind_of_loss_trains(tmp_path, algo):
    pairs = ("algo.advantage.k=2",) if algo == "apo_pass_at_k" else ()
    _, rows = run(tmp_path, f"algo={algo}", "prompts_per_minibatch=2", *pairs)
    assert len(rows) == 2
    assert all(math.isfinite(float(row["train/loss"])) and float(row["train/grad_norm"]) > 0 for row in rows)


def test_the_exact_kl_is_zero_at_the_start_and_positive_after(tmp_path):
    _, rows = run(tmp_path, "algo=grpo_kl", "algo.loss.kl_estimator=full", "algo.loss.kl_coef=1")
    key = next(name for name in rows[0] if name.startswith("train/kl"))
    assert float(rows[0][key]) == pytest.approx(0, abs=1e-5)
    assert float(rows[1][key]) > 1e-6


class CrowdedEngine(TransformersEngine):
    """Says of every call that three sequences were computed again."""

    def _sample(self, requests, finished):
        super()._sample(requests, finished)
        self.num_preempted = 3


def test_sequences_that_were_computed_again_are_logged_with_their_step(tmp_path):
    for engine, expected in (("CrowdedEngine", "3.0"), ("TransformersEngine", "0.0")):
        _, rows = run(tmp_path / engine, f"engine._target_={__name__}.{engine}")
        assert {row["perf/num_preempted"] for row in rows} == {expected}


class DeafEngine(TransformersEngine):
    """Hears of the first sync alone, and never sleeps."""

    def sync_weights(self, named_weights, version):
        if version == 1:
            super().sync_weights(named_weights, version)

    def sleep(self):
        pass


def test_an_engine_of_another_version_stops_the_run_however_little_the_policy_has_moved(tmp_path):
    with pytest.raises(StaleWeightsError, match="are of policy version 1, and the policy is at version 2"):
        run(tmp_path, f"engine._target_={__name__}.DeafEngine", "optimizer.lr=1e-9", "model.compute_dtype=bfloat16")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_the_engine_was_sent_is_held_against_the_policy_by_its_rounding(tmp_path, monkeypatch, dtype):
    options = (f"model.compute_dtype={dtype}", "optimizer.lr=0.1")
    _, rows = run(tmp_path / "sound", *options)
    gaps = [(float(row["sync/logprob_gap"]), float(row["sync/logprob_gap_tolerance"])) for row in rows]
    assert len(gaps) == 2
    assert all(0 < gap < tolerance for gap, tolerance in gaps)
    if dtype == "float32":
        assert all(tolerance == pytest.approx(1e-3) for _, tolerance in gaps)
    publish, first = apo_lightning.module.publish, {}

    def publish_an_old_tensor(model, engine, version):
        name = "model.layers.0.mlp.down_proj.weight"
        weight = first.setdefault(name, model.get_parameter(name).detach().clone())
        sound = model.get_parameter(name).detach().clone()
        with torch.no_grad():
            model.get_parameter(name).copy_(weight)
            publish(model, engine, version)
            model.get_parameter(name).copy_(sound)

    monkeypatch.setattr(apo_lightning.module, "publish", publish_an_old_tensor)
    with pytest.raises(StaleWeightsError, match=r"policy version 2 .* nats a token .* rounding explains"):
        run(tmp_path / "stale", *options)

"""What a loss reads of whole completions and whole mini-batches, in real runs."""

from dataclasses import replace

import pytest
import torch

from apo_lab.parts import token_keys
from apo_lightning.step.table import StepTable
from apo_lightning.types import Advantages
from factories import make_rollouts
from running import SIGNAL, train_tiny, training_rows, weights

# Two mini-batches, and a rate at which the policy moves between them.
SIZES = (*SIGNAL, "trainer.max_steps=2", "optimizer.lr=1e-1", "optimizer.eps=1")


def keys_of(rollouts, seed=0):
    keep = torch.ones_like(rollouts.is_correct)
    return token_keys(StepTable(rollouts, Advantages(values=rollouts.rewards, keep=keep), torch.device("cpu")), seed)


def test_a_tokens_key_follows_its_prompt_sample_and_position_and_nothing_else():
    both = make_rollouts(["correct", "incorrect", "correct", "incorrect"], 2, lengths=[3, 1, 2, 4])
    keys = keys_of(both)
    assert len(set(keys.tolist())) == 10
    part = slice(2, 4)
    second = replace(
        both,
        prompts=both.prompts[1:],
        completions=both.completions[part],
        texts=both.texts[part],
        verdicts=both.verdicts[part],
    )
    assert keys_of(second).tolist() == keys.tolist()[4:]
    assert not set(keys.tolist()) & set(keys_of(both, seed=1).tolist())
    assert not set(keys.tolist()) & set(keys_of(replace(both, step=both.step + 1)).tolist())


@pytest.mark.parametrize("algo", ["gspo", "gmpo", "clip_cov", "kl_cov"])
def test_micro_batches_do_not_change_the_training(tmp_path, algo):
    options = (*SIZES, f"algo={algo}")
    options += ("algo.loss.fraction=0.2", "algo.loss.lowest=0") if algo == "clip_cov" else ()
    options += ("algo.loss.fraction=0.2",) if algo == "kl_cov" else ()
    whole, split = (
        weights(train_tiny(tmp_path / f"{size}", *options, f"tokens_per_microbatch={size}")) for size in (4096, 64)
    )
    for name, values in whole.items():
        torch.testing.assert_close(split[name], values, rtol=0, atol=2e-7)
    if algo in ("clip_cov", "kl_cov"):
        shares = [float(row[f"train/{algo}_fraction"]) for row in training_rows(tmp_path / "64")]
        assert all(0 < share < 0.6 for share in shares)
    assert float(training_rows(tmp_path / "64")[0]["train/grad_norm"]) > 1e-3


def test_gspo_of_completions_of_one_token_trains_as_grpo(tmp_path):
    clip = ("algo.loss.clip_eps=0.2", "algo.loss.clip_eps_high=0.2", "aggregation=sequence_mean_token_mean")
    gspo, grpo = (
        weights(train_tiny(tmp_path / algo, *SIZES, *clip, f"algo={algo}", "data.max_completion_tokens=1"))
        for algo in ("gspo", "grpo")
    )
    for name, values in grpo.items():
        torch.testing.assert_close(gspo[name], values, rtol=0, atol=1e-7)
    assert float(training_rows(tmp_path / "grpo")[0]["train/grad_norm"]) > 1e-3

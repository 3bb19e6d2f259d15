"""What a loss reads of whole completions and mini-batches, in real runs."""

from dataclasses import replace

import pytest
import torch

from apo_lab.parts import MinPProxy, min_p_logprobs, token_keys
from apo_lightning.step.table import StepTable
from apo_lightning.types import Advantages
from composing import tiny_policy
from factories import make_rollouts
from running import (
    SIGNAL,
    on_one_and_two_ranks,
    train_tiny,
    training_rows,
    weights,
)

# Two mini-batches, and a rate at which the policy moves between them; at this one no token's ratio is near the clip, so
# that rounding decides on none.
SIZES = (*SIGNAL, "trainer.max_steps=2", "optimizer.lr=9e-2", "optimizer.eps=1")
# At the default of 0.02 the random model's proxy often keeps all tokens. It then is the policy that sampled, and
# rounding decides whether the policy of the first mini-batch is below it.
FILTERING = ("algo=lp_reg", "algo.loss.min_p=0.06")


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


@pytest.mark.parametrize("algo", ["gspo", "gmpo", "clip_cov", "kl_cov", "lp_reg"])
def test_micro_batches_do_not_change_the_training(tmp_path, algo):
    options = (*SIZES, *(FILTERING if algo == "lp_reg" else (f"algo={algo}",)))
    options += ("algo.loss.fraction=0.2", "algo.loss.lowest=0") if algo == "clip_cov" else ()
    options += ("algo.loss.fraction=0.2",) if algo in ("kl_cov", "lp_reg") else ()
    whole, split = (
        weights(train_tiny(tmp_path / f"{size}", *options, f"tokens_per_microbatch={size}")) for size in (4096, 64)
    )
    for name, values in whole.items():
        torch.testing.assert_close(split[name], values, rtol=0, atol=2e-7)
    if algo in ("clip_cov", "kl_cov", "lp_reg"):
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


@pytest.mark.parametrize(("vocab", "spread", "min_p"), [(40, 1.0, 0.3), (400, 0.01, 0.5), (400, 2.0, 0.02)])
def test_min_p_renormalises_what_it_keeps(vocab, spread, min_p):
    """400 nearly equal tokens are all kept, more than the 64 that are asked for first."""
    generator = torch.Generator().manual_seed(0)
    logits, temperature = spread * torch.randn(6, vocab, generator=generator), 0.7
    policy = tiny_policy()
    policy.model.get_output_embeddings().weight = torch.nn.Parameter(torch.randn(vocab, vocab, generator=generator))
    hidden = torch.linalg.solve(policy.head_weight.detach().double(), logits.double().T).T.float()
    probs = (logits.double() / temperature).softmax(1)
    kept = probs >= min_p * probs.max(1, keepdim=True).values
    targets = torch.stack([kept.double().argmax(1), probs.argmin(1)]).T
    expected = torch.where(kept, probs / (probs * kept).sum(1, keepdim=True), 0).gather(1, targets).log()
    for column in (0, 1):
        found = min_p_logprobs(policy, hidden, targets[:, column], min_p=min_p, temperature=temperature)
        torch.testing.assert_close(found.detach().double(), expected[:, column], rtol=0, atol=2e-3)
    assert (kept.all() and not expected.isinf().any()) or expected[:, 1].isinf().all()


def test_the_proxy_is_that_of_the_policy_that_sampled(tmp_path, monkeypatch):
    seen, planned = [], MinPProxy.planned

    def watched(part, setup, plan, advantages):
        planned(part, setup, plan, advantages)
        seen.append((plan.table, setup.loss.min_p))

    monkeypatch.setattr(MinPProxy, "planned", watched)
    train_tiny(tmp_path, *SIZES, "algo=lp_reg", "algo.loss.fraction=0.5", "algo.loss.min_p=0.05")
    for table, min_p in seen:
        marked, proxy = table.columns["marks"] > 0, table.columns["proxy_logprobs"]
        assert (table.advantages[marked] < 0).all()
        assert 0.3 < marked.sum() / (table.advantages < 0).sum() <= 0.5
        held = proxy > -torch.inf
        assert held.any()
        assert not held[~marked].any()
        # log π_proxy = log π_old − log Z where log π_old ≥ log(min_p·max π_old), Z in (0, 1]; else −∞.
        gain = (proxy - table.old_logprobs)[held]
        assert (gain > -1e-5).all()
        above = table.old_logprobs.exp() >= min_p * table.max_prob
        assert torch.equal(held[marked], above[marked])


@pytest.mark.slow(60)
def test_two_ranks_do_what_one_process_does(tmp_path):
    options = (*SIZES, *FILTERING, "algo.loss.fraction=0.3")
    alone, *others = on_one_and_two_ranks(tmp_path, ("ddp_cpu2", "fsdp_cpu2"), *options)
    for rows in others:
        for one, two in zip(alone, rows, strict=True):
            assert float(one["train/lp_reg_fraction"]) > 0
            for name in (name for name in one if name.startswith("train/")):
                expected = pytest.approx(float(one[name] or "nan"), rel=1e-5, abs=1e-6, nan_ok=True)
                assert float(two[name] or "nan") == expected, name

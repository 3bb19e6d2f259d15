"""What a loss reads of whole completions and mini-batches, and a controller that survives a stop, in real runs."""

from dataclasses import replace

import pytest
import torch

from apo_lightning.errors import ConfigError, Preempted
from apo_lightning.module import RLVRModule
from apo_lightning.rollout.transformers_engine import TransformersEngine
from apo_lightning.step.table import StepTable
from apo_lightning.types import Advantages
from apo_methods.parts import EntropyTarget, MinPProxy, min_p_logprobs, token_keys
from composing import tiny_policy
from factories import make_rollouts, make_setup
from running import (
    SIGNAL,
    Stopper,
    on_one_and_two_ranks,
    read_metrics,
    train_tiny,
    training_rows,
    weights,
    without_clock,
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


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        # h = .25, .15, .15, .3 and a target of .2 nats: c = 0, .1, .2, .1, of which the last does not act.
        ({"target": 0.2, "relative": False}, [0, 0.1, 0.2, 0]),
        # The target is .8·.25 = .2 nats; c stays at .15.
        ({"target": 0.8, "highest": 0.15}, [0, 0.1, 0.15, 0]),
        # At the target itself the bonus acts.
        ({"target": 1}, [0.1, 0.2, 0.3, 0]),
    ],
)
def test_the_coefficient_follows_the_entropy(options, expected):
    part = EntropyTarget(**options, delta=0.1)
    assert part.needs.gradient_on == "all"
    for entropy, bonus in zip((0.25, 0.15, 0.15, 0.3), expected, strict=True):
        rollouts = make_rollouts(["correct", "incorrect"], 2, lengths=[1, 3])
        completions = tuple(replace(c, logprobs=(-entropy,) * len(c.logprobs)) for c in rollouts.completions)
        rollouts = replace(rollouts, completions=completions)
        assert part.sampled(make_setup(), (), rollouts) is rollouts
        assert part.bonus == pytest.approx(bonus)
        assert part.needs.gradient_on == ("all" if bonus else None)
    for wrong, match in (({"target": 0}, "target is 0"), ({"target": 1, "delta": -1}, "delta is -1")):
        with pytest.raises(ConfigError, match=match):
            EntropyTarget(**wrong)


SHORT = (*SIZES, "checkpoint.save_every=1", "trainer.max_steps=4")
PLAIN = (*SHORT, "algo=grpo")
CONTROLLED = (
    *SHORT,
    "algo=entropy_target",
    "algo.parts.entropy_target.delta=0.5",
    "algo.parts.entropy_target.highest=5",
)


def test_the_bonus_is_the_one_of_the_loss(tmp_path):
    """A coefficient that stays at .3: the term of the part is `entropy_coef=0.3`. One that never acts is GRPO."""
    steady = ("algo.parts.entropy_target.target=99", "algo.parts.entropy_target.highest=0.3")
    part = weights(train_tiny(tmp_path / "part", *CONTROLLED, *steady))
    loss = weights(train_tiny(tmp_path / "loss", *PLAIN, "algo.loss.entropy_coef=0.3"))
    never = weights(train_tiny(tmp_path / "never", *CONTROLLED, "algo.parts.entropy_target.target=1e-9"))
    grpo = weights(train_tiny(tmp_path / "grpo", *PLAIN))
    for name, values in loss.items():
        torch.testing.assert_close(part[name], values, rtol=0, atol=2e-6)
    assert all(torch.equal(never[name], grpo[name]) for name in grpo)
    assert not all(torch.allclose(part[name], grpo[name], rtol=0, atol=1e-4) for name in grpo)


@pytest.mark.parametrize(
    ("owner", "name", "call"), [(TransformersEngine, "generate", 4), (RLVRModule, "_optimizer_step", 5)]
)
def test_a_controller_that_was_stopped_goes_on_to_the_bit(tmp_path, monkeypatch, owner, name, call):
    options = (*CONTROLLED, "algo.parts.entropy_target.target=0.999")
    final = weights(train_tiny(tmp_path / "whole", *options))
    with monkeypatch.context() as patch:
        Stopper(patch, owner, name, call)
        with pytest.raises(Preempted):
            train_tiny(tmp_path / "stopped", *options, "checkpoint.save_every=null")
    resumed = weights(train_tiny(tmp_path / "stopped", *options, "resume=auto"))
    assert all(torch.equal(resumed[key], final[key]) for key in final)
    rows = [[without_clock(row) for row in read_metrics(tmp_path / run)] for run in ("whole", "stopped")]
    assert rows[0] == rows[1]
    bonuses = [float(row["entropy_target/bonus"]) for row in training_rows(tmp_path / "whole")]
    assert len(set(bonuses)) > 2


@pytest.mark.slow(60)
@pytest.mark.parametrize(
    ("options", "shown"),
    [
        ((*FILTERING, "algo.loss.fraction=0.3"), "train/lp_reg_fraction"),
        ((*CONTROLLED[len(SHORT) :], "algo.parts.entropy_target.target=1"), "entropy_target/bonus"),
    ],
    ids=["lp_reg", "entropy_target"],
)
def test_two_ranks_do_what_one_process_does(tmp_path, options, shown):
    alone, *others = on_one_and_two_ranks(tmp_path, ("ddp_cpu2", "fsdp_cpu2"), *SIZES, *options)
    for rows in others:
        for one, two in zip(alone, rows, strict=True):
            assert float(one[shown]) > 0
            for name in (name for name in one if name.startswith(("train/", "entropy_target/"))):
                expected = pytest.approx(float(one[name] or "nan"), rel=1e-5, abs=1e-6, nan_ok=True)
                assert float(two[name] or "nan") == expected, name

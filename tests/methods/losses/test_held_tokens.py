"""Penalties on some of the tokens, Lp-Reg's and that on right answers: by hand, and where they are the plain loss."""

from dataclasses import replace
from math import log

import pytest
import torch

from apo_lightning.errors import ConfigError
from apo_lightning.losses import GRPO, GRPOKL
from apo_lightning.types import LossInputs, Needs
from apo_methods.losses import CorrectOnlyKL, LpReg
from apo_methods.losses.minibatch_tokens import MinibatchTokens
from loss_cases import make_case, value_and_gradient


def one_token(advantage, prob, proxy, old=0.1):
    return LossInputs(
        token_ids=torch.tensor([0]),
        sequence_ids=torch.tensor([0]),
        logprobs=torch.tensor([prob], dtype=torch.float64).log().requires_grad_(),
        old_logprobs=torch.tensor([old], dtype=torch.float64).log(),
        advantages=torch.tensor([advantage], dtype=torch.float64),
        is_correct=torch.tensor([advantage > 0]),
        columns={"proxy_logprobs": torch.tensor([proxy], dtype=torch.float64).log()},
    )


@pytest.mark.parametrize(
    ("advantage", "prob", "proxy", "value", "slope", "share"),
    [
        # Held: 2·r + ½·(e^Δ − Δ − 1) with r = ½, e^Δ = .2/.05 = 4; by log π: 2·r + ½·(1 − e^Δ).
        (-2.0, 0.05, 0.2, 1 + 0.5 * (3 - log(4)), 1 - 1.5, 1),
        # At or above its proxy, filtered out by min-p (proxy 0), or right: −objective(r, A), clipped at .8 and 1.3.
        (-2.0, 0.05, 0.05, 1.6, 0.0, 0),
        (-2.0, 0.05, 0.0, 1.6, 0.0, 0),
        (2.0, 0.05, 0.2, -1.0, -1.0, None),
    ],
)
def test_lp_reg(advantage, prob, proxy, value, slope, share):
    inputs = one_token(advantage, prob, proxy)
    output = LpReg(kl_coef=0.5, clip_eps=0.2, clip_eps_high=0.3)(inputs)
    assert output.per_token.item() == pytest.approx(value)
    assert torch.autograd.grad(output.per_token.sum(), inputs.logprobs)[0].item() == pytest.approx(slope)
    assert output.metrics["lp_reg_fraction"].item() == pytest.approx(
        float("nan") if share is None else share, nan_ok=True
    )


def test_lp_reg_marks_the_least_likely_tokens_of_errors_of_all_ranks():
    logprobs, advantages = torch.tensor([-5.0, -1.0, -2.0, -3.0, -0.1]), torch.tensor([1.0, -1.0, -1.0, -1.0, -1.0])
    facts = {"advantages": advantages, "is_correct": advantages > 0, "keys": torch.arange(5)}
    tokens = MinibatchTokens(**facts, logprobs=logprobs)
    for fraction, expected in (
        (0.0, [0, 0, 0, 0, 0]),
        (0.5, [0, 0, 1, 1, 0]),
        (0.74, [0, 0, 1, 1, 0]),
        (1.0, [0, 1, 1, 1, 1]),
    ):
        assert LpReg(fraction=fraction).marks(tokens).tolist() == expected
    # Another rank has three tokens of errors, two of which are the least likely: ⌊.5·7⌋ = 3 on both ranks together.
    others = {int: 3, list: [(-9.0, 7), (-8.0, 8), (0.0, 9)]}
    both = replace(tokens, from_all_ranks=lambda mine: [mine, others[type(mine)]])
    assert LpReg(fraction=0.5).marks(both).tolist() == [0, 0, 0, 1, 0]


@pytest.mark.parametrize("kind", ["plain", "weighted", "far"])
def test_without_their_penalty_they_are_grpo(kind):
    for loss, plain in (
        (LpReg(fraction=0, clip_eps=0.2, clip_eps_high=0.28), GRPO(clip_eps_high=0.28)),
        (LpReg(fraction=1, kl_coef=0), GRPO(clip_eps=1.0, clip_eps_high=9.0)),
        (CorrectOnlyKL(kl_coef=0), GRPO()),
    ):
        found, expected = (value_and_gradient(one, make_case(kind))[:2] for one in (loss, plain))
        assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))


@pytest.mark.parametrize("estimator", ["k3", "full"])
def test_penalties_on_right_answers_and_on_errors_add_up_to_the_one_on_all_tokens(estimator):
    """Where right is A > 0 and wrong A < 0, as under rewards of 0 and 1; tokens of A = 0 are right here."""
    case = make_case("plain")
    case = replace(case, is_correct=case.advantages >= 0)
    options = {"kl_coef": 0.5, "kl_estimator": estimator}
    losses = GRPO(), GRPOKL(**options, error_only=True), CorrectOnlyKL(**options), GRPOKL(**options)
    none, errors, right, both = (value_and_gradient(loss, case)[1].double() for loss in losses)
    torch.testing.assert_close((errors - none) + (right - none), both - none, rtol=0, atol=1e-6)
    assert ((right - none) != 0).any(1).tolist() == case.is_correct.tolist()
    kl = value_and_gradient(losses[2], case)[2].metrics["kl_updated"]
    assert kl.isnan().tolist() == (~case.is_correct).tolist()


def test_what_they_read():
    assert LpReg().needs == Needs(columns=frozenset({"proxy_logprobs"}), gradient_on="nonzero_advantage")
    assert CorrectOnlyKL().needs == Needs(ref_logprobs=True, reference_on="all", gradient_on="all")


def test_values_out_of_range():
    for make, match in (
        (lambda: LpReg(fraction=1.5), "fraction is 1.5"),
        (lambda: LpReg(kl_coef=-1), "kl_coef is -1"),
        (lambda: LpReg(min_p=0), "min_p is 0"),
        (lambda: CorrectOnlyKL(error_only=True), "error_only is true"),
    ):
        with pytest.raises(ConfigError, match=match):
            make()

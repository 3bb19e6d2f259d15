"""The losses that read the policy's entropy, as a weight or by rank: by hand, and where they are the plain loss."""

from math import exp, log

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

from apo_lab.losses import SAGE, EntropyAdvantage, SimKO
from apo_lab.losses.simko import sequence_ranks
from apo_lightning.errors import ConfigError
from apo_lightning.losses import GRPO, GRPOKL
from apo_lightning.types import LossInputs, Needs
from loss_cases import make_case, value_and_gradient


def one_token(advantage, entropy, ratio=1.0, ref_ratio=1.0):
    """π(y) = 1/2, π_old = π/ratio, π_ref = π·ref_ratio."""
    at_y = torch.tensor([log(0.5)], dtype=torch.float64)
    return LossInputs(
        token_ids=torch.tensor([0]),
        sequence_ids=torch.tensor([0]),
        logprobs=at_y,
        old_logprobs=at_y - log(ratio),
        advantages=torch.tensor([advantage], dtype=torch.float64),
        is_correct=torch.tensor([advantage > 0]),
        ref_logprobs=at_y + log(ref_ratio),
        entropy=torch.tensor([entropy], dtype=torch.float64),
    )


@pytest.mark.parametrize(
    ("advantage", "entropy", "expected"),
    # −r·(A + min(0.4·H, |A|/2)) at r = 1.1: the bonus is 0.2; capped at 0.5, where an error stays one; A = 0 stays 0.
    [(1.0, 0.5, -1.32), (1.0, 3.0, -1.65), (-1.0, 3.0, 0.55), (0.0, 3.0, 0.0)],
)
def test_the_entropy_advantage(advantage, entropy, expected):
    output = EntropyAdvantage()(one_token(advantage, entropy, ratio=1.1))
    assert output.per_token.item() == pytest.approx(expected)


def test_sage_pulls_towards_the_guided_reference():
    # q = 1 + 0.3·(2.2 − 1.2) = 1.3, of which the log-ratio is log(1.3·0.5) at π_ref = π/2; k3 = e^Δ − Δ − 1.
    delta = log(1.3 * 0.5)
    output = SAGE(kl_coef=1.0)(one_token(0.0, 2.2, ref_ratio=0.5))
    assert output.per_token.item() == pytest.approx(exp(delta) - delta - 1)
    # Where π = q·π_ref, nothing pulls.
    assert SAGE(kl_coef=1.0)(one_token(0.0, 9.0, ref_ratio=1 / 1.4)).per_token.item() == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("kind", ["plain", "weighted", "far"])
def test_without_their_term_they_are_the_plain_loss(kind):
    case = make_case(kind)
    for loss, plain in (
        (EntropyAdvantage(alpha=0), GRPO()),
        (SAGE(guide_ratio=0, kl_clamp=10.0), GRPOKL(kl_coef=0.05)),
        (SimKO(alpha=0, top_penalty=1), GRPO()),
    ):
        for found, expected in zip(
            value_and_gradient(loss, case)[:2], value_and_gradient(plain, case)[:2], strict=True
        ):
            assert torch.equal(found, expected)


def simko_gradient(loss, *, y, is_correct, rank):
    """By the logits, at r = 1; |A| = 1 with the sign of the verdict."""
    logits = torch.tensor([[0.5, 0.3, 0.2]], dtype=torch.float64).log().requires_grad_()
    logprobs = logits.log_softmax(1)
    at_y = logprobs[:, y]
    inputs = LossInputs(
        token_ids=torch.tensor([y]),
        sequence_ids=torch.tensor([0]),
        logprobs=at_y,
        old_logprobs=at_y.detach(),
        advantages=torch.tensor([1.0 if is_correct else -1.0], dtype=torch.float64),
        is_correct=torch.tensor([is_correct]),
        candidate_ids=torch.tensor([[0, 1]]),
        candidate_logprobs=logprobs[:, :2],
        columns={"entropy_rank": torch.tensor([rank], dtype=torch.float64)},
    )
    value = loss(inputs).per_token
    return value.item(), torch.autograd.grad(value.sum(), logits)[0][0].tolist()


@pytest.mark.parametrize(
    ("y", "is_correct", "rank", "value", "gradient"),
    [
        # ∇log π(v) = e_v − π. Right: −(.6·(e_2 − π) + .4·((e_0 + e_1)/2 − π)) = π − (.2, .2, .6).
        (2, True, 0.9, -1.0, [0.3, 0.1, -0.4]),
        (2, True, 0.5, -1.0, [0.5, 0.3, -0.8]),
        # Wrong: e_y − π, twice at the favourite, token 0.
        (0, False, 0.9, 2.0, [1.0, -0.6, -0.4]),
        (0, False, 0.5, 1.0, [0.5, -0.3, -0.2]),
        (1, False, 0.9, 1.0, [-0.5, 0.7, -0.2]),
    ],
)
def test_simko(y, is_correct, rank, value, gradient):
    loss = SimKO(alpha=0.4, top_k=2, quantile=0.8, top_penalty=2.0)
    found, slopes = simko_gradient(loss, y=y, is_correct=is_correct, rank=rank)
    assert found == pytest.approx(value)
    assert slopes == pytest.approx(gradient)


# Whole numbers: between neighbouring floats an interpolated quantile would be rounded to one of them.
@given(st.lists(st.integers(-50, 50), min_size=2, max_size=12, unique=True), st.sampled_from([0.0, 0.25, 0.5, 0.8]))
def test_a_rank_above_the_quantile_is_a_value_above_it(values, quantile):
    table = torch.tensor(values, dtype=torch.float64)
    ids = torch.cat([torch.zeros(3), torch.ones(len(table))]).long()
    ranks = sequence_ranks(torch.cat([torch.zeros(3).double(), table]), ids)[3:]
    position = quantile * (len(values) - 1)
    # At a place between two values both tests agree; on a value itself rounding of the interpolation decides.
    if position != int(position):
        assert ((ranks > quantile) == (table > table.quantile(quantile))).all()
    assert sorted(ranks.tolist()) == pytest.approx([i / (len(values) - 1) for i in range(len(values))])


def test_what_they_read():
    assert EntropyAdvantage().needs == Needs(entropy=True, gradient_on="nonzero_advantage")
    on_errors = Needs(ref_logprobs=True, reference_on="negative_advantage", gradient_on="nonzero_advantage")
    assert SAGE(error_only=True).needs == on_errors | Needs(entropy=True)


def test_values_out_of_range():
    for make, match in (
        (lambda: EntropyAdvantage(alpha=-1), "alpha is -1"),
        (lambda: EntropyAdvantage(kappa=1), "kappa is 1"),
        (lambda: SAGE(kl_estimator="full"), "kl_estimator is full"),
        (lambda: SAGE(guide_ratio=-0.1), "guide_ratio is -0.1"),
        (lambda: SAGE(highest_guide=0.5), "highest_guide is 0.5"),
        (lambda: SimKO(alpha=2), "alpha is 2"),
        (lambda: SimKO(top_k=0), "top_k is 0"),
        (lambda: SimKO(quantile=1), "quantile is 1"),
        (lambda: SimKO(top_penalty=0.5), "top_penalty is 0.5"),
    ):
        with pytest.raises(ConfigError, match=match):
            make()

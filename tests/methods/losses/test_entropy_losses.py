"""The losses that read the policy's entropy: by hand, and where they are the plain loss."""

from math import exp, log

import pytest
import torch

from apo_lightning.errors import ConfigError
from apo_lightning.losses import GRPO, GRPOKL
from apo_lightning.types import LossInputs, Needs
from apo_methods.losses import SAGE, EntropyAdvantage
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
    ):
        for found, expected in zip(
            value_and_gradient(loss, case)[:2], value_and_gradient(plain, case)[:2], strict=True
        ):
            assert torch.equal(found, expected)


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
    ):
        with pytest.raises(ConfigError, match=match):
            make()

"""The KL penalty: estimators, their gradients in expectation, and whom it touches."""

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings

from apo_lightning.losses import GRPO, GRPOKL
from apo_lightning.losses.functional import KL_ESTIMATORS, kl_estimate
from loss_cases import make_case, value_and_gradient

LOGITS = torch.tensor([0.2, -0.4, 0.9, 0.0], dtype=torch.float64)
REF = torch.tensor([0.1, 0.5, 0.2, -0.3], dtype=torch.float64).log_softmax(0)


@pytest.mark.parametrize(
    ("estimator", "value"),
    [
        ("k1", -0.693147),  # −Δ, Δ = log 2
        ("k2", 0.240227),  # (log 2)²/2
        ("k3", 0.306853),  # 2 − log 2 − 1
        ("k3_plus", 0.306853),
    ],
)
def test_the_estimators_by_hand(estimator, value):
    estimate = kl_estimate(torch.tensor([0.25]).log(), torch.tensor([0.5]).log(), estimator)
    assert estimate.item() == pytest.approx(value, abs=1e-6)


def expected_gradient(estimator, logits=LOGITS):
    """Σ_y π(y)·∇ estimate(y): what on-policy samples give on average."""
    z = logits.clone().requires_grad_()
    estimates = kl_estimate(z.log_softmax(0), REF, estimator)
    return torch.autograd.grad((logits.softmax(0) * estimates).sum(), z)[0]


def kl_gradient(reverse):
    z = LOGITS.clone().requires_grad_()
    log_p = z.log_softmax(0)
    kl = (REF.exp() * (REF - log_p)).sum() if reverse else (log_p.exp() * (log_p - REF)).sum()
    return torch.autograd.grad(kl, z)[0]


def test_on_average_k1_has_no_gradient_as_a_loss():
    torch.testing.assert_close(expected_gradient("k1"), torch.zeros(4, dtype=torch.float64), rtol=0, atol=1e-12)


@pytest.mark.parametrize(("estimator", "reverse"), [("k2", False), ("k3_plus", False), ("k3", True)])
def test_on_average_k2_descends_the_kl_from_the_policy_and_k3_the_kl_from_the_reference(estimator, reverse):
    torch.testing.assert_close(expected_gradient(estimator), kl_gradient(reverse))


def test_the_clamp_caps_k3_and_ends_its_gradient_but_not_that_of_k3_plus():
    """e^2.6 − 3.6 = 9.86 is below 10, e^2.62 − 3.62 = 10.1 is above."""
    logprobs = torch.tensor([-2.60, -2.62], dtype=torch.float64, requires_grad=True)
    ref = torch.zeros(2, dtype=torch.float64)
    for estimator in ("k3", "k3_plus"):
        estimate = kl_estimate(logprobs, ref, estimator, clamp=10.0)
        (gradient,) = torch.autograd.grad(estimate.sum(), logprobs)
        assert estimate[0].item() == pytest.approx(9.8637, abs=1e-4)
        assert estimate[1].item() == 10.0
        assert (gradient[1] == 0).item() is (estimator == "k3")


@pytest.mark.parametrize("estimator", [*KL_ESTIMATORS, "full"])
@settings(max_examples=10)
@given(seed=st.integers(0, 10_000))
def test_a_zero_coefficient_is_grpo(estimator, seed):
    case = make_case("plain", seed=seed)
    value, gradient, _ = value_and_gradient(GRPOKL(kl_coef=0.0, kl_estimator=estimator), case)
    expected, expected_gradient, _ = value_and_gradient(GRPO(), case)
    assert torch.equal(value, expected)
    assert torch.equal(gradient, expected_gradient)


@pytest.mark.parametrize("estimator", [*KL_ESTIMATORS, "full"])
@settings(max_examples=10)
@given(seed=st.integers(0, 10_000))
def test_error_only_is_grpo_on_good_tokens_and_grpo_kl_on_errors(estimator, seed):
    case = make_case("plain", seed=seed)
    value, gradient, output = value_and_gradient(GRPOKL(kl_estimator=estimator, error_only=True), case)
    good = case.advantages >= 0
    for mask, other in ((good, GRPO()), (~good, GRPOKL(kl_estimator=estimator))):
        expected, expected_gradient, _ = value_and_gradient(other, case)
        assert torch.equal(value[mask], expected[mask])
        assert torch.equal(gradient[mask], expected_gradient[mask])
    assert torch.equal(output.metrics["kl_updated"].isnan(), good)

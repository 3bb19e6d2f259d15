"""Weights that correct for the engine: golden values, reductions, and bounds that cannot be."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from apo_lightning.errors import ConfigError
from apo_lightning.losses import APO, GRPO, GRPOKL
from apo_lightning.losses.policy_loss import BOUNDS, Importance
from loss_cases import make_case, value_and_gradient

# ρ = (1, 9, 1/4) in one completion: u = 2.25 and ḡ = 2.25^(1/3) = 1.3104. A second one of ρ = 1/2 stands behind it.
OLD = torch.tensor([0.1, 0.9, 0.1, 0.1]).log()
ROLLOUT = torch.tensor([0.1, 0.1, 0.4, 0.2]).log()
SEQUENCES = torch.tensor([3, 3, 3, 8])


@pytest.mark.parametrize(
    ("mode", "bounds", "weights", "outside"),
    [
        ("token_truncate", None, [1, 2, 0.25, 0.5], [0, 1, 0, 0]),
        ("token_truncate", math.inf, [1, 9, 0.25, 0.5], [0, 0, 0, 0]),
        ("token_mask", None, [1, 0, 0, 0.5], [0, 1, 1, 0]),
        ("token_mask", [0, 10], [1, 9, 0.25, 0.5], [0, 0, 0, 0]),
        ("sequence_truncate", None, [2, 2, 2, 0.5], [1, 1, 1, 0]),
        ("sequence_truncate", 5, [2.25, 2.25, 2.25, 0.5], [0, 0, 0, 0]),
        ("sequence_mask", None, [2.25, 2.25, 2.25, 0.5], [0, 0, 0, 0]),
        ("sequence_mask", 2, [0, 0, 0, 0.5], [1, 1, 1, 0]),
        ("sequence_gate", [0.6, 2], [1, 9, 0.25, 0], [0, 0, 0, 1]),
        ("sequence_gate", [0.4, 1.31], [0, 0, 0, 0.5], [1, 1, 1, 0]),
        ("sequence_gate", [0.4, 1.311], [1, 9, 0.25, 0.5], [0, 0, 0, 0]),
    ],
)
def test_golden_values(mode, bounds, weights, outside):
    # 0.1/0.2 rounds to either side of the published lower bounds of 0.5, so the last token is looked at a little above.
    found, is_outside = Importance(mode, bounds).weights(OLD + torch.tensor([0, 0, 0, 1e-6]), ROLLOUT, SEQUENCES)
    torch.testing.assert_close(found, torch.tensor(weights, dtype=torch.float32), rtol=2e-6, atol=0)
    assert is_outside.tolist() == [bool(value) for value in outside]


LOGPROBS = st.lists(st.floats(-30, 0, width=32), min_size=1, max_size=12).map(torch.tensor)


@pytest.mark.parametrize("mode", BOUNDS)
@given(logprobs=LOGPROBS, length=st.integers(1, 5))
def test_where_engine_and_trainer_agree_every_weight_is_exactly_one(mode, logprobs, length):
    found, is_outside = Importance(mode).weights(logprobs, logprobs, torch.arange(len(logprobs)) // length)
    assert torch.equal(found, torch.ones_like(logprobs))
    assert not is_outside.any()


@pytest.mark.parametrize("mode", BOUNDS)
@given(old=LOGPROBS, shift=st.floats(-3, 3, width=32))
def test_in_completions_of_one_token_a_mode_is_that_of_tokens(mode, old, shift):
    bounds = BOUNDS[mode] if len(BOUNDS[mode]) == 2 else BOUNDS[mode][0]
    rollout = old + shift * torch.linspace(-1, 1, len(old))
    log_ratio = (old - rollout).double()
    limits = [math.log(limit) for limit in BOUNDS[mode] if limit > 0]
    assume(all((log_ratio - limit).abs().min() > 1e-5 for limit in limits))
    found = Importance(mode, bounds).weights(old, rollout, torch.arange(len(old)))
    of_tokens = {"truncate": "token_truncate", "mask": "token_mask", "gate": "token_mask"}[mode.split("_")[1]]
    alike = bounds if of_tokens == "token_truncate" or isinstance(bounds, tuple) else (0, bounds)
    expected = Importance(of_tokens, alike).weights(old, rollout, torch.arange(len(old)))
    torch.testing.assert_close(found[0], expected[0], rtol=1e-5, atol=0)
    assert torch.equal(found[1], expected[1])


@pytest.mark.parametrize("mode", BOUNDS)
def test_weights_have_no_gradient_and_stay_finite(mode):
    old, whole = torch.full((200,), -1.0, requires_grad=True), torch.zeros(200).long()
    for gap in (-30.0, 30.0, math.inf):
        found, _ = Importance(mode).weights(old, old.detach() - gap, whole)
        assert not found.requires_grad
        assert bool(found.isfinite().all())
    assert Importance(mode).weights(old, torch.full_like(old, torch.nan), whole)[0].isnan().all()
    assert len(Importance(mode).weights(old[:0], old[:0], whole[:0])[0]) == 0  # a micro-batch without tokens


@pytest.mark.parametrize(
    ("mode", "bounds"),
    [
        *(("token_truncate", bounds) for bounds in (0, -1.0, math.nan, [0.5, 2.0], "2", [])),
        *(("sequence_mask", bounds) for bounds in ([1, 2], 0.0)),
        *(("token_mask", bounds) for bounds in (2.0, [2.0], [2.0, 0.5], [-1, 2], [1, 1], [0.5, "2"], [1, 2, 3])),
        *(("sequence_gate", bounds) for bounds in (3, [math.nan, 2])),
    ],
)
def test_bounds_that_cannot_be_are_named_in_one_line(mode, bounds):
    with pytest.raises(
        ConfigError, match=rf"^importance_bounds is .* with importance={mode}: give .*, or null"
    ) as caught:
        Importance(mode, bounds)
    assert str(bounds) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("loss", [GRPO(), GRPO(dual_clip=3.0), APO()])
def test_weights_scale_the_clipped_objective(loss):
    weighted = make_case("weighted")
    value, gradient, output = value_and_gradient(loss, weighted)
    expected, expected_gradient, _ = value_and_gradient(loss, replace(weighted, rollout_logprobs=None))
    factor = (weighted.old_logprobs - weighted.rollout_logprobs).exp()
    torch.testing.assert_close(output.metrics["importance_weight"], factor)
    torch.testing.assert_close(value, factor * expected)
    torch.testing.assert_close(gradient, factor[:, None] * expected_gradient)


@pytest.mark.parametrize("loss", [GRPO(entropy_coef=0.1), GRPOKL(kl_coef=0.1), GRPOKL(kl_coef=0.1, entropy_coef=0.1)])
def test_weights_leave_entropy_and_kl_alone(loss):
    """All weights are 0: what is left is the loss of A = 0."""
    case = make_case("plain")
    logits = case.logits.requires_grad_()
    inputs = case.inputs(loss.needs, logits)
    masked = replace(loss, importance=Importance("token_mask"))
    losses = (
        masked(replace(inputs, rollout_logprobs=inputs.old_logprobs - 10)).per_token,
        loss(replace(inputs, advantages=torch.zeros(48))).per_token,
    )
    torch.testing.assert_close(*losses)
    torch.testing.assert_close(*(torch.autograd.grad(values.sum(), logits, retain_graph=True)[0] for values in losses))

"""The critic's loss: values derived on paper, and where it has a gradient."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from apo_lightning.parts.critic import clipped_value_loss

VALUES = torch.tensor([0.9, 0.1, 0.6])
OLD = torch.tensor([0.5, 0.4, 0.6])
RETURNS = torch.ones(3)


@pytest.mark.parametrize(
    ("clip", "mean", "clipped"),
    [
        # Clipped values 0.7, 0.2, 0.6: errors (0.1, 0.9, 0.4) against (0.3, 0.8, 0.4); ½·(0.09 + 0.81 + 0.16)/3
        (0.2, 0.17667, [1, 0, 0]),
        # None leaves the range: ½·(0.01 + 0.81 + 0.16)/3
        (0.5, 0.16333, [0, 0, 0]),
        (None, 0.16333, [0, 0, 0]),
    ],
)
def test_three_values_by_hand(clip, mean, clipped):
    output = clipped_value_loss(VALUES, OLD, RETURNS, clip)
    assert output.per_token.mean().item() == pytest.approx(mean, abs=1e-5)
    assert output.metrics["critic/value_clip_fraction"].tolist() == clipped


def test_a_clipped_value_has_no_gradient_and_the_others_that_of_the_error():
    values = VALUES.clone().requires_grad_()
    clipped_value_loss(values, OLD, RETURNS, 0.2).per_token.sum().backward()
    assert values.grad is not None
    assert values.grad.tolist() == pytest.approx([0.0, 0.1 - 1, 0.6 - 1])


numbers = st.floats(-2, 2)


@given(numbers, numbers, numbers, st.floats(0.01, 1))
def test_it_is_the_larger_of_both_errors(value, old, target, clip):
    found = clipped_value_loss(*(torch.tensor([x], dtype=torch.float64) for x in (value, old, target)), clip)
    near = old + min(max(value - old, -clip), clip)
    assert found.per_token.item() == pytest.approx(0.5 * max((value - target) ** 2, (near - target) ** 2))

"""CISPO against values derived by hand, and where it is GRPO."""

import pytest
import torch

from apo_lab.losses import CISPO
from apo_lightning.errors import ConfigError
from apo_lightning.losses import GRPO
from sequence_losses import OLD, near, run


@pytest.mark.parametrize(("cap", "last"), [(1.28, 0.256), (5.0, 0.30)])
def test_cispo(cap, last):
    # Weights min(r, cap)·A/5 with r = (1.2, .75, 1.125 | .8, 1.5).
    _, gradient, metrics = run(CISPO(cap=cap), aggregation="token_mean")
    near(gradient, [-0.24, -0.15, -0.225, 0.16, last])
    assert metrics["clip_fraction"].tolist() == [0, 0, 0, 0, float(cap < 1.5)]


def test_on_the_first_mini_batch_the_gradient_is_that_of_grpo():
    _, gradient, _ = run(CISPO(), OLD)
    _, expected, _ = run(GRPO(), OLD)
    torch.testing.assert_close(gradient, expected, atol=1e-12, rtol=0)


def test_refusals():
    with pytest.raises(ConfigError, match="cap is 0"):
        CISPO(cap=0)

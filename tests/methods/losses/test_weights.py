"""CISPO and GMPO against values derived by hand, and where each is another loss."""

import pytest
import torch

from apo_lightning.errors import ConfigError
from apo_lightning.losses import GRPO, GSPO
from apo_methods.losses import CISPO, GMPO
from recipes import recipe_of
from sequence_losses import OLD, near, run


@pytest.mark.parametrize(("cap", "last"), [(1.28, 0.256), (5.0, 0.30)])
def test_cispo(cap, last):
    # Weights min(r, cap)·A/5 with r = (1.2, .75, 1.125 | .8, 1.5).
    _, gradient, metrics = run(CISPO(cap=cap), aggregation="token_mean")
    near(gradient, [-0.24, -0.15, -0.225, 0.16, last])
    assert metrics["clip_fraction"].tolist() == [0, 0, 0, 0, float(cap < 1.5)]


def test_gmpo():
    # log r = (log 1.6, log .75, log 1.125 | log .6, log 1.5): 0.470 is clipped at 0.4 where A > 0, −0.511 where A < 0.
    new = torch.tensor([0.8, 0.3, 0.9, 0.3, 0.375], dtype=torch.float64).log()
    loss, gradient, metrics = run(GMPO(clip_eps=0.4), new)
    assert loss == pytest.approx(-0.038491, abs=1e-6)
    near(gradient, [0.0, -0.1800, -0.1800, 0.0, 0.2507])
    assert metrics["clip_fraction"].tolist() == [1, 0, 0, 1, 0]


def test_gmpo_without_a_clip_is_gspo_without_a_clip():
    loss, gradient, _ = run(GMPO(clip_eps=1.0))
    other, same, _ = run(GSPO(clip_eps=1.0, clip_eps_high=100.0))
    assert loss == pytest.approx(other, rel=1e-12)
    torch.testing.assert_close(gradient, same, atol=1e-12, rtol=0)


@pytest.mark.parametrize("loss", [CISPO(), GMPO()])
def test_on_the_first_mini_batch_the_gradient_is_that_of_grpo(loss):
    torch.testing.assert_close(run(loss, OLD)[1], run(GRPO(), OLD)[1], atol=1e-12, rtol=0)


def test_refusals():
    with pytest.raises(ConfigError, match="cap is 0"):
        CISPO(cap=0)
    with pytest.raises(ConfigError, match=r"aggregation is token_mean.*GMPO has one ratio per completion"):
        GMPO().check(recipe_of(minibatches_per_step=2))
    with pytest.raises(ConfigError, match="leave clip_eps_high and dual_clip null"):
        GMPO(dual_clip=3.0)

"""GSPO against values derived by hand, and against the sequence-level forms."""

from dataclasses import replace

import pytest
import torch

from apo_lightning.errors import ConfigError
from apo_lightning.losses import GRPO, GSPO
from apo_lightning.types import LossInputs
from recipes import recipe_of
from sequence_losses import NEW, OLD, near, run


def test_gspo_inside_a_wide_clip():
    # s = (1.2·0.75·1.125)^(1/3) = 1.00415 and (0.8·1.5)^(1/2) = 1.09545; loss = (−s₁ + s₂)/2, gradients ∓s/(2·length).
    loss, gradient, metrics = run(GSPO(clip_eps=0.2))
    assert loss == pytest.approx(0.045648, abs=1e-6)
    near(gradient, [-0.16736, -0.16736, -0.16736, 0.27386, 0.27386])
    near(metrics["ratio_updated"], [1.00415, 1.00415, 1.00415, 1.09545, 1.09545])


def test_gspo_clips_a_whole_completion():
    # 1.00415 is above 1.0004: the good completion is worth 1.0004 and has no gradient.
    loss, gradient, metrics = run(GSPO(clip_eps=3e-4, clip_eps_high=4e-4))
    assert loss == pytest.approx(0.047523, abs=1e-6)
    near(gradient, [0.0, 0.0, 0.0, 0.27386, 0.27386])
    assert metrics["clip_fraction"].tolist() == [1, 1, 1, 0, 0]


def test_gspo_is_the_sequence_level_objective():
    # −(1/2)·Σ_i min(s·A, clip(s)·A), differentiated through s itself.
    for clip in (0.2, 3e-4):
        logprobs = NEW.clone().requires_grad_()
        difference = logprobs - OLD
        s = torch.stack([difference[:3].mean(), difference[3:].mean()]).exp()
        sign = torch.tensor([1.0, -1.0], dtype=torch.float64)
        expected = -torch.minimum(s * sign, s.clamp(1 - clip, 1 + clip) * sign).mean()
        expected.backward()
        loss, gradient, _ = run(GSPO(clip_eps=clip))
        assert loss == pytest.approx(expected.item(), rel=1e-6)  # the weights, 1/6 and 1/4, are in float32
        torch.testing.assert_close(gradient, logprobs.grad, atol=1e-7, rtol=0)


def test_on_the_first_mini_batch_the_gradient_is_that_of_grpo():
    _, gradient, _ = run(GSPO(), OLD)
    _, expected, _ = run(GRPO(), OLD)
    torch.testing.assert_close(gradient, expected, atol=1e-12, rtol=0)


def test_completions_of_one_token_gspo_is_grpo():
    tokens = {"token_ids": torch.zeros(2).long(), "sequence_ids": torch.arange(2), "is_correct": torch.ones(2).bool()}
    inputs = LossInputs(
        **tokens, logprobs=NEW[:2], old_logprobs=OLD[:2], advantages=torch.tensor([1.0, -1.0], dtype=torch.float64)
    )
    gspo = GSPO(clip_eps=0.1)
    found = gspo(replace(inputs, columns=gspo.completion_columns(inputs)))
    torch.testing.assert_close(found.per_token, GRPO(clip_eps=0.1)(inputs).per_token)


def test_refusals():
    with pytest.raises(ConfigError, match=r"aggregation is token_mean.*one ratio per completion"):
        GSPO().check(recipe_of(minibatches_per_step=2))
    GSPO().check(recipe_of(aggregation="sequence_mean_token_mean"))

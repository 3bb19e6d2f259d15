"""A loss is tried before a run: every algorithm passes, and each way of being wrong is one line."""

from dataclasses import dataclass

import pytest
import torch

from apo_lightning.errors import ConfigError
from apo_lightning.losses import GRPO, PolicyLoss
from apo_lightning.losses.trial import try_loss
from apo_lightning.types import LossOutput
from loss_cases import ALGORITHMS, configured_loss


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_loss_of_every_algorithm_passes(name):
    try_loss(configured_loss(name))


@dataclass(frozen=True, kw_only=True)
class Own(PolicyLoss):
    def __call__(self, inputs):
        return self.wrong(inputs)


class Misspelt(Own):
    def wrong(self, inputs):
        return LossOutput(per_token=-inputs.advantage)


class Signature(PolicyLoss):
    def __call__(self, logprobs, old_logprobs, advantages):
        return LossOutput(per_token=-advantages)


class Scalar(Own):
    def wrong(self, inputs):
        return (inputs.logprobs * inputs.advantages).mean()


class Reduced(Own):
    def wrong(self, inputs):
        return LossOutput(per_token=(inputs.logprobs * inputs.advantages).mean()[None])


class Detached(Own):
    def wrong(self, inputs):
        return LossOutput(per_token=-inputs.advantages)


class ZeroByZero(Own):
    def wrong(self, inputs):
        return LossOutput(per_token=-inputs.logprobs * inputs.advantages / inputs.advantages)


class RootOfZero(Own):
    def wrong(self, inputs):
        return LossOutput(per_token=((inputs.logprobs - inputs.logprobs.detach()) * inputs.advantages).abs().sqrt())


class Mask(GRPO):
    def gradient_mask(self, advantages, is_correct):
        return torch.tensor(True)


@pytest.mark.parametrize(
    ("loss", "line"),
    [
        (
            Misspelt,
            r"fails on 8 made-up tokens: AttributeError: .*'advantage'.*test_trial\.py:\d+\); a loss",
        ),
        (
            Signature,
            r"missing 2 required positional arguments: 'old_logprobs' and 'advantages'; a loss takes LossInputs",
        ),
        (Scalar, r"algo\.loss is Scalar, which returns a Tensor: return LossOutput\(per_token=…\)"),
        (Reduced, r"per_token has the shape \[1\] for 8 tokens"),
        (Detached, r"per_token has no gradient .*: compute it from inputs.logprobs without \.detach\(\)"),
        (ZeroByZero, r"per_token is not finite on 2 of 8 made-up tokens, of advantages 0: mind what is 0"),
        (RootOfZero, r"gradient is not finite on 8 of 8 made-up tokens, of advantages -1, 0, 1: mind"),
        (Mask, r"gradient_mask has the shape \[\] for 8 tokens"),
    ],
)
def test_a_wrong_loss_is_refused_in_one_line(loss, line):
    with pytest.raises(ConfigError, match=line):
        try_loss(loss())


@dataclass(frozen=True, kw_only=True)
class PullsEverywhere(GRPO):
    """Also where the advantage is 0, whose completions GRPO's mask leaves out."""

    gradient_mask = GRPO.gradient_mask

    def __call__(self, inputs):
        output = super().__call__(inputs)
        return LossOutput(per_token=output.per_token - 0.01 * inputs.logprobs)


def test_a_gradient_on_tokens_that_are_not_run_is_refused():
    with pytest.raises(ConfigError, match="PullsEverywhere, which has a gradient on tokens that its gradient_mask"):
        try_loss(PullsEverywhere())

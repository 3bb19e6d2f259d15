"""A loss is tried before a run: every algorithm passes, and each way of being wrong is one line."""

from dataclasses import dataclass
from functools import partial

import pytest
import torch

from apo_lightning.errors import ConfigError
from apo_lightning.losses import GRPO, PolicyLoss
from apo_lightning.losses.trial import loss_inputs, try_loss
from apo_lightning.types import LossOutput, Needs
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


@dataclass(frozen=True, kw_only=True)
class ForgetsNeeds(GRPO):
    def __call__(self, inputs):
        return LossOutput(per_token=-inputs.entropy * inputs.logprobs)


@dataclass(frozen=True, kw_only=True)
class PullsEverywhere(GRPO):
    """Also where A = 0, whose completions are not run."""

    beyond: float = 0.0

    def __call__(self, inputs):
        output, ratio = super().__call__(inputs), (inputs.logprobs - inputs.old_logprobs).exp()
        pull = torch.where(ratio.detach() > self.beyond, inputs.logprobs, 0.0)
        return LossOutput(per_token=output.per_token - 0.01 * pull)


OUTSIDE = r"PullsEverywhere, which has a gradient on tokens outside of its needs\.gradient_on='nonzero_advantage'"


@pytest.mark.parametrize(
    ("loss", "line"),
    [
        (
            ForgetsNeeds,
            r"fails on 8 made-up tokens: TypeError: .*NoneType.*; its needs do not name ref_logprobs, anchor, entropy",
        ),
        (Misspelt, r"fails on 8 made-up tokens: AttributeError: .*'advantage'.*test_trial\.py:\d+\); a loss"),
        (
            Signature,
            r"missing 2 required positional arguments: 'old_logprobs' and 'advantages'; a loss takes LossInputs",
        ),
        (Scalar, r"algo\.loss is Scalar, which returns a Tensor: return LossOutput\(per_token=…\)"),
        (Reduced, r"per_token has the shape \[1\] for 8 made-up tokens"),
        (Detached, r"per_token has no gradient .*: compute it from inputs.logprobs without \.detach\(\)"),
        (ZeroByZero, r"per_token is not finite on 2 of 8 made-up tokens, of advantages 0: mind what is 0"),
        (RootOfZero, r"gradient is not finite on 8 of 8 made-up tokens, of advantages -1, 0, 1: mind"),
        (PullsEverywhere, OUTSIDE),
        (lambda: PullsEverywhere(beyond=2.0), OUTSIDE),
    ],
)
def test_a_wrong_loss_is_refused_in_one_line(loss, line):
    with pytest.raises(ConfigError, match=line):
        try_loss(loss())


def test_anchors_may_be_the_whole_vocabulary_and_no_more():
    @dataclass(frozen=True, kw_only=True)
    class Anchored(GRPO):
        size: int

        @property
        def needs(self):
            return Needs(anchor_size=self.size)

    # Two tokens over a vocabulary of three.
    logits, each = torch.tensor([[3.0, 2.0, 1.0]]).log().repeat(2, 1), torch.ones(2)
    given = (logits, logits.log_softmax(1), torch.tensor([0, 1]), torch.tensor([0, 1]), each, each > 0, each)
    assert loss_inputs(Anchored(size=3), *given).anchor.token_ids.tolist() == [[0, 1, 2], [0, 1, 2]]
    with pytest.raises(ConfigError, match="anchor_size is 4 over 3 tokens"):
        loss_inputs(Anchored(size=4), *given)


def test_what_a_loss_reads_is_that_of_the_distributions_it_is_made_of():
    @dataclass(frozen=True, kw_only=True)
    class Reads(GRPO):
        @property
        def needs(self):
            return Needs(anchor_size=2, entropy=True, full_kl=True, ref_logprobs=True)

    p, q = torch.tensor([[0.5, 0.25, 0.25], [0.1, 0.2, 0.7]]), torch.tensor([[0.2, 0.2, 0.6], [0.6, 0.3, 0.1]])
    ids, advantages = torch.tensor([0, 2]), torch.tensor([1.0, -1.0])
    found = loss_inputs(Reads(), p.log(), q.log(), ids, torch.tensor([0, 1]), advantages, advantages > 0, advantages)
    close = partial(torch.testing.assert_close, rtol=1e-6, atol=1e-6)
    close(found.logprobs, torch.tensor([0.5, 0.7]).log())
    close(found.ref_logprobs, torch.tensor([0.2, 0.1]).log())
    close(found.entropy, -(p * p.log()).sum(1))
    close(found.full_kl, (p * (p / q).log()).sum(1))
    assert found.anchor.token_ids.tolist() == [[2, 0], [0, 1]]  # of equal ones, the first
    close(found.anchor.ref_logprobs, torch.tensor([[0.6, 0.2], [0.6, 0.3]]).log())
    close(found.anchor.logprobs, torch.tensor([[0.25, 0.5], [0.1, 0.2]]).log())

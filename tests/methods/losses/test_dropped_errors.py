"""GRPO with errors' tokens dropped: which ones by hand, at which rate, and where it is the plain loss."""

from dataclasses import replace
from math import log, nan

import pytest
import torch

from apo_lightning.errors import ConfigError
from apo_lightning.losses import GRPO
from apo_lightning.types import LossInputs
from apo_methods.losses import DroppedErrors
from loss_cases import make_case, value_and_gradient


def tokens_of(token_ids, old_logprobs, advantages):
    """At r = 1."""
    old_logprobs = torch.as_tensor(old_logprobs)
    return LossInputs(
        token_ids=torch.as_tensor(token_ids),
        sequence_ids=torch.zeros(len(old_logprobs)).long(),
        logprobs=old_logprobs.clone().requires_grad_(),
        old_logprobs=old_logprobs,
        advantages=torch.as_tensor(advantages),
        is_correct=torch.as_tensor(advantages) > 0,
    )


def dropped(loss, inputs):
    return loss(inputs).metrics["dropped_fraction"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_tokens_below_the_fraction_leave_the_loss_where_they_are_of_errors(dtype):
    """log ½ is 0xbf317218 as float32, and the draws of tokens 0 to 3 are 0.4768, 0.4752, 0.3373, 0.2260."""
    advantages = torch.tensor([-2.0, -2.0, -2.0, 2.0], dtype=dtype)
    inputs = tokens_of([0, 1, 2, 3], torch.full((4,), log(0.5), dtype=dtype), advantages)
    output = DroppedErrors(drop_fraction=0.476)(inputs)
    assert output.per_token.tolist() == [2, 0, 0, -2]
    assert torch.autograd.grad(output.per_token.sum(), inputs.logprobs)[0].tolist() == [2, 0, 0, -2]
    assert output.metrics["dropped_fraction"].tolist() == pytest.approx([0, 1, 1, nan], nan_ok=True)
    # After another prefix, where log π_old is log ¼, the draws are 0.0107, 0.0052, 0.5351.
    inputs = replace(inputs, old_logprobs=torch.full((4,), log(0.25), dtype=dtype))
    for fraction, expected in ((0.006, [0, 1, 0]), (0.012, [1, 1, 0]), (0.54, [1, 1, 1])):
        assert dropped(DroppedErrors(drop_fraction=fraction), inputs)[:3].tolist() == expected
    # The draw of token 0 at log π_old = 0 is 0, which is not below 0.
    inputs = replace(inputs, old_logprobs=torch.zeros(4, dtype=dtype))
    for fraction, expected in ((0.0, 0), (1e-9, 1)):
        assert dropped(DroppedErrors(drop_fraction=fraction), inputs)[0] == expected


@pytest.mark.parametrize("kind", ["plain", "weighted", "far"])
def test_with_nothing_to_drop_it_is_grpo_and_with_everything_no_error_is_left(kind):
    case = make_case(kind)
    plain, none = (value_and_gradient(loss, case) for loss in (GRPO(), DroppedErrors(drop_fraction=0)))
    assert torch.equal(none[0], plain[0])
    assert torch.equal(none[1], plain[1])
    assert all(
        torch.equal(none[2].metrics[name].nan_to_num(7), m.nan_to_num(7)) for name, m in plain[2].metrics.items()
    )
    spared = replace(case, advantages=case.advantages.clamp(min=0))
    found, expected = (
        value_and_gradient(*each)[:2] for each in ((DroppedErrors(drop_fraction=1), case), (GRPO(), spared))
    )
    assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))


@pytest.mark.parametrize("fraction", [0.05, 0.125, 0.7])
def test_the_share_is_the_fraction_for_each_token_and_for_each_probability(fraction):
    num, generator = 20_000, torch.Generator().manual_seed(0)
    loss, tolerance = DroppedErrors(drop_fraction=fraction), 4 * (fraction * (1 - fraction) / num) ** 0.5
    logprobs, token_ids = torch.rand(num, generator=generator).log(), torch.randint(50_000, (num,), generator=generator)
    for ids, old in (
        (token_ids, logprobs),
        (torch.full_like(token_ids, 7), logprobs),
        (torch.arange(num), logprobs[:1]),
    ):
        share = dropped(loss, tokens_of(ids, old.expand(num), -torch.ones(num)))
        assert share.mean().item() == pytest.approx(fraction, abs=tolerance)
        # Neighbours are drawn independently: both are dropped in fraction² of the pairs.
        assert (share[1:] * share[:-1]).mean().item() == pytest.approx(fraction**2, abs=2 * tolerance)


def test_equal_tokens_after_equal_prefixes_are_dropped_together_in_every_minibatch():
    """Whatever the policy, the advantage and the other tokens of the micro-batch are by then."""
    generator = torch.Generator().manual_seed(1)
    token_ids, old = torch.randint(90, (400,), generator=generator), torch.rand(400, generator=generator).log()
    inputs = tokens_of(token_ids, old, -torch.rand(400, generator=generator) - 0.1)
    loss, order = DroppedErrors(drop_fraction=0.4), torch.randperm(400, generator=generator)
    later = replace(tokens_of(token_ids[order], old[order], -torch.ones(400)), logprobs=old[order] + 0.3)
    first = dropped(loss, inputs)
    assert 0 < first.mean() < 1
    assert torch.equal(dropped(loss, later), first[order])


@pytest.mark.parametrize("fraction", [-0.1, 1.5])
def test_a_share_out_of_range_is_refused(fraction):
    with pytest.raises(ConfigError, match=f"drop_fraction is {fraction}: give a number from 0 to 1"):
        DroppedErrors(drop_fraction=fraction)

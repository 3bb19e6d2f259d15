"""κ, the anchor ratio at which APO's gradient ends."""

import math

import pytest
import torch

from apo_lightning.losses import APO
from apo_lightning.types import Anchor, LossInputs


# κ = (λ − (1 − ε))/β
@pytest.mark.parametrize(
    ("loss", "edge"),
    [
        (APO(), 2.5),
        (APO(pull_coef=0.04), 6.25),
        (APO(pull_coef=0.0), math.inf),
        (APO(push_coef=1.0), 2.0),
        (APO(push_coef=0.84, pull_coef=0.03, clip_eps=0.2), 4 / 3),
        (APO(push_coef=1.3, pull_coef=1.0, clip_eps=0.75, clip_eps_high=0.1), 1.05),
        (APO(push_coef=1.3, pull_coef=0.2, clip_eps=0.75), 5.25),
    ],
)
def test_the_edge_of_saturation_by_hand(loss, edge):
    assert loss.saturated_above == pytest.approx(edge)


@pytest.mark.parametrize(("factor", "moves"), [(0.99, True), (1.01, False)])
def test_the_gradient_of_the_loss_ends_at_the_edge(factor, moves):
    loss = APO(anchor_size=2, pull_coef=0.05)
    log_half, z_ref = torch.tensor([0.5]).log(), 0.1
    logprobs = torch.tensor([[0.5, z_ref * loss.saturated_above * factor]]).log().requires_grad_()
    ref_logprobs = torch.tensor([[0.5, z_ref]]).log()
    output = loss(
        LossInputs(
            token_ids=torch.tensor([3]),
            sequence_ids=torch.tensor([0]),
            logprobs=log_half,
            old_logprobs=log_half,
            advantages=torch.tensor([-1.0]),
            is_correct=torch.tensor([False]),
            anchor=Anchor(token_ids=torch.tensor([[3, 7]]), ref_logprobs=ref_logprobs, logprobs=logprobs),
        )
    )
    (gradient,) = torch.autograd.grad(output.per_token.sum(), logprobs)
    assert bool(gradient.any()) is moves

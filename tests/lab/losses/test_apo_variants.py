"""What APO's variants change, on one token worked out by hand, and what they leave alone."""

import pytest
import torch

from apo_lab.losses import CrossEntropyAPO, GateOnlyAPO, LogMassAPO, RandomAnchorAPO, TopKForwardKL, UngatedAPO
from apo_lab.losses.topk_forward_kl import topk_forward_kl
from apo_lightning.errors import ConfigError
from apo_lightning.losses import APO
from apo_lightning.types import Anchor, LossInputs
from loss_cases import make_case, value_and_gradient

# S = {0, 1}, Z_ref = 3/4, Σ_S π = 1/2, r_anchor = 2/3, ρ = 1.05 − 0.0667 = 0.9833
POLICY = torch.tensor([[0.2, 0.3, 0.1, 0.4]], dtype=torch.float64)
REFERENCE = torch.tensor([[0.5, 0.25, 0.125, 0.125]], dtype=torch.float64)
SURE = torch.tensor([[0.1, 0.05, 0.01, 0.84]], dtype=torch.float64)
Y = torch.tensor([3])


def slopes(loss, *, reference=REFERENCE, advantage=-1.0):
    """(loss, its gradient by the logits) of one token at r = 1."""
    logits = POLICY.log().requires_grad_()
    logprobs = logits.log_softmax(1)
    ids = reference.topk(loss.anchor_size).indices
    at_y = logprobs.gather(1, Y[:, None])[:, 0]
    inputs = LossInputs(
        token_ids=Y,
        sequence_ids=torch.zeros(1, dtype=torch.long),
        logprobs=at_y,
        old_logprobs=at_y.detach(),
        advantages=torch.tensor([advantage], dtype=torch.float64),
        is_correct=torch.tensor([advantage > 0]),
        anchor=Anchor(token_ids=ids, ref_logprobs=reference.log().gather(1, ids), logprobs=logprobs.gather(1, ids)),
    )
    value = loss(inputs).per_token
    return value.item(), torch.autograd.grad(value.sum(), logits)[0][0]


@pytest.mark.parametrize(
    ("loss", "gradient"),
    [
        # push λ·(e_y − π)·π_y/π_y = (−.21, −.315, −.105, .63), of which the pull takes β times:
        # r_anchor·(q_S − π) with q_S − π = (.2, .3, −.1, −.4); nothing; q_S − π; Q* − π = (.4667, .0333, −.1, −.4)
        (APO, (-0.223333, -0.335, -0.098333, 0.656667)),
        (GateOnlyAPO, (-0.21, -0.315, -0.105, 0.63)),
        (LogMassAPO, (-0.23, -0.345, -0.095, 0.67)),
        (CrossEntropyAPO, (-0.256667, -0.318333, -0.095, 0.67)),
    ],
)
def test_the_value_is_apos_and_the_pull_is_its_own(loss, gradient):
    value, found = slopes(loss(anchor_size=2))
    assert value == pytest.approx(1.05 - 0.1 * 2 / 3)
    torch.testing.assert_close(found, torch.tensor(gradient, dtype=torch.float64), atol=1e-6, rtol=0)


def test_without_a_pull_the_gate_still_shuts():
    """π on {0, 1} is .5, π_ref .15: r_anchor = 3.3 > 2.5, and β = 0 would not notice."""
    assert (slopes(GateOnlyAPO(anchor_size=3), reference=SURE)[1] == 0).all()
    assert (slopes(APO(anchor_size=3, pull_coef=0.0), reference=SURE)[1] != 0).any()


def test_outside_the_clip_the_pull_is_apos_where_that_is_open_and_goes_on_where_it_is_shut():
    case = make_case("plain", num_tokens=96)
    _, gated, output = value_and_gradient(APO(), case, torch.float64)
    _, ungated, beside = value_and_gradient(UngatedAPO(), case, torch.float64)
    triggered = output.metrics["apo/triggered_fraction"] == 1
    is_open = ~triggered | (output.metrics["clip_fraction"] == 0)
    torch.testing.assert_close(ungated[is_open], gated[is_open], atol=1e-12, rtol=0)
    shut = ~is_open & (beside.metrics["apo/anchor_ratio"] > 0)
    assert shut.any()
    assert (gated[shut] == 0).all()
    assert (ungated[shut] != 0).any(1).all()


def test_correct_answers_pull_too_where_asked():
    """A > 0: ρ = r + β·r_anchor, so that the loss falls by more, and the anchors rise."""
    value, gradient = slopes(APO(anchor_size=2, trigger="always"), advantage=1.0)
    alone_value, alone = slopes(APO(anchor_size=2), advantage=1.0)
    assert value == pytest.approx(alone_value - 0.1 * 2 / 3)
    assert ((gradient - alone)[:2] < 0).all()
    assert ((gradient - alone)[2:] > 0).all()


def test_random_anchors_are_never_the_sampled_token_and_know_no_rank():
    num_tokens, pool, size = 4000, 10, 3
    generator = torch.Generator().manual_seed(0)
    ids = torch.rand(num_tokens, pool, generator=generator).argsort(dim=1)
    y = torch.randint(pool, (num_tokens,), generator=generator)
    flat, zeros = torch.full((num_tokens, pool), 1.0 / pool).log(), torch.zeros(num_tokens)
    inputs = LossInputs(
        token_ids=y,
        sequence_ids=torch.zeros_like(y),
        logprobs=zeros,
        old_logprobs=zeros,
        advantages=zeros - 1,
        is_correct=zeros.bool(),
        anchor=Anchor(token_ids=ids, ref_logprobs=flat, logprobs=flat),
    )
    loss = RandomAnchorAPO(anchor_size=size, pool_size=pool)
    taken = loss.anchors(inputs).token_ids
    assert ((taken >= 0).sum(1) == size).all()
    assert (taken != y[:, None]).all()
    # Four standard errors of a share of .3 in 4000 draws.
    by_rank = (taken >= 0).double().mean(0)
    assert (by_rank - size / pool).abs().max() < 4 * (0.3 * 0.7 / num_tokens) ** 0.5
    assert torch.equal(loss.anchors(inputs).token_ids, taken)


def test_a_pool_smaller_than_the_draw_is_refused():
    with pytest.raises(ConfigError, match="pool_size is 4: give at least anchor_size, 8"):
        RandomAnchorAPO(pool_size=4)


def top_k_divergence(policy, reference, k):
    return topk_forward_kl(policy.log()[:, :k], reference.log()[:, :k], torch.ones(1, k, dtype=torch.bool))


def test_the_forward_kl_of_the_top_k_by_hand():
    """K = 2: J = .5, J_ref = .75, D = .5·log 2.5 + .25·log(.25/.3) + .25·log(.25/.5) = .239278.

    ∂D/∂z = π − π_ref on T; the bucket's .5 − .25 is shared by its two tokens, .1 and .4, as .05 and .2.
    """
    logits = POLICY.log().requires_grad_()
    divergence = top_k_divergence(logits.softmax(1), REFERENCE, 2)
    assert divergence.item() == pytest.approx(0.239278, abs=1e-6)
    (gradient,) = torch.autograd.grad(divergence.sum(), logits)
    torch.testing.assert_close(gradient[0], torch.tensor([-0.3, 0.05, 0.05, 0.2], dtype=torch.float64))


@pytest.mark.parametrize("size", [1, 2, 3])
def test_the_forward_kl_rises_with_k_and_stays_below_the_full_one(size):
    full = (REFERENCE * (REFERENCE / POLICY).log()).sum().item()
    assert 0 <= top_k_divergence(POLICY, REFERENCE, size).item() <= top_k_divergence(POLICY, REFERENCE, size + 1).item()
    assert top_k_divergence(POLICY, REFERENCE, 4).item() == pytest.approx(full, abs=1e-5)
    assert top_k_divergence(POLICY, POLICY, size).item() == pytest.approx(0.0, abs=1e-9)


def test_the_forward_kl_is_on_errors_alone_or_everywhere():
    advantages, correct = torch.tensor([-1.0, 0.0, 1.0]), torch.tensor([False, True, True])
    assert TopKForwardKL().reference_mask(advantages, correct).tolist() == [True, False, False]
    assert TopKForwardKL(error_only=False).reference_mask(advantages, correct).tolist() == [True, True, True]
    assert TopKForwardKL(error_only=False).gradient_mask(advantages, correct).tolist() == [True, True, True]


@pytest.mark.parametrize(
    ("settings", "message"), [({"kl_coef": -1.0}, "kl_coef is -1.0"), ({"anchor_size": 0}, "anchor_size is 0")]
)
def test_a_forward_kl_that_cannot_be_is_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        TopKForwardKL(**settings)

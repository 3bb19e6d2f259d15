"""The terms of a loss, told apart by differentiating it, are the rows of the equations and sum to the loss."""

import pytest
import torch

from apo_lab.losses.terms import term_names, term_slopes
from apo_lab.theory.forces import loss_inputs, token_forces
from apo_lightning.losses import APO, GRPO, GRPOKL
from apo_lightning.types import TokenStatistics

LOSSES = {
    "apo": APO(anchor_size=3),
    "apo_naive": APO(anchor_size=3, exclude_sampled=False, entropy_coef=0.1),
    "grpo": GRPO(entropy_coef=0.05),
    "dual_clip": GRPO(dual_clip=3.0),
    "k1": GRPOKL(kl_estimator="k1"),
    "k3": GRPOKL(kl_estimator="k3", kl_coef=0.5),
    "k3_on_errors": GRPOKL(kl_estimator="k3", kl_coef=0.5, error_only=True, entropy_coef=0.1),
    "full": GRPOKL(kl_estimator="full", kl_coef=0.5),
}


def states(num_tokens=200, vocab=6, off_policy=0.3):
    generator = torch.Generator().manual_seed(5)
    draw = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)  # noqa: E731
    logits = draw(num_tokens, vocab)
    return {
        "logits": logits,
        "ref": (3 * draw(num_tokens, vocab)).softmax(1),
        "token_ids": torch.randint(0, vocab, (num_tokens,), generator=generator),
        "advantages": draw(num_tokens).round(decimals=1),
        "old_logits": logits + off_policy * draw(num_tokens, vocab),
    }


def forces_of_terms(loss, state):
    """−∂/∂z of every term, token by token."""
    z = state["logits"].clone().requires_grad_()
    correct = state["advantages"] > 0
    inputs = loss_inputs(loss, z, state["ref"], state["token_ids"], state["advantages"], correct, state["old_logits"])
    logp = z.log_softmax(1)
    said = TokenStatistics(
        logprobs=inputs.logprobs,
        entropy=-(logp.exp() * logp).sum(1),
        max_prob=inputs.logprobs,
        anchor_logprobs=None if inputs.anchor is None else inputs.anchor.logprobs,
        full_kl=inputs.full_kl,
    )
    return {
        name: -torch.autograd.grad(slopes.linear(said).sum(), z, retain_graph=True)[0]
        for name, slopes in term_slopes(loss, inputs).items()
    }


@pytest.mark.parametrize("name", LOSSES)
def test_the_terms_sum_to_the_losss_own_gradient(name):
    loss, state = LOSSES[name], states()
    found = forces_of_terms(loss, state)
    assert tuple(found) == term_names(loss)
    whole = token_forces(
        loss, *(state[key] for key in ("logits", "ref", "token_ids", "advantages")), None, state["old_logits"]
    )
    torch.testing.assert_close(sum(found.values()), whole, atol=1e-12, rtol=0)
    assert all(force.abs().max() > 0 for force in found.values())


def test_apos_terms_are_the_rows_of_the_table_of_forces_at_the_sampling_policy():
    """At r = 1: reward A·(e_y − π); push −|A|·λ·(e_y − π); pull |A|·β·r_a·(q_S − π); both 0 where r_a > κ."""
    loss, state = APO(anchor_size=3), states(off_policy=0.0)
    found = forces_of_terms(loss, state)
    probs, ref, y, advantages = (
        state["logits"].softmax(1),
        state["ref"],
        state["token_ids"],
        state["advantages"][:, None],
    )
    e_y = torch.nn.functional.one_hot(y, 6).double()
    anchors = torch.zeros_like(ref).scatter(1, ref.topk(3).indices, 1.0) * (1 - e_y)
    mass, ref_mass = ((p * anchors).sum(1, keepdim=True) for p in (probs, ref))
    r_anchor = mass / ref_mass
    is_on = (advantages < 0) & (1.05 - 0.1 * r_anchor >= 0.8)
    assert is_on.any()
    assert ((advantages < 0) & ~is_on).any()
    torch.testing.assert_close(found["reward"], advantages.clamp(min=0) * (e_y - probs), atol=1e-12, rtol=0)
    torch.testing.assert_close(found["push"], is_on * advantages * 1.05 * (e_y - probs), atol=1e-12, rtol=0)
    pull = is_on * advantages.abs() * 0.1 * r_anchor * (probs * anchors / mass - probs)
    torch.testing.assert_close(found["pull"], pull, atol=1e-12, rtol=0)

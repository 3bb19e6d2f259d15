"""The exact KL against the definition."""

import math

import torch

from apo_lightning.logprobs import full_kl


def problem(dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    hidden, ref_hidden = torch.randn(2, 11, 6, generator=generator, dtype=dtype)
    weight, ref_weight = torch.randn(2, 17, 6, generator=generator, dtype=dtype)
    return hidden.requires_grad_(), weight.requires_grad_(), ref_hidden.requires_grad_(), ref_weight.requires_grad_()


def naive(hidden, weight, ref_hidden, ref_weight, temperature):
    log_p = (hidden @ weight.T / temperature).log_softmax(1)
    log_q = (ref_hidden @ ref_weight.T / temperature).log_softmax(1).detach()
    return (log_p.exp() * (log_p - log_q)).sum(1)


def test_value_and_gradient_are_those_of_the_definition():
    tensors = problem()
    coefficients = torch.arange(1.0, 12.0, dtype=torch.float64)
    actual, expected = full_kl(*tensors, temperature=0.7), naive(*tensors, 0.7)
    torch.testing.assert_close(actual, expected)
    gradients = torch.autograd.grad((coefficients * actual).sum(), tensors[:2])
    expected_gradients = torch.autograd.grad((coefficients * expected).sum(), tensors[:2])
    for gradient, reference in zip(gradients, expected_gradients, strict=True):
        torch.testing.assert_close(gradient, reference)


def test_the_reference_gets_no_gradient():
    hidden, weight, ref_hidden, ref_weight = problem()
    full_kl(hidden, weight, ref_hidden, ref_weight).sum().backward()
    assert hidden.grad is not None
    assert ref_hidden.grad is None
    assert ref_weight.grad is None


def test_the_gradient_passes_gradcheck():
    hidden, weight, ref_hidden, ref_weight = (t.detach()[:4] for t in problem())
    policy = (hidden.requires_grad_(), weight.requires_grad_())
    assert torch.autograd.gradcheck(lambda h, w: full_kl(h, w, ref_hidden, ref_weight), policy)


def test_equal_policies_have_no_divergence():
    hidden, weight, _, _ = problem(torch.float32)
    torch.testing.assert_close(full_kl(hidden, weight, hidden, weight), torch.zeros(11), rtol=0, atol=1e-6)


def test_tokens_that_the_policy_never_says_count_nothing():
    """1e30 · (−1e30) overflows to −∞ for the third token, in the policy alone."""
    hidden = torch.tensor([[1e30, 1.0]], requires_grad=True)
    weight = torch.tensor([[0.0, 1.0], [0.0, 2.0], [-1e30, 0.0]])
    kl = full_kl(hidden, weight, torch.zeros(1, 2), torch.zeros(3, 2))
    p = torch.tensor([1.0, 2.0]).softmax(0)
    torch.testing.assert_close(kl, (p * (p * 3).log()).sum()[None])
    kl.sum().backward()
    assert hidden.grad is not None
    assert not hidden.grad.isnan().any()


def test_heads_of_other_widths_can_be_compared():
    hidden, weight, _, _ = problem()
    kl = full_kl(hidden, weight, torch.zeros(11, 2, dtype=torch.float64), torch.zeros(17, 2, dtype=torch.float64))
    log_p = (hidden @ weight.T).log_softmax(1)
    torch.testing.assert_close(kl, math.log(17) + (log_p.exp() * log_p).sum(1))

"""The tiled head against the naive one: full logits, log_softmax, autograd."""

import math
from contextlib import nullcontext

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from apo_lightning.errors import ConfigError
from apo_lightning.logprobs import DetachedHead, full_kl, head, reference_statistics, token_statistics
from factories import head_problem as problem


def naive(hidden, weight, token_ids, anchor_ids, temperature):
    logprobs = (hidden @ weight.T / temperature).log_softmax(1)
    at_anchors = logprobs.gather(1, anchor_ids.clamp(min=0)).masked_fill(anchor_ids < 0, -torch.inf)
    entropy = -(logprobs.exp() * logprobs).sum(1)
    return logprobs.gather(1, token_ids[:, None])[:, 0], entropy, logprobs.exp().amax(1).detach(), at_anchors


def outputs(statistics):
    return statistics.logprobs, statistics.entropy, statistics.max_prob, statistics.anchor_logprobs


def scalar(values, anchor_ids):
    """Mixes all differentiable outputs with unequal weights."""
    logprobs, entropy, _, at_anchors = values
    coefficients = torch.arange(1, len(logprobs) + 1, dtype=logprobs.dtype) / len(logprobs)
    anchors = torch.where(anchor_ids >= 0, at_anchors, 0.0)
    slots = torch.arange(1, anchor_ids.shape[1] + 1, dtype=logprobs.dtype)
    return (coefficients * (logprobs - 0.7 * entropy) + (anchors * slots).sum(1)).sum()


@pytest.mark.parametrize("temperature", [0.6, 1.0])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-11), (torch.float32, 5e-6)])
def test_values_and_gradients_are_those_of_the_full_logits(dtype, tolerance, temperature):
    hidden, weight, token_ids, anchor_ids = problem(dtype=dtype)
    exact = [t.detach().double().requires_grad_() for t in (hidden, weight)]
    expected = naive(*exact, token_ids, anchor_ids, temperature)
    actual = outputs(token_statistics(hidden, weight, token_ids, anchor_ids, temperature=temperature))
    for value, reference in zip(actual, expected, strict=True):
        torch.testing.assert_close(value.double(), reference, rtol=tolerance, atol=tolerance)
    gradients = torch.autograd.grad(scalar(actual, anchor_ids), (hidden, weight))
    expected_gradients = torch.autograd.grad(scalar(expected, anchor_ids), exact)
    for gradient, reference in zip(gradients, expected_gradients, strict=True):
        assert gradient.dtype == dtype
        error = (gradient.double() - reference).abs().max() / reference.abs().max()
        assert error < tolerance


@pytest.mark.parametrize("reads", ["logprobs", "entropy", "anchors"])
def test_each_output_passes_gradcheck(reads):
    hidden, weight, token_ids, anchor_ids = problem(num_tokens=4, hidden_size=3, vocab=5, anchors=2)
    anchor_ids = anchor_ids.clamp(min=0)

    def function(hidden, weight):
        logprobs, entropy, _, at_anchors = outputs(token_statistics(hidden, weight, token_ids, anchor_ids))
        return {"logprobs": logprobs, "entropy": entropy, "anchors": at_anchors}[reads]

    # The first backward finds the logits held, later ones make them again: the same but for rounding.
    assert torch.autograd.gradcheck(function, (hidden, weight), nondet_tol=1e-12)


@pytest.mark.parametrize("shape", [(1, 1), (2, 5), (5, 2), (11, 17), (64, 64)])
def test_the_size_of_a_tile_changes_nothing(monkeypatch, shape):
    hidden, weight, token_ids, anchor_ids = problem()

    def run():
        values = outputs(token_statistics(hidden, weight, token_ids, anchor_ids))
        kl = full_kl(hidden, weight, hidden.detach() * 1.1, weight.detach())
        reference = reference_statistics(hidden, weight, token_ids, 4)
        gradients = torch.autograd.grad(scalar(values, anchor_ids) + kl.sum(), (hidden, weight))
        return *values, kl, reference.logprobs, reference.anchor_ids, reference.anchor_logprobs, *gradients

    expected = run()
    monkeypatch.setattr(head, "tile_shape", lambda *_: shape)
    for value, reference in zip(run(), expected, strict=True):
        torch.testing.assert_close(value, reference, rtol=1e-12, atol=1e-12)


@given(num_tokens=st.integers(0, 20_000), vocab=st.integers(1, 300_000))
def test_a_cpus_tile_has_all_tokens_that_fit_and_a_32nd_of_the_logits(num_tokens, vocab):
    rows, columns = head.tile_shape(num_tokens, vocab, torch.device("cpu"))
    assert rows == max(1, math.ceil(num_tokens / max(1, math.ceil(num_tokens / 512))))
    assert 1 <= columns <= vocab
    share = max(num_tokens * vocab / 32, head.FEWEST_LOGITS_CPU)
    assert rows * columns <= max(min(share, 2**20), rows)
    # and no smaller than that but for the multiple of 128
    assert columns == vocab or rows * (columns + 128) > min(share, 2**20) - rows


@given(num_tokens=st.integers(0, 20_000), vocab=st.integers(1, 300_000))
def test_a_gpus_tile_stays_in_its_cache_and_has_rows_that_products_like(num_tokens, vocab):
    rows, columns = head.tile_shape(num_tokens, vocab, torch.device("cuda"))
    assert rows == max(1, math.ceil(num_tokens / max(1, math.ceil(num_tokens / 4096))))
    assert 1 <= columns <= vocab
    assert columns == vocab or (columns % 128 == 0 and 2**25 - 128 * rows < rows * columns <= 2**25)


class Calls(TorchDispatchMode):
    """Which operations are called."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def test_sums_beyond_the_cpu_are_float32_and_made_in_place(monkeypatch):
    # Tensors without numbers tell whether torch takes the calls, and nothing else; autocast does not know them.
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: nullcontext())
    total, out = (torch.empty(4, 5, device="meta") for _ in range(2))
    left, right = (torch.empty(shape, device="meta", dtype=torch.bfloat16) for shape in ((4, 3), (3, 5)))
    with Calls() as calls:
        head.add_product_(total, left, right)
    assert calls.names == ["aten.addmm.dtype_out"]
    product = head.matmul(left, right, torch.float32, out)
    assert product.untyped_storage()._cdata == out.untyped_storage()._cdata
    assert head.matmul(left, right, torch.float32).dtype == product.dtype == torch.float32


@pytest.mark.parametrize("made_again", [False, True])
@pytest.mark.parametrize("reads", ["logprobs", "entropy"])
def test_tokens_without_a_gradient_enter_no_product_of_the_backward(reads, made_again, monkeypatch):
    monkeypatch.setattr(head, "LOGITS_HELD_CPU", 0 if made_again else 2**23)
    hidden, weight, token_ids, anchor_ids = problem()
    values = outputs(token_statistics(hidden, weight, token_ids, anchor_ids))
    values_at = values[0] if reads == "logprobs" else values[1]
    coefficients = torch.tensor([0.0, 1, 0, 0, -2, 0, 0, 0, 0, 0, 0], dtype=torch.float64)
    with FlopCounterMode(display=False) as flops:
        gradients = torch.autograd.grad((coefficients * values_at).sum(), (hidden, weight))
    num_products = 3 if made_again else 2  # logits where they were not held, ∂h and ∂W
    assert flops.get_total_flops() == num_products * 2 * 2 * weight.numel()  # of two tokens
    expected = naive(hidden, weight, token_ids, anchor_ids, 1.0)
    expected_at = expected[0] if reads == "logprobs" else expected[1]
    for one, two in zip(
        gradients, torch.autograd.grad((coefficients * expected_at).sum(), (hidden, weight)), strict=True
    ):
        torch.testing.assert_close(one, two)


def test_the_uniform_distribution():
    statistics = token_statistics(torch.zeros(2, 3), torch.randn(8, 3), torch.tensor([0, 7]))
    torch.testing.assert_close(statistics.logprobs, torch.full((2,), -math.log(8)))
    torch.testing.assert_close(statistics.entropy, torch.full((2,), math.log(8)))
    torch.testing.assert_close(statistics.max_prob, torch.full((2,), 1 / 8))
    assert statistics.anchor_logprobs is None


def test_a_certain_distribution_has_entropy_zero_and_finite_gradients():
    hidden, weight = torch.ones(1, 1, requires_grad=True), torch.tensor([[1000.0], [0.0]], requires_grad=True)
    statistics = token_statistics(hidden, weight, torch.tensor([1]), torch.tensor([[0]]))
    assert statistics.logprobs.item() == -1000.0
    assert statistics.entropy.item() == 0.0
    assert statistics.max_prob.item() == 1.0
    (statistics.logprobs + statistics.entropy).sum().backward()
    assert hidden.grad is not None
    assert hidden.grad.isfinite().all()


def test_logits_of_minus_infinity_give_no_nan():
    """1e30 · (−1e30) overflows to −∞; that token has probability 0."""
    hidden = torch.tensor([[1e30, 1.0]], requires_grad=True)
    weight = torch.tensor([[0.0, 1.0], [0.0, 2.0], [-1e30, 0.0]], requires_grad=True)
    statistics = token_statistics(hidden, weight, torch.tensor([0]), torch.tensor([[1, 2]]))
    assert statistics.anchor_logprobs is not None
    assert statistics.anchor_logprobs[0, 1] == -torch.inf
    p = torch.tensor([1.0, 2.0]).softmax(0)
    torch.testing.assert_close(statistics.entropy, -(p * p.log()).sum()[None])
    (statistics.logprobs + statistics.entropy + statistics.anchor_logprobs[:, 0]).sum().backward()
    for tensor in (hidden, weight):
        assert tensor.grad is not None
        assert not tensor.grad.isnan().any()


def test_an_absent_anchor_is_minus_infinity_and_passes_no_gradient():
    hidden, weight, token_ids, _ = problem()
    absent = torch.full((11, 2), -1)
    statistics = token_statistics(hidden, weight, token_ids, absent)
    assert statistics.anchor_logprobs is not None
    assert (statistics.anchor_logprobs == -torch.inf).all()
    # What flows back to an absent slot is poison on purpose.
    gradients = torch.autograd.grad(
        (statistics.anchor_logprobs, statistics.logprobs),
        (hidden, weight),
        (torch.full((11, 2), torch.nan, dtype=torch.float64), torch.zeros(11, dtype=torch.float64)),
    )
    assert all((gradient == 0).all() for gradient in gradients)


def test_no_tokens_can_be_backwarded():
    hidden, weight, token_ids, anchor_ids = problem(num_tokens=1)
    hidden = hidden.detach()[:0].requires_grad_()
    values = outputs(token_statistics(hidden, weight, token_ids[:0], anchor_ids[:0]))
    gradients = torch.autograd.grad(scalar(values, anchor_ids[:0]), (hidden, weight))
    assert gradients[0].shape == (0, 6)
    assert (gradients[1] == 0).all()
    reference = reference_statistics(hidden, weight, token_ids[:0], 3)
    assert reference.anchor_ids is not None
    assert reference.anchor_ids.shape == (0, 3)


def test_a_frozen_head_gets_no_gradient():
    hidden, weight, token_ids, anchor_ids = problem()
    values = outputs(token_statistics(hidden, weight.detach(), token_ids, anchor_ids))
    (gradient,) = torch.autograd.grad(scalar(values, anchor_ids), hidden)
    expected = naive(hidden, weight, token_ids, anchor_ids, 1.0)
    torch.testing.assert_close(gradient, torch.autograd.grad(scalar(expected, anchor_ids), hidden)[0])


def test_under_autocast_products_run_in_bfloat16_and_everything_else_in_float32():
    hidden, weight, token_ids, anchor_ids = problem(num_tokens=64, hidden_size=32, vocab=50, dtype=torch.float32)
    expected = naive(hidden, weight, token_ids, anchor_ids, 1.0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        actual = outputs(token_statistics(hidden, weight, token_ids, anchor_ids))
    assert all(value.dtype == torch.float32 for value in actual)
    # bfloat16 has eight bits: errors far above those of float32, far below those of a wrong formula.
    assert (actual[0] - expected[0]).abs().max() > 1e-3
    for value, reference in zip(actual[:3], expected[:3], strict=True):
        torch.testing.assert_close(value, reference, rtol=0.02, atol=0.15)
    gradients = torch.autograd.grad(scalar(actual, anchor_ids), (hidden, weight))
    exact = torch.autograd.grad(scalar(expected, anchor_ids), (hidden, weight))
    for gradient, reference in zip(gradients, exact, strict=True):
        assert gradient.dtype == torch.float32
        assert torch.nn.functional.cosine_similarity(gradient.flatten(), reference.flatten(), dim=0) > 0.999


def test_probabilities_sum_to_one_even_when_logits_are_rounded_to_bfloat16():
    """Log-probs are softmaxes of the rounded logits in float32, not rounded themselves."""
    hidden, weight, _, _ = problem(num_tokens=1, vocab=40, scale=5.0, dtype=torch.float32)
    every = torch.arange(40)[None]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        statistics = token_statistics(hidden, weight, torch.tensor([0]), every)
    assert statistics.anchor_logprobs is not None
    assert statistics.anchor_logprobs.exp().sum().item() == pytest.approx(1.0, abs=1e-5)


def test_low_precision_inputs_get_low_precision_gradients():
    hidden, weight, token_ids, anchor_ids = problem(dtype=torch.bfloat16)
    values = outputs(token_statistics(hidden, weight, token_ids, anchor_ids))
    assert values[0].dtype == torch.float32
    gradients = torch.autograd.grad(scalar(values, anchor_ids), (hidden, weight))
    assert all(gradient.dtype == torch.bfloat16 for gradient in gradients)


class LargestAllocation(TorchDispatchMode):
    """The most elements that any operation returned, heads and their gradients aside."""

    def __init__(self, head_shape):
        super().__init__()
        self.head_shapes = {tuple(head_shape), tuple(reversed(head_shape))}
        self.elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(tensor, torch.Tensor) and tuple(tensor.shape) not in self.head_shapes:
                self.elements = max(self.elements, tensor.numel())
        return result


@pytest.mark.parametrize("autocast", [False, True])
def test_no_tensor_is_as_large_as_a_sixteenth_of_the_logits(autocast):
    num_tokens, vocab = 1024, 5000
    hidden, weight, token_ids, anchor_ids = problem(num_tokens, hidden_size=8, vocab=vocab, dtype=torch.float32)

    with LargestAllocation(weight.shape) as largest, torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        values = outputs(token_statistics(hidden, weight, token_ids, anchor_ids))
        kl = full_kl(hidden, weight, hidden.detach(), weight.detach() * 1.1)
        detached = DetachedHead(hidden, weight)
        for rows in detached.chunks():
            statistics = detached.statistics(rows, token_ids[rows], anchor_ids[rows])
            detached.add((statistics.logprobs + statistics.entropy + statistics.anchor_logprobs[:, 0]).sum())
        torch.autograd.grad(scalar(values, anchor_ids) + kl.sum() + detached.total_loss(), (hidden, weight))
        reference_statistics(hidden.detach(), weight.detach(), token_ids, 8)
    assert 0 < largest.elements < num_tokens * vocab / 16


@pytest.mark.parametrize("temperature", [0.0, -1.0, math.nan])
def test_a_temperature_without_a_distribution_is_refused(temperature):
    hidden, weight, token_ids, _ = problem()
    with pytest.raises(ConfigError, match="temperature is"):
        token_statistics(hidden, weight, token_ids, temperature=temperature)
    with pytest.raises(ConfigError, match="temperature is"):
        reference_statistics(hidden, weight, token_ids, 1, temperature=temperature)
    with pytest.raises(ConfigError, match="temperature is"):
        full_kl(hidden, weight, hidden, weight, temperature=temperature)

"""The gradient taken chunk by chunk against the one of all tokens at once."""

from functools import partial

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from apo_lightning.logprobs import DetachedHead, reference, softmax, token_statistics
from apo_lightning.logprobs import head as tiles
from factories import head_problem

problem = partial(head_problem, num_tokens=37, vocab=53)


def anchored(statistics, rows):
    """Linear in no output, and 0 for every fifth token."""
    mass = torch.where(statistics.anchor_logprobs == -torch.inf, 0.0, statistics.anchor_logprobs.exp()).sum(1)
    coefficients = torch.arange(rows.start, rows.stop) % 5
    return coefficients * (statistics.logprobs.exp() - 0.3 * mass)


def with_entropy(statistics, rows):
    return anchored(statistics, rows) + 0.1 * statistics.entropy.square()


def summed(hidden, weight, token_ids, anchor_ids, function, temperature=1.0):
    """Σ of a function of the statistics, chunk by chunk."""
    head = DetachedHead(hidden, weight, temperature=temperature)
    for rows in head.chunks():
        head.add(function(head.statistics(rows, token_ids[rows], anchor_ids[rows]), rows).sum())
    return head.total_loss()


def both(inputs, function, temperature=1.0):
    """(value, gradients) chunk by chunk, then of all tokens at once."""
    hidden, weight, token_ids, anchor_ids = inputs
    total = summed(hidden, weight, token_ids, anchor_ids, function, temperature=temperature)
    statistics = token_statistics(hidden, weight, token_ids, anchor_ids, temperature=temperature)
    expected = function(statistics, slice(0, len(hidden))).sum()
    wanted = [tensor for tensor in (hidden, weight) if tensor.requires_grad]
    return [
        (value.detach(), *torch.autograd.grad(factor * value, wanted))
        for value, factor in ((total, 2.0), (expected, 2.0))
    ]


@pytest.mark.parametrize("function", [anchored, with_entropy])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("held", [1, 53 * 4, 2**23])
def test_value_and_gradient_are_those_of_the_statistics(monkeypatch, function, temperature, held):
    monkeypatch.setattr(tiles, "LOGITS_HELD_CPU", held)
    actual, expected = both(problem(), function, temperature)
    for one, two in zip(actual, expected, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-11, atol=1e-13)


def test_float32_and_pure_bfloat16_heads_agree_too():
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.bfloat16, 2e-2)):
        actual, expected = both(problem(dtype=dtype), with_entropy)
        for one, two in zip(actual, expected, strict=True):
            assert one.dtype == two.dtype
            assert (one - two).abs().max() <= tolerance * two.abs().max()


def test_a_frozen_head_gets_no_gradient_and_costs_no_product():
    hidden, weight, token_ids, anchor_ids = problem()
    inputs = hidden, weight.detach(), token_ids, anchor_ids
    actual, expected = both(inputs, anchored)
    torch.testing.assert_close(actual[1], expected[1])
    with FlopCounterMode(display=False) as flops:
        summed(*inputs, with_entropy).backward()
    assert flops.get_total_flops() == 2 * 2 * 37 * weight.numel()


def test_six_operations_a_logit_and_hidden_unit_and_fewer_where_tokens_have_no_gradient():
    hidden, weight, token_ids, anchor_ids = problem()
    counts = {}
    for function in (with_entropy, anchored):
        with FlopCounterMode(display=False) as flops:
            summed(hidden, weight, token_ids, anchor_ids, function).backward()
        counts[function] = flops.get_total_flops() / (2 * weight.numel())
    num_zero = 8  # tokens 0, 5, …, 35
    assert counts == {with_entropy: 3 * 37, anchored: 3 * 37 - 2 * num_zero}


def test_every_token_is_asked_for_once_and_in_order():
    seen = []

    def note(statistics, rows):
        seen.extend(range(rows.start, rows.stop))
        assert len(statistics.logprobs) == rows.stop - rows.start
        return statistics.logprobs

    summed(*problem(), note)
    assert seen == list(range(37))


@example(num_tokens=513, most=400)
@given(num_tokens=st.integers(1, 2000), most=st.sampled_from([1, 15, 16, 170, 400]))
def test_chunks_are_nearly_equal_and_hold_no_more_logits_than_there_is_room_for(num_tokens, most):
    hidden, weight = torch.zeros(num_tokens, 1), torch.zeros(20, 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiles, "LOGITS_HELD_CPU", 20 * most)
        lengths = [chunk.stop - chunk.start for chunk in DetachedHead(hidden, weight).chunks()]
    assert sum(lengths) == num_tokens
    assert max(lengths) <= most
    assert len(set(lengths[:-1])) <= 1
    assert 0 < lengths[-1] <= lengths[0]
    # Multiples of 16 where there are so many; half of what there is room for at least.
    assert lengths[0] % 16 == 0 or lengths[0] <= 16 or len(lengths) == 1
    assert lengths[0] > min(num_tokens, most, 512) / 2 - 16


def test_an_objective_without_a_gradient_gives_zeros():
    hidden, weight, token_ids, anchor_ids = problem()
    total = summed(hidden, weight, token_ids, anchor_ids, lambda statistics, rows: statistics.max_prob)
    gradients = torch.autograd.grad(total, (hidden, weight))
    assert all((gradient == 0).all() for gradient in gradients)


def test_no_tokens_make_nothing():
    hidden, weight, token_ids, anchor_ids = problem()
    total = summed(hidden[:0], weight, token_ids[:0], anchor_ids[:0], anchored)
    assert total == 0
    (gradient,) = torch.autograd.grad(total, weight)
    assert (gradient == 0).all()


def test_what_made_the_hidden_states_is_gone_back_through_once():
    hidden, weight, token_ids, anchor_ids = problem()
    calls = []
    hidden.register_hook(calls.append)
    weight.register_hook(calls.append)
    head = DetachedHead(hidden, weight)
    head.chunks = lambda: (slice(start, start + 5) for start in range(0, 35, 5))
    for rows in head.chunks():
        head.add(anchored(head.statistics(rows, token_ids[rows], anchor_ids[rows]), rows).sum())
    assert not calls
    head.total_loss().backward()
    assert len(calls) == 2


def test_the_gradient_of_the_head_is_handed_on_without_a_copy():
    hidden, weight, token_ids, anchor_ids = problem()
    head = DetachedHead(hidden, weight)
    statistics = head.statistics(slice(0, 37), token_ids, anchor_ids)  # its graph is alive in the backward below
    head.add(statistics.logprobs.sum())
    summed_in = head._workspace.gradient.total.data_ptr()
    head.total_loss().backward()
    assert weight.grad.data_ptr() == summed_in


@pytest.mark.parametrize("split", [9, 28])  # the larger chunk's tiles would outlive those of the smaller one
def test_a_loss_that_comes_after_the_next_statistics_is_still_exact(split):
    hidden, weight, token_ids, anchor_ids = problem()
    head = DetachedHead(hidden, weight)
    both = slice(0, split), slice(split, 37)
    first, second = (head.statistics(rows, token_ids[rows], anchor_ids[rows]) for rows in both)
    leaf = head._leaf
    (gradient,) = torch.autograd.grad(second.logprobs.sum(), leaf)
    expected = token_statistics(hidden[split:], weight, token_ids[split:], anchor_ids[split:])
    torch.testing.assert_close(gradient, torch.autograd.grad(expected.logprobs.sum(), hidden)[0][split:])
    first.logprobs.sum().backward()
    everything = token_statistics(hidden, weight, token_ids, anchor_ids).logprobs.sum()
    torch.testing.assert_close(head._workspace.gradient.finish(), torch.autograd.grad(everything, weight)[0])


def test_the_graphs_that_a_gpu_compiles_compute_what_the_eager_kernels_do():
    """Traced, made functional and decomposed as for a GPU, then run op by op."""
    logits, ref_logits, weights = torch.randn(8, 33), torch.randn(8, 33), torch.rand(8, 33)
    largest, total, dot, distance = torch.randn(8), torch.rand(8) + 1, torch.randn(8), torch.randn(8)
    constant, slope = torch.randn(8, 1), torch.randn(8, 1)
    places, picked = torch.randint(-20, 60, (8, 3)), torch.randn(8, 3)
    state, columns = (largest, total, dot, picked), [x.unsqueeze(1) for x in (largest, total, dot, distance)]
    cases = [
        (softmax._update, (logits, *state, places, True), {}),
        (softmax._update, (logits, *state, places, False), {}),
        (softmax._from_exp_logits, (weights, largest[:, None], constant, slope, places, picked.bfloat16()), {}),
        (softmax._from_exp_logits, (weights, largest[:, None], constant, None, places, picked), {}),
        (reference._update_kl_sum, (weights, logits, largest, largest + 1, distance), {}),
        (reference._kl_gradient, (logits, ref_logits, *columns), {"dtype": torch.bfloat16}),
    ]
    for kernel, arguments, options in cases:
        before = [a.clone() if isinstance(a, torch.Tensor) else a for a in arguments]
        eager = kernel.__wrapped__(*arguments, **options)
        compiled = torch.compile(kernel.__wrapped__, dynamic=True, fullgraph=True, backend="aot_eager_decomp_partition")
        torch.testing.assert_close(compiled(*arguments, **options), eager, rtol=1e-5, atol=1e-5)
        assert all(a is b or torch.equal(a, b) for a, b in zip(arguments, before, strict=True)), kernel.__name__

"""A position attends to its prompt and its own past: on the CPU without padding, on a GPU through a block mask."""

import functools
import importlib

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._dynamo.exc import FailOnRecompileLimitHit
from torch._dynamo.utils import counters
from torch.nn.attention.flex_attention import flex_attention
from transformers import AutoConfig, AutoModelForCausalLM

from apo_lightning.common import compiling
from apo_lightning.model import attention
from apo_lightning.model.attention import (
    SHARED_PROMPTS,
    AttentionLayout,
    attend,
    block_mask,
    use_shared_prompts,
)
from apo_lightning.model.packing import Group

CPU = torch.device("cpu")
GROUPS = st.lists(
    st.tuples(st.integers(1, 9), st.lists(st.integers(0, 7), min_size=1, max_size=4)), min_size=1, max_size=4
)
SIZES = {"vocab_size": 32, "hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2}


def end_of(group):
    """The position behind a group's last one."""
    return group.start + group.prompt_length + sum(group.completion_lengths)


def groups_of(shapes, beginning=0) -> list[Group]:
    groups, start = [], beginning
    for prompt_length, lengths in shapes:
        groups.append(
            Group(start=start, prompt_length=prompt_length, completion_lengths=tuple(lengths), beginning=beginning)
        )
        start = end_of(groups[-1])
    return groups


def attended(groups) -> list[list[int]]:
    """Which positions each position attends to, read off the flat order [beginning][prompt][completion]…[prompt]…"""
    beginning = list(range(groups[0].start))
    pairs = [beginning[: i + 1] for i in beginning]
    for group in groups:
        prompt = [*beginning, *range(group.start, group.start + group.prompt_length)]
        pairs += [prompt[: len(beginning) + i + 1] for i in range(group.prompt_length)]
        first = prompt[-1] + 1
        for length in group.completion_lengths:
            pairs += [prompt + list(range(first, first + i + 1)) for i in range(length)]
            first += length
    return pairs


def naive(query, key, value, groups, scale):
    """softmax(scale·q·k)·v, one position and one head after the other."""
    repeats = query.shape[1] // key.shape[1]
    rows = []
    for i, others in enumerate(attended(groups)):
        for head in range(query.shape[1]):
            keys, values = key[others, head // repeats], value[others, head // repeats]
            rows.append((scale * keys @ query[i, head]).softmax(0) @ values)
    return torch.stack(rows).view(query.shape)


def inputs(groups, heads=4, kv_heads=2, dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    size = end_of(groups[-1])
    return [
        torch.randn(size, count, 8, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
        for count in (heads, kv_heads, kv_heads)
    ]


@given(shapes=GROUPS, beginning=st.sampled_from([0, 0, 1, 5]), heads=st.sampled_from([(2, 2), (6, 2), (3, 1)]))
@settings(max_examples=40)
def test_output_and_gradients_are_those_of_the_softmax_written_out(shapes, beginning, heads):
    groups = groups_of(shapes, beginning)
    tensors = inputs(groups, *heads)
    found = attend(*tensors, AttentionLayout.of(groups, CPU), scale=0.6)
    expected = naive(*tensors, groups, 0.6)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)
    upstream = torch.randn(found.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    for one, two in zip(
        torch.autograd.grad(found, tensors, upstream), torch.autograd.grad(expected, tensors, upstream), strict=True
    ):
        torch.testing.assert_close(one, two, rtol=1e-9, atol=1e-12)


def test_bfloat16_is_computed_in_float32_and_rounded_once():
    groups = groups_of([(5, [3, 0, 6]), (2, [1])])
    rounded = [tensor.detach().bfloat16().requires_grad_() for tensor in inputs(groups)]
    wide = [tensor.detach().float().requires_grad_() for tensor in rounded]
    layout = AttentionLayout.of(groups, CPU)
    found, expected = (attend(*tensors, layout, scale=0.35) for tensors in (rounded, wide))
    assert torch.equal(found, expected.bfloat16())
    upstream = torch.randn(found.shape, generator=torch.Generator().manual_seed(1)).bfloat16()
    for one, two in zip(
        torch.autograd.grad(found, rounded, upstream),
        torch.autograd.grad(expected, wide, upstream.float()),
        strict=True,
    ):
        # A step of bfloat16 is 2⁻⁸ of a number; the backward starts from the rounded output, worth as much again.
        torch.testing.assert_close(one.float(), two, atol=2**-8 * float(two.abs().max()), rtol=2**-8)


def test_scores_too_large_for_exp_do_not_overflow():
    groups = groups_of([(3, [2, 2])])
    query, key, value = inputs(groups, 2, 2, torch.float32)
    found = attend(query, key, value, AttentionLayout.of(groups, CPU), scale=1e3)
    gradients = torch.autograd.grad(found.sum(), (query, key, value))
    assert all(tensor.isfinite().all() for tensor in (found, *gradients))


@pytest.fixture
def graphs(monkeypatch):
    """How many graphs a call makes dynamo trace, the kernels left out; flex attention has them for GPUs alone."""
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager"))
    monkeypatch.setattr(
        importlib.import_module("torch.nn.attention.flex_attention"), "_validate_device", lambda *_: None
    )

    def count(function, *args, **kwargs):
        before = counters["stats"]["unique_graphs"]
        function(*args, **kwargs)
        return counters["stats"]["unique_graphs"] - before

    return count


@pytest.mark.slow
def test_all_lengths_with_a_gradient_and_without_fit_in_few_variants_of_flex_attention(graphs, monkeypatch):
    flex, make_mask = attention.compiled_flex.__wrapped__(), attention.compiled_block_mask.__wrapped__()
    monkeypatch.setattr(attention, "create_block_mask", make_mask)  # as on a GPU
    found = []
    for shapes in (
        [(1, [])],
        [(40, [30])],
        [(64, [64])],
        [(100, [28, 128])],
        [(300, [200, 12]), (50, [7])],
        [(3, [5])],
    ):
        mask = block_mask(groups_of(shapes), CPU)
        for requires_grad in (True, False):
            tensors = [
                torch.randn(1, heads, mask.seq_lengths[0], 8, requires_grad=requires_grad) for heads in (6, 2, 2)
            ]
            with torch.set_grad_enabled(requires_grad):
                found.append(graphs(flex, *tensors, block_mask=mask, scale=0.3, enable_gqa=True))
    assert sum(found[:8]) == 6 <= compiling.MOST_VARIANTS / 8, "1, up to 128 and more positions, each in two grad modes"
    assert sum(found[8:]) == 0


@torch._dynamo.config.patch(recompile_limit=2)  # the limit that counts before torch 2.13
def test_attention_fails_past_its_variants_instead_of_running_uncompiled(graphs, monkeypatch):
    monkeypatch.setattr(compiling, "MOST_VARIANTS", 2)
    flex = attention.compiled_flex.__wrapped__()
    for num_heads in (1, 2):
        assert graphs(flex, *torch.zeros(3, 1, num_heads, 4, 8)) == 1
    with pytest.raises(FailOnRecompileLimitHit):
        flex(*torch.zeros(3, 1, 3, 4, 8))


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@given(shapes=GROUPS, beginning=st.sampled_from([0, 3]))
@settings(max_examples=10)
def test_the_block_mask_of_a_gpu_lets_through_what_the_cpu_computes(shapes, beginning):
    groups = groups_of(shapes, beginning)
    size = end_of(groups[-1])
    mask = block_mask(groups, CPU)
    i, j = torch.arange(size)[:, None], torch.arange(size)[None, :]
    dense = mask.mask_mod(torch.tensor(0), torch.tensor(0), i, j)
    assert [row.nonzero().flatten().tolist() for row in dense] == attended(groups)

    tensors = inputs(groups)
    expected = attend(*tensors, AttentionLayout.of(groups, CPU), scale=0.6)
    heads_first = [tensor.transpose(0, 1)[None] for tensor in tensors]
    # Flex attention has no backward on the CPU; the same mask, made dense, stands in for it below.
    flex = flex_attention(*(tensor.detach() for tensor in heads_first), block_mask=mask, scale=0.6, enable_gqa=True)
    torch.testing.assert_close(flex[0].transpose(0, 1), expected)
    masked = torch.nn.functional.scaled_dot_product_attention(
        *heads_first, attn_mask=dense, scale=0.6, enable_gqa=True
    )[0].transpose(0, 1)
    for one, two in zip(
        torch.autograd.grad(masked.sum(), tensors), torch.autograd.grad(expected.sum(), tensors), strict=True
    ):
        torch.testing.assert_close(one, two)


def test_the_model_called_as_any_other_still_heeds_padding():
    config = AutoConfig.for_model("llama", **SIZES, intermediate_size=32)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    ids, padding = torch.tensor([[0, 0, 5, 6, 7]]), torch.tensor([[0, 0, 1, 1, 1]])
    positions = torch.tensor([[0, 0, 0, 1, 2]])
    before = model(ids, attention_mask=padding, position_ids=positions).logits
    use_shared_prompts(model)
    assert model.config._attn_implementation == SHARED_PROMPTS
    after = model(ids, attention_mask=padding, position_ids=positions).logits
    torch.testing.assert_close(after[0, 2:], before[0, 2:])

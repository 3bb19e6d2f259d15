"""Attention over flat micro-batches: a prompt attends to itself, a completion to its prompt and to itself.

All attend to what stands before the first group, the common beginning of the prompts, if there is one.

The backbone runs once over all positions of a micro-batch as *one* sequence; only attention needs to know where
prompts and completions are. It is registered with transformers under the name `SHARED_PROMPTS` and gets that layout as
a keyword argument, which the model passes to every layer, also under gradient checkpointing and sharding.

On the CPU the softmax over (prompt, own past) is combined from two, so that neither padding nor a mask is needed:

    o = Σ_i e^{l_i − l}·o_i,    l = log Σ_i e^{l_i},    i ∈ {own past, prompt},

with o_i and l_i the output and log-sum-exp of each part. Given o and l of the whole, the backward of each part alone
gives its share of the exact gradient, because softmax probabilities are e^{score − l} in both.

Source: Dao et al., *FlashAttention-2* (arXiv 2307.08691), §3.1, for the rescaling and the backward from (o, l).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from apo_lightning.common.compiling import compile_or_fail
from apo_lightning.errors import ConfigError
from apo_lightning.model.architecture import check_fields
from apo_lightning.model.packing import Group, on_device

SHARED_PROMPTS = "shared_prompts"

# The kernel behind `scaled_dot_product_attention`, which does not return its log-sum-exp. It is private; torch has no
# public alternative on the CPU: flex attention returns the log-sum-exp, but has no backward there.
_attention = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_attention_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionLayout:
    """Which positions attend to which in a micro-batch, as the CPU kernels need it.

    Example:
        Positions 0–2 are a prompt, 3–4 and 5–7 its completions; the second is as long as the prompt.

        >>> groups = [Group(start=0, prompt_length=3, completion_lengths=(2, 3))]
        >>> layout = AttentionLayout.of(groups, torch.device("cpu"))
        >>> [segments.tolist() for segments in layout.segments]
        [[[0, 1, 2], [5, 6, 7]], [[3, 4]]]
        >>> [(completions.tolist(), prompts.tolist()) for completions, prompts in layout.shared]
        [([[3, 4, 5, 6, 7]], [[0, 1, 2]])]
    """

    segments: tuple[Int[Tensor, "_ _"], ...]
    """Positions of prompts and completions, batched by length: each batch runs without padding."""
    shared: tuple[tuple[Int[Tensor, "_ _"], Int[Tensor, "_ _"]], ...]
    """Positions of all completions of a group and of its prompt, batched by both lengths; then those of all groups and
    of their common beginning."""

    @classmethod
    def of(cls, groups: Sequence[Group], device: torch.device) -> "AttentionLayout":
        """The layout of these groups."""
        beginning = groups[0].beginning
        starts: dict[int, list[int]] = {beginning: [0]}
        shapes: dict[tuple[int, int], list[int]] = {}
        for group in groups:
            start = group.start
            for length in (group.prompt_length, *group.completion_lengths):
                starts.setdefault(length, []).append(start)
                start += length
            shapes.setdefault((sum(group.completion_lengths), group.prompt_length), []).append(group.start)
        segments = (_positions(first, length, device) for length, first in starts.items() if length > 0)
        shared = (
            (_positions([start + prompt for start in first], own, device), _positions(first, prompt, device))
            for (own, prompt), first in shapes.items()
            if own > 0
        )
        found = [*shared]
        if beginning:
            behind = groups[-1].start + groups[-1].prompt_length + sum(groups[-1].completion_lengths) - beginning
            found.append((_positions([beginning], behind, device), _positions([0], beginning, device)))
        return cls(segments=tuple(segments), shared=tuple(found))


def _positions(starts: Sequence[int], length: int, device: torch.device) -> Int[Tensor, "_ _"]:
    """Rows of consecutive positions."""
    return (torch.tensor(starts)[:, None] + torch.arange(length)).to(device)


@torch.no_grad()  # torch.compile guards on the grad mode and would compile each graph twice
def block_mask(groups: Sequence[Group], device: torch.device) -> BlockMask:
    """Which positions attend to which in a micro-batch, for flex attention, which skips empty blocks.

    Position i attends to j if j ≤ i, and j is in i's prompt, in i's own completion or in the common beginning.
    """
    beginning = groups[0].beginning
    lengths = [beginning]
    prompts = [0]
    for group in groups:
        prompts += [len(lengths)] * (1 + len(group.completion_lengths))
        lengths += [group.prompt_length, *group.completion_lengths]
    segment = on_device(torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths)), device)
    prompt = on_device(torch.tensor(prompts), device)[segment]

    # Uncompiled, building the mask would take a [positions, positions] tensor.
    make = compiled_block_mask() if device.type == "cuda" else create_block_mask
    return make(
        # A lambda: flex attention counts the parameters, which the wrapper of a shape-checked `def` would hide.
        lambda batch, head, i, j: (j <= i) & ((segment[j] == segment[i]) | (segment[j] == prompt[i]) | (j < beginning)),
        None,
        None,
        len(segment),
        len(segment),
        device=device,
    )


def attention_arguments(groups: Sequence[Group], device: torch.device) -> dict[str, Any]:
    """Arguments of the backbone in addition to ids and positions; built once per micro-batch, used by every layer.

    The mask is a placeholder: without one, transformers would infer another packing from the position ids and build a
    [positions, positions] mask from it.
    """
    layout = AttentionLayout.of(groups, device) if device.type == "cpu" else block_mask(groups, device)
    return {"attention_mask": torch.empty(1, 1, 0, 0, device=device), "layout": layout}


def attend(
    query: Float[Tensor, "positions heads head_size"],
    key: Float[Tensor, "positions kv_heads head_size"],
    value: Float[Tensor, "positions kv_heads head_size"],
    layout: AttentionLayout,
    *,
    scale: float,
) -> Float[Tensor, "positions heads head_size"]:
    """softmax(scale·q·kᵀ)·v over each position's prompt and own past, on the CPU.

    The number of heads of keys and values divides that of queries (grouped queries).

    Example:
        All scores are equal: the mean over the attended values. A prompt of two, and two completions of one position.

        >>> groups = [Group(start=0, prompt_length=2, completion_lengths=(1, 1))]
        >>> layout = AttentionLayout.of(groups, torch.device("cpu"))
        >>> value = torch.tensor([3.0, 5.0, 1.0, 7.0]).view(4, 1, 1)
        >>> attend(torch.zeros(4, 1, 1), torch.zeros(4, 1, 1), value, layout, scale=1.0).flatten().round(decimals=4)
        tensor([3., 4., 3., 5.])
    """
    return _SharedPrompts.apply(query, key, value, layout, scale)


class _SharedPrompts(torch.autograd.Function):
    """The autograd function of `attend`: see the module's docstring."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, layout: AttentionLayout, scale: float) -> Tensor:
        saved = query, key, value
        query, key, value = (_widened(tensor) for tensor in saved)
        output = torch.empty_like(query)
        lse = torch.empty(query.shape[:2], dtype=query.dtype)
        for index in layout.segments:
            own, own_lse = _attention(*_heads_first(query[index], key[index], value[index]), 0.0, True, scale=scale)
            output[index], lse[index] = _heads_first(own, own_lse)
        for here, prompt in layout.shared:
            parts = _heads_first(query[here], key[prompt], value[prompt])
            shared, shared_lse = _heads_first(*_attention(*parts, 0.0, False, scale=scale))
            own_lse = lse[here]
            total = torch.logaddexp(own_lse, shared_lse)
            own_weight, shared_weight = (own_lse - total).exp(), (shared_lse - total).exp()
            output[here] = own_weight[..., None] * output[here] + shared_weight[..., None] * shared
            lse[here] = total
        output = output.to(saved[0].dtype)
        ctx.save_for_backward(*saved, output, lse)
        ctx.layout, ctx.scale = layout, scale
        return output

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *grad_outputs: Tensor
    ) -> tuple[Tensor | None, ...]:
        dtype = grad_outputs[0].dtype
        grad_output, query, key, value, output, lse = map(_widened, (*grad_outputs, *ctx.saved_tensors))
        grads = tuple(torch.empty_like(tensor) for tensor in (query, key, value))
        of_query = (grad_output, query, output, lse)
        for index in ctx.layout.segments:
            parts = _backward([t[index] for t in of_query], key[index], value[index], causal=True, scale=ctx.scale)
            for grad, part in zip(grads, parts, strict=True):
                grad[index] = part
        for here, prompt in ctx.layout.shared:
            whole = [t[here] for t in of_query]
            parts = _backward(whole, key[prompt], value[prompt], causal=False, scale=ctx.scale)
            for grad, part, place in zip(grads, parts, (here, prompt, prompt), strict=True):
                grad[place] += part
        return *(grad.to(dtype) for grad in grads), None, None


def _widened(tensor: Tensor) -> Tensor:
    """The tensor in float32 or wider: in bfloat16 the kernels would be slower, and several times so without AMX."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def _heads_first(*tensors: Tensor) -> list[Tensor]:
    """Swap positions and heads: [segments, positions, heads, …] ↔ [segments, heads, positions, …]."""
    return [tensor.transpose(1, 2) for tensor in tensors]


def _backward(of_query: Sequence[Tensor], key: Tensor, value: Tensor, *, causal: bool, scale: float) -> list[Tensor]:
    """Gradients of query, key and value from one part, given output and log-sum-exp of the whole softmax."""
    grad_output, query, key, value, output, lse = _heads_first(of_query[0], of_query[1], key, value, *of_query[2:])
    # The kernel assumes a contiguous last axis; the gradient of a sum is an expanded scalar.
    grad_output = grad_output.contiguous()
    return _heads_first(*_attention_backward(grad_output, query, key, value, output, lse, 0.0, causal, scale=scale))


def attend_registered(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float,
    dropout: float = 0.0,
    layout: AttentionLayout | BlockMask | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """Attention as transformers calls it: [1, heads, positions, head_size] in, [1, positions, heads, head_size] out.

    Without a layout (any other call of the model) it is transformers' own attention.
    """
    if layout is None:
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, dropout=dropout, **kwargs
        )
    if torch.is_autocast_enabled(query.device.type):
        # Rotary embeddings return float32, and autocast does not cover these kernels.
        dtype = torch.get_autocast_dtype(query.device.type)
        query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
    if isinstance(layout, BlockMask):
        # Short micro-batches would use a decoding kernel: another graph, which refuses some numbers of heads.
        options = {"FORCE_USE_FLEX_ATTENTION": True}
        output = compiled_flex()(
            query, key, value, block_mask=layout, scale=scaling, enable_gqa=True, kernel_options=options
        )
        return output.transpose(1, 2).contiguous(), None
    query, key, value = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
    return attend(query, key, value, layout, scale=scaling)[None], None


compiled_flex = cache(lambda: compile_or_fail(flex_attention))
"""Uncompiled, flex attention would hold the scores of all pairs of positions."""
compiled_block_mask = cache(lambda: compile_or_fail(create_block_mask))


AttentionInterface.register(SHARED_PROMPTS, attend_registered)
AttentionMaskInterface.register(SHARED_PROMPTS, sdpa_mask)


def use_shared_prompts(model: PreTrainedModel) -> None:
    """Make the model use this module's attention.

    Raises:
        ConfigError: its attention cannot be replaced, or is not one that this module implements.
    """
    check_fields(model.config)
    if not model._can_set_attn_implementation():
        raise ConfigError(
            f"{type(model).__name__} does not let its attention be replaced, so prompts cannot be shared: "
            "choose another model"
        )
    model.set_attn_implementation(SHARED_PROMPTS)

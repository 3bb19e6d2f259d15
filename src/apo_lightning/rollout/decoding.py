"""Keys, values and attention of sequences that grow by one token a forward."""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.cache_utils import Cache, DynamicLayer
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

UNREPEATED_KEYS = "unrepeated_keys"
TOKENS_OF_ROOM = 64
"""How much longer than now a sequence may grow before its keys and values are moved [tokens]."""


class GrowingLayer(DynamicLayer):
    """Keys and values of one layer, `[rows, heads, tokens, head size]`, with room to grow.

    transformers' own layer copies everything at every token, here it is every 64th; and a row that leaves makes way
    for the last one instead of moving all.
    """

    keys: Tensor
    values: Tensor

    def __init__(self, **kwargs: Any):
        super().__init__(**kwargs)
        self._storage: tuple[Tensor, ...] = ()
        """Allocated tokens of keys and of values; those in use are `keys` and `values`."""

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Append keys and values, and return all there are."""
        if not self.is_initialized:
            return super().update(key_states, value_states, *args, **kwargs)
        (rows, _, length, _), end = self.keys.shape, self.keys.shape[2] + key_states.shape[2]
        if not self._storage or end > self._storage[0].shape[2]:
            self._storage = _with_room(self.keys, end), _with_room(self.values, end)
        for storage, new in zip(self._storage, (key_states, value_states), strict=True):
            storage[:rows, :, length:end] = new
        self.keys, self.values = (storage[:rows, :, :end] for storage in self._storage)
        return self.keys, self.values

    def spread(self, index: Int[Tensor, "rows"]) -> None:
        """Copy row `index[i]` to row i."""
        self._storage = ()
        self.keys, self.values = self.keys[index], self.values[index]

    def move(self, sources: Int[Tensor, "moved"], targets: Int[Tensor, "moved"], rows: int) -> None:
        """Copy rows over others, then keep the first `rows`."""
        for states in (self.keys, self.values):
            states[targets] = states[sources]
        self.keys, self.values = self.keys[:rows], self.values[:rows]


def growing_cache() -> Cache:
    """An empty cache for one batch."""
    return Cache(layer_class_to_replicate=GrowingLayer)


def _with_room(states: Tensor, end: int) -> Tensor:
    rows, heads, length, head_size = states.shape
    storage = states.new_empty(rows, heads, end + TOKENS_OF_ROOM, head_size)
    storage[:, :, :length] = states
    return storage


def attend_with_unrepeated_keys(model: PreTrainedModel) -> None:
    """Make a float32 model on the CPU leave out the copy of keys and values for each query head of a group.

    With a mask, transformers makes that copy for every token; it takes longer than the attention itself. The CPU's
    kernel reads the same numbers in place and returns the same bits. Other devices and dtypes would be sent to
    slower kernels, or to one that rounds otherwise: those stay as they are.
    """
    if model.device.type == "cpu" and model.dtype == torch.float32 and model.config._attn_implementation == "sdpa":
        model.set_attn_implementation(UNREPEATED_KEYS)


def _attention(
    module: nn.Module,
    query: Float[Tensor, "rows heads queries head_size"],
    key: Float[Tensor, "rows kv_heads tokens head_size"],
    value: Float[Tensor, "rows kv_heads tokens value_size"],
    attention_mask: Tensor | None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    if attention_mask is None or query.shape[2] != 1 or kwargs.get("position_bias") is not None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
    output = scaled_dot_product_attention(
        query, key, value, attn_mask=attention_mask, scale=kwargs.get("scaling"), enable_gqa=True
    )
    return output.transpose(1, 2).contiguous(), None


AttentionInterface.register(UNREPEATED_KEYS, _attention)
AttentionMaskInterface.register(UNREPEATED_KEYS, sdpa_mask)

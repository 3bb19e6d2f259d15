"""The key-value cache and attention of the transformers engine, for sequences that grow by one token per forward."""

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
SPARE_TOKENS = 64
"""Tokens allocated in advance; the cache is copied only when they are used up."""


class GrowingLayer(DynamicLayer):
    """Keys and values of one layer, `[rows, heads, tokens, head size]`, over-allocated along the tokens.

    transformers' own layer copies everything at every token, this one at every 64th. A finished row is replaced by the
    last one, so the other rows stay in place.
    """

    keys: Tensor
    values: Tensor

    def __init__(self, **kwargs: Any):
        super().__init__(**kwargs)
        self._storage: tuple[Tensor, ...] = ()
        """The buffers of keys and values; `keys` and `values` are views of the tokens in use."""

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Append keys and values; returns those of all tokens."""
        if not self.is_initialized:
            return super().update(key_states, value_states, *args, **kwargs)
        (rows, _, length, _), end = self.keys.shape, self.keys.shape[2] + key_states.shape[2]
        if not self._storage or end > self._storage[0].shape[2]:
            self._storage = _with_spare_tokens(self.keys, end), _with_spare_tokens(self.values, end)
        for storage, new in zip(self._storage, (key_states, value_states), strict=True):
            storage[:rows, :, length:end] = new
        self.keys, self.values = (storage[:rows, :, :end] for storage in self._storage)
        return self.keys, self.values

    def spread(self, index: Int[Tensor, "rows"]) -> None:
        """Set row i to the row `index[i]`."""
        self._storage = ()
        self.keys, self.values = self.keys[index], self.values[index]

    def move(self, sources: Int[Tensor, "moved"], targets: Int[Tensor, "moved"], rows: int) -> None:
        """Copy the rows `sources` to the rows `targets`, then keep the first `rows`."""
        for states in (self.keys, self.values):
            states[targets] = states[sources]
        self.keys, self.values = self.keys[:rows], self.values[:rows]


def growing_cache() -> Cache:
    """An empty cache for one batch."""
    return Cache(layer_class_to_replicate=GrowingLayer)


def _with_spare_tokens(states: Tensor, end: int) -> Tensor:
    rows, heads, length, head_size = states.shape
    storage = states.new_empty(rows, heads, end + SPARE_TOKENS, head_size)
    storage[:, :, :length] = states
    return storage


def attend_with_unrepeated_keys(model: PreTrainedModel) -> None:
    """Stop a float32 model on the CPU from copying keys and values to each query head of a group.

    With a mask, transformers makes this copy for every token, which takes longer than the attention itself. The CPU
    kernel reads them in place and returns the same bits. Other devices and dtypes are left as they are: they would
    get slower kernels or one that rounds differently.
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

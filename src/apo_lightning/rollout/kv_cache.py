"""Sizes of a colocated engine on a GPU, and what is left there for keys and values [bytes].

The engine asks with the memory that it finds free, the memory plan with what it has counted: one formula for both.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from transformers import PretrainedConfig

from apo_lightning.common.formatting import GIB
from apo_lightning.errors import ConfigError

FILLED = 0.9
"""The part of a GPU's memory that is given away. The rest is for what is not counted: CUDA graphs, buffers of NCCL and
cuBLAS, holes between allocations, and in an evaluation the pass for token statistics. Not measured yet."""
FLOAT32 = 4


def left_for_kv_cache(*, free: int, total: int, engine: int, trainer: int) -> int:
    """What keys and values may take: the free memory, less what engine and trainer still claim, less the margin.

    Args:
        free: of the GPU when the engine starts: policy and reference are there.
        total: of the GPU; 1 − `FILLED` of it stays free.
        engine: its weights and its workspace.
        trainer: claimed later, while the engine is awake: the optimizer's moments and the engine check.

    Returns:
        Below 0 where even the rest does not fit.

    Example:
        Of 80, 72 may be filled; 10 are taken, and 14 + 6 will be.

        >>> left_for_kv_cache(free=70, total=80, engine=14, trainer=6)
        42
    """
    return int(FILLED * total) - (total - free) - engine - trainer


def kv_token_bytes(*, num_layers: int, num_kv_heads: int, head_dim: int, dtype_bytes: int) -> int:
    """Keys and values of one token: 2·layers·kv_heads·head_dim numbers.

    Example:
        >>> kv_token_bytes(num_layers=28, num_kv_heads=4, head_dim=128, dtype_bytes=2)
        57344
    """
    return 2 * num_layers * num_kv_heads * head_dim * dtype_bytes


def workspace_bytes(
    *,
    hidden_size: int,
    intermediate_size: int,
    vocab_size: int,
    dtype_bytes: int,
    num_forward_tokens: int,
    num_sequences: int,
) -> int:
    """One forward of the engine and its sampling.

    A forward has no graph: at its widest it holds the residual twice, the input and output of the MLP's two halves,
    c·(3·D + 3·F) a token. Sampling holds the logits of every sequence in the compute dtype and in float32.

    Example:
        >>> workspace_bytes(hidden_size=2, intermediate_size=4, vocab_size=10, dtype_bytes=2, num_forward_tokens=1,
        ...     num_sequences=1)
        136
    """
    forward = num_forward_tokens * dtype_bytes * 3 * (hidden_size + intermediate_size)
    return forward + num_sequences * vocab_size * (dtype_bytes + 2 * FLOAT32)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineMemory:
    """What one process holds of an engine, or of its slice of it [bytes]."""

    weights: int
    workspace: int
    one_token: int
    """Keys and values of a token."""

    @classmethod
    def of(
        cls,
        config: PretrainedConfig,
        shapes: Mapping[str, torch.Size],
        dtype: torch.dtype,
        *,
        num_forward_tokens: int,
        num_sequences: int,
        num_slices: int,
    ) -> "EngineMemory":
        """From the model's sizes.

        Args:
            config: of the model.
            shapes: of its parameters by name; a tied head is there under both of its names, and held once.
            dtype: of weights and activations.
            num_forward_tokens: the most tokens of one forward.
            num_sequences: the most completions decoded at once.
            num_slices: processes that hold the engine together.
        """
        text, size = config.get_text_config(), dtype.itemsize
        num_heads = text.num_attention_heads
        tied = "lm_head.weight" if config.tie_word_embeddings else None
        num_parameters = sum(shape.numel() for name, shape in shapes.items() if name != tied)
        return cls(
            weights=size * num_parameters // num_slices,
            workspace=workspace_bytes(
                hidden_size=text.hidden_size,
                intermediate_size=text.intermediate_size,
                vocab_size=text.vocab_size,
                dtype_bytes=size,
                num_forward_tokens=num_forward_tokens,
                num_sequences=num_sequences,
            ),
            one_token=kv_token_bytes(
                num_layers=text.num_hidden_layers,
                num_kv_heads=-(-(getattr(text, "num_key_value_heads", None) or num_heads) // num_slices),
                head_dim=getattr(text, "head_dim", None) or text.hidden_size // num_heads,
                dtype_bytes=size,
            ),
        )

    def kv_cache_bytes(self, *, free: int, total: int, trainer: int, max_model_len: int) -> int:
        """What keys and values get of this GPU; see `left_for_kv_cache`.

        Raises:
            ConfigError: not even one sequence of `max_model_len` tokens would fit.
        """
        left = left_for_kv_cache(free=free, total=total, engine=self.weights + self.workspace, trainer=trainer)
        needed = max_model_len * self.one_token
        if left >= needed:
            return left
        raise ConfigError(
            f"of a GPU of {total / GIB:.1f} GiB {free / GIB:.1f} are free, and the engine's weights "
            f"({self.weights / GIB:.1f}), its workspace ({self.workspace / GIB:.1f}), what the trainer still claims "
            f"({trainer / GIB:.1f}) and a margin of {1 - FILLED:.0%} leave {max(0, left) / GIB:.1f} for keys and "
            f"values, where one sequence of {max_model_len} tokens takes {needed / GIB:.2f}: lower "
            "tokens_per_microbatch or engine max_num_seqs, or take more GPUs"
        )

"""GPU memory of a colocated engine, and how much of it remains for the key-value cache [bytes].

The engine uses these formulas with the memory that it measures as free, the memory plan with its own estimate.
"""

from collections.abc import Mapping

import torch
from transformers import PretrainedConfig

from apo_lightning.common.formatting import GIB
from apo_lightning.errors import ConfigError

FILLED = 0.9
"""The fraction of a GPU's memory that is used. The rest covers what is not counted: CUDA graphs, buffers of NCCL and
cuBLAS, fragmentation, and in an evaluation the pass for token statistics. Not measured yet."""
FLOAT32 = 4


def left_for_kv_cache(*, free: int, total: int, engine: int, trainer: int) -> int:
    """Memory for keys and values: what is free, minus what engine and trainer will allocate, minus the margin.

    Args:
        free: free memory when the engine starts; policy and reference are already loaded.
        total: memory of the GPU; 1 − `FILLED` of it stays free.
        engine: weights and workspace of the engine.
        trainer: allocated later, while the engine is awake: the optimizer's moments and the engine check.

    Returns:
        Negative if even the rest does not fit.

    Example:
        >>> left_for_kv_cache(free=70, total=80, engine=14, trainer=6)
        42
    """
    return int(FILLED * total) - (total - free) - engine - trainer


def kv_token_bytes(*, num_layers: int, num_kv_heads: int, head_dim: int, dtype_bytes: int) -> int:
    """Memory for the keys and values of one token: 2·layers·kv_heads·head_dim numbers.

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
    """Peak memory of one forward of the engine and of its sampling.

    A forward keeps no graph; its peak, in the MLP, is twice the residual and the inputs and output of the MLP's two
    halves: c·(3·D + 3·F) per token. Sampling holds each sequence's logits in the compute dtype and twice in float32.

    Example:
        >>> workspace_bytes(hidden_size=2, intermediate_size=4, vocab_size=10, dtype_bytes=2, num_forward_tokens=1,
        ...     num_sequences=1)
        136
    """
    forward = num_forward_tokens * dtype_bytes * 3 * (hidden_size + intermediate_size)
    return forward + num_sequences * vocab_size * (dtype_bytes + 2 * FLOAT32)


def kv_cache_bytes(
    config: PretrainedConfig,
    shapes: Mapping[str, torch.Size],
    dtype: torch.dtype,
    *,
    free: int,
    total: int,
    trainer: int,
    max_model_len: int,
    num_forward_tokens: int,
    num_sequences: int,
    num_slices: int,
) -> int:
    """Size of the key-value cache of an engine, or of one tensor-parallel slice of it, on this GPU.

    `shapes` are those of the parameters by name; a tied head appears under both names and is counted once. `free`,
    `total` and `trainer` are those of `left_for_kv_cache`.

    Raises:
        ConfigError: not even one sequence of `max_model_len` tokens would fit.
    """
    text, size = config.get_text_config(), dtype.itemsize
    num_heads = text.num_attention_heads
    tied = "lm_head.weight" if config.tie_word_embeddings else None
    weights = size * sum(shape.numel() for name, shape in shapes.items() if name != tied) // num_slices
    workspace = workspace_bytes(
        hidden_size=text.hidden_size,
        intermediate_size=text.intermediate_size,
        vocab_size=text.vocab_size,
        dtype_bytes=size,
        num_forward_tokens=num_forward_tokens,
        num_sequences=num_sequences,
    )
    needed = max_model_len * kv_token_bytes(
        num_layers=text.num_hidden_layers,
        num_kv_heads=-(-(getattr(text, "num_key_value_heads", None) or num_heads) // num_slices),
        head_dim=getattr(text, "head_dim", None) or text.hidden_size // num_heads,
        dtype_bytes=size,
    )
    left = left_for_kv_cache(free=free, total=total, engine=weights + workspace, trainer=trainer)
    if left >= needed:
        return left
    raise ConfigError(
        f"not enough GPU memory for keys and values: {free / GIB:.1f} of {total / GIB:.1f} GiB are free; the engine's "
        f"weights ({weights / GIB:.1f}) and workspace ({workspace / GIB:.1f}), the trainer ({trainer / GIB:.1f}) and a "
        f"margin of {1 - FILLED:.0%} leave {max(0, left) / GIB:.1f}, but one sequence of {max_model_len} tokens takes "
        f"{needed / GIB:.2f}: lower tokens_per_microbatch or engine max_num_seqs, or use more GPUs"
    )

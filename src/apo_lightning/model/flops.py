"""The floating-point operations of a training step, counted, and the peak of the GPUs that run it."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from apo_lightning.model.packing import Microbatch

# Dense bfloat16 matrix products [FLOP/s], without sparsity, from the vendor's data sheets. The first line whose words
# are all in the device's name counts, so a variant comes before the product of the same number.
PEAK_FLOPS_PER_SECOND = {
    "H100 PCIe": 756e12,
    "H800 PCIe": 756e12,
    "H100 NVL": 835e12,
    "H200 NVL": 835e12,
    "H100": 989e12,
    "H800": 989e12,
    "H200": 989e12,
    "H20": 148e12,
    "A100": 312e12,
    "A800": 312e12,
    "A40": 150e12,
    "A10": 125e12,
    "A30": 165e12,
    "L40S": 362e12,
    "L40": 181e12,
    "L4": 121e12,
}


def peak_flops_per_second(device_name: str) -> float | None:
    """Peak of dense bfloat16 products on one device [FLOP/s], by the name that torch gives it; None: not in the table.

    Example:
        >>> peak_flops_per_second("NVIDIA H100 PCIe"), peak_flops_per_second("Graphics")
        (756000000000000.0, None)
    """
    words = set(re.split(r"[\s-]+", device_name))
    return next((peak for name, peak in PEAK_FLOPS_PER_SECOND.items() if words >= set(name.split())), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The amount of computation in some forwards."""

    num_tokens: int = 0
    """Positions that went through the backbone, prompts included."""
    num_pairs: int = 0
    """(query, key) pairs of causal attention."""
    num_rows: int = 0
    """Positions that went through the head: response tokens."""

    def __add__(self, other: "Work") -> "Work":
        return Work(
            num_tokens=self.num_tokens + other.num_tokens,
            num_pairs=self.num_pairs + other.num_pairs,
            num_rows=self.num_rows + other.num_rows,
        )


def work_of(microbatches: Iterable[Microbatch]) -> Work:
    """The work of these micro-batches; a prompt counts once for the completions that share it.

    Example:
        A prompt of 2 tokens, completions of 2 and 1: 1 + 2 pairs in the prompt, 3 at the position after it.

        >>> import torch
        >>> from apo_lightning.model.packing import PackedSequences
        >>> packed = PackedSequences(prompts=[(7, 8)], completions=[(1, 2), (3,)], owners=[0, 0])
        >>> work_of(packed.microbatches([0, 1], 100, torch.device("cpu")))
        Work(num_tokens=3, num_pairs=6, num_rows=3)
    """
    total = Work()
    for microbatch in microbatches:
        pairs = 0
        for group in microbatch.groups:
            pairs += _triangle(group.prompt_length)
            pairs += sum(group.prompt_length * length + _triangle(length) for length in group.completion_lengths)
            pairs += group.beginning * (group.prompt_length + sum(group.completion_lengths))
        pairs += _triangle(microbatch.groups[0].beginning)
        total += Work(num_tokens=len(microbatch.input_ids), num_pairs=pairs, num_rows=len(microbatch.rows))
    return total


def _triangle(length: int) -> int:
    return length * (length + 1) // 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSize:
    """The sizes that the cost of a forward depends on."""

    layer_weights: int
    """Weights of all matrices between embedding and head. Departure: of a mixture of experts, all are counted."""
    head_weights: int
    """V·D, the number of weights of the head."""
    attention_width: int
    """Layers · heads · size of a head."""
    frozen_layer_weights: int = 0
    """The frozen ones among `layer_weights`: the backward passes through them."""
    head_is_frozen: bool = False


def model_size(model: Any) -> ModelSize:
    """Count the weights of a causal `transformers` model, sharded or not."""
    config = model.config.get_text_config()
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    embedding = model.get_input_embeddings().weight
    head = model.get_output_embeddings().weight
    matrices = [p for p in model.base_model.parameters() if p.dim() > 1 and p is not embedding]
    return ModelSize(
        layer_weights=sum(matrix.numel() for matrix in matrices),
        head_weights=head.numel(),
        attention_width=config.num_hidden_layers * config.num_attention_heads * head_dim,
        frozen_layer_weights=sum(matrix.numel() for matrix in matrices if not matrix.requires_grad),
        head_is_frozen=not head.requires_grad,
    )


def training_flops(size: ModelSize, work: Work) -> int:
    """Floating-point operations of a forward and backward that compute nothing twice.

        3·(2·N·tokens + 4·width·pairs + 2·V·D·rows)

    The backward of a product costs two of its kind, and only one of them where a factor is a frozen matrix. What is
    recomputed (checkpointing, the head's logits) or merged (adapters) is not counted: the model does not need it.

    Source: Chowdhery et al. 2022 (PaLM), appendix B. Departure: attention is counted where it is causal, and the head
    at response tokens alone. Of frozen matrices those that the first layer's input goes through are counted like the
    others, though no gradient flows through them.

    Example:
        3·(2·10·3 + 4·2·6 + 2·5·3) = 3·(60 + 48 + 30)

        >>> size = ModelSize(layer_weights=10, head_weights=5, attention_width=2)
        >>> training_flops(size, Work(num_tokens=3, num_pairs=6, num_rows=3))
        414
    """
    layers = 2 * size.layer_weights * work.num_tokens
    attention = 4 * size.attention_width * work.num_pairs
    head = 2 * size.head_weights * work.num_rows
    unneeded = 2 * size.frozen_layer_weights * work.num_tokens + head * size.head_is_frozen
    return 3 * (layers + attention + head) - unneeded

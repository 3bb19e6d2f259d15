"""The sizes that memory and time depend on: of the model, its adapters, the engine and a step."""

from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from peft.tuners.lora import LoraLayer
from torch import nn
from transformers import AutoModelForCausalLM, PretrainedConfig

from apo_lightning.model.lora import LoRA

FLOAT32 = 4
"""Bytes of a master weight, of its gradient and of each of its two Adam moments."""
GPU_BYTES = 80 * 10**9
"""Assumed where the machine has no GPU to ask: the paper's GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterShape:
    """The sizes of low-rank adapters."""

    num_parameters: int
    """Trained parameters of all adapters together."""
    layer_parameters: int
    """Frozen parameters in the adapted matrices of one decoder layer."""
    largest_matrix: int
    """Elements of the largest adapted matrix."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """The sizes of a causal language model. Parameters are counted, not measured."""

    num_parameters: int
    """Without adapters; a tied head is counted once."""
    layer_parameters: int
    """Parameters of one decoder layer."""
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    adapters: AdapterShape | None = None

    @property
    def adapter_parameters(self) -> int:
        """Parameters of all adapters; 0 without any."""
        return 0 if self.adapters is None else self.adapters.num_parameters

    @property
    def trained_parameters(self) -> int:
        """Number of parameters that have gradients and moments."""
        return self.num_parameters if self.adapters is None else self.adapters.num_parameters

    @property
    def root_parameters(self) -> int:
        """Parameters outside of the layers: embedding, final norm, and the head where it is not tied."""
        return self.num_parameters - self.num_layers * self.layer_parameters

    @property
    def head_parameters(self) -> int:
        """V·D, the parameters of the head, tied or not."""
        return self.vocab_size * self.hidden_size

    @property
    def query_width(self) -> int:
        """heads·head_dim, the size of one position's queries and of its attention output."""
        return self.num_heads * self.head_dim

    @property
    def key_width(self) -> int:
        """kv_heads·head_dim, the size of one position's keys and of its values."""
        return self.num_kv_heads * self.head_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSize:
    """The settings of an engine that decide its memory and time."""

    name: str
    num_sequences: int
    """Sequences that one rank decodes at once."""
    num_forward_tokens: int
    """The largest number of tokens in one forward."""
    kv_cache_bytes: int
    """Bytes reserved at the start; 0: no size is given."""
    gpu_share: float | None = None
    """Without a given size: share of the GPU for weights, workspace, keys and values; None: they grow as needed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunShape:
    """The settings of a run that decide its memory and time."""

    world_size: int
    strategy: str
    """`single`, `ddp` (everything in every process) or `fsdp` (weights, gradients and optimizer state sharded)."""
    is_cuda: bool
    compute_bytes: int
    """Bytes of a number in the dtype of matrix products, which is also that of the engine's weights: 2 or 4."""
    has_reference: bool
    gradient_checkpointing: bool
    microbatch_tokens: int
    """Positions of one forward of the update: the budget, or the most that a mini-batch can have."""
    max_model_len: int
    """The longest prompt and completion together [tokens]."""
    engine: EngineSize
    gpu_bytes: int = GPU_BYTES
    compiles_layers: bool = False
    num_trained_models: int = 1
    """2 with a separate critic, which is as large as the policy and trained as it is."""
    changes_reference: bool = False
    """Whether the reference follows the policy, and so is in checkpoints."""
    mixes_reference: bool = False
    """Whether the reference is averaged with the policy, and so is in float32."""
    averages_base: bool = False
    """Whether the policy is averaged with the weights before training, of which a copy is kept."""

    @property
    def num_shards(self) -> int:
        """The number of processes that FSDP2 shards over; 1 under other strategies."""
        return self.world_size if self.strategy == "fsdp" else 1


def shape_of(config: PretrainedConfig, lora: LoRA | None = None) -> ModelShape:
    """Count parameters on the `meta` device, where they take no memory."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    text = config.get_text_config()
    layers = cast(nn.ModuleList, model.base_model.layers)
    shape = ModelShape(
        num_parameters=_num_elements(model),
        layer_parameters=_num_elements(layers[0]),
        num_layers=len(layers),
        hidden_size=text.hidden_size,
        intermediate_size=text.intermediate_size,
        num_heads=text.num_attention_heads,
        num_kv_heads=getattr(text, "num_key_value_heads", None) or text.num_attention_heads,
        head_dim=getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads,
        vocab_size=text.vocab_size,
    )
    if lora is None:
        return shape
    lora.attach(model, seed=0)
    adapted: list[Any] = [module for module in layers[0].modules() if isinstance(module, LoraLayer)]
    sizes = [module.base_layer.weight.numel() for module in adapted]
    adapters = AdapterShape(
        num_parameters=_num_elements(model, trained_only=True), layer_parameters=sum(sizes), largest_matrix=max(sizes)
    )
    return replace(shape, adapters=adapters)


def _num_elements(module: nn.Module, *, trained_only: bool = False) -> int:
    return sum(p.numel() for p in module.parameters() if p.requires_grad or not trained_only)

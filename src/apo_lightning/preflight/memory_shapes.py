"""The sizes that a run's memory depends on: of the model, its adapters, the engine and a step."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from peft.tuners.lora import LoraLayer
from torch import nn
from transformers import AutoModelForCausalLM, PretrainedConfig

from apo_lightning.errors import ConfigError
from apo_lightning.model.lora import LoRA

FLOAT32 = 4
"""Bytes of a master weight, of its gradient and of each of its two Adam moments."""
GPU_BYTES = 80 * 10**9
"""Of a GPU that is not there to be asked: the paper's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterShape:
    """Low-rank adapters, as far as memory depends on them."""

    num_parameters: int
    """Parameters of all adapters together."""
    layer_parameters: int
    """Frozen parameters of one decoder layer that lie in adapted matrices."""
    largest_matrix: int
    """Elements of the largest adapted matrix."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """The sizes of a causal language model that memory depends on. Parameters are counted, not measured."""

    num_parameters: int
    """Number of parameters, a tied head counted once."""
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
    """The adapters' sizes; None: all parameters are trained."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSize:
    """The settings of an engine that decide how much memory it takes."""

    name: str
    num_sequences: int
    """Sequences that one rank decodes at once."""
    num_forward_tokens: int
    """The largest number of tokens in one forward."""
    kv_cache_bytes: int
    """Bytes reserved at the start; 0: no size is given."""
    fills_gpu: bool = False
    """Without a size: what is left of a GPU is reserved at the start; False: the cache grows with the sequences."""
    block_tokens: int = 0
    """Completions of a group share whole blocks of so many tokens of their prompt; 0: all of it."""
    has_graphs: bool = False
    """Whether decoding forwards are recorded and replayed: then nothing is launched kernel by kernel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunShape:
    """The settings of a run that decide how much memory it takes."""

    world_size: int
    strategy: str
    """`single`, `ddp` (everything in every process) or `fsdp` (weights, gradients and optimizer state divided)."""
    is_cuda: bool
    compute_bytes: int
    """Bytes of a number in the dtype of matrix products: 2 or 4. The engine's weights have it too."""
    has_reference: bool
    gradient_checkpointing: bool
    microbatch_tokens: int
    """Positions of one forward of the update: the budget, or all that a mini-batch can have."""
    max_model_len: int
    """The longest prompt and completion [tokens]."""
    engine: EngineSize
    gpu_bytes: int = GPU_BYTES
    """Memory of the GPU, where there is one."""
    keeps_layers_gathered: bool = False
    """FSDP2 without `reshard_after_forward`: a layer that was gathered in the forward stays so until its backward."""
    compiles_layers: bool = False
    """Fewer passes over memory between products, and less kept for the backward."""
    offloads: bool = False
    """FSDP2's shards, their gradients and the optimizer's moments lie in the machine's memory, not in the GPU's."""

    @property
    def num_shards(self) -> int:
        """Processes that divide what FSDP2 divides."""
        return self.world_size if self.strategy == "fsdp" else 1


def shape_of(config: PretrainedConfig, lora: LoRA | None = None) -> ModelShape:
    """Count a model's parameters on the `meta` device, where they have shapes and no memory.

    Args:
        config: of the model.
        lora: its adapters; None: all weights are trained.

    Raises:
        ConfigError: the model's layers are not `base_model.layers`, which sharding needs as well.
    """
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    text = config.get_text_config()
    layers = getattr(model.base_model, "layers", None)
    if not layers:
        raise ConfigError(f"a {config.model_type} model keeps its layers where this trainer does not look for them")
    shape = ModelShape(
        num_parameters=sum(parameter.numel() for parameter in model.parameters()),
        layer_parameters=sum(parameter.numel() for parameter in layers[0].parameters()),
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
    return replace(shape, adapters=_adapter_shape(model, layers[0]))


def _adapter_shape(model: nn.Module, layer: nn.Module) -> AdapterShape:
    layers: list[Any] = [module for module in layer.modules() if isinstance(module, LoraLayer)]
    adapted = [part.base_layer.weight.numel() for part in layers]
    return AdapterShape(
        num_parameters=sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad),
        layer_parameters=sum(adapted),
        largest_matrix=max(adapted),
    )

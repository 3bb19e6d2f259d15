"""Low-rank adapters: a matrix W acts as W + (alpha/rank)·B·A, and only A and B are trained.

The adapters are PEFT's, put into the model in place: it keeps its class and its methods. Layers compute with the merged
matrix (`adapted_linear`), and what leaves the trainer is merged and bears the model's own names.

Source: Hu et al. 2021, *LoRA: Low-Rank Adaptation of Large Language Models* (arXiv 2106.09685), §4.1.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, inject_adapter_in_model
from peft.tuners.lora import LoraLayer
from peft.utils import SAFETENSORS_WEIGHTS_NAME
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from apo_lightning.common.process_group import process_rank
from apo_lightning.errors import ConfigError
from apo_lightning.model.adapted_linear import AdaptedLinear, merged_matrix

ADAPTER = "default"
"""PEFT's name for an adapter that was given none."""
ALL_LINEAR = "all-linear"


@dataclass(frozen=True, kw_only=True)
class LoRA:
    """Which matrices are adapted, and how. Its fields are the keys of `configs/policy/lora.yaml`.

    There is no dropout: it would make the policy that is updated another one than the policy that sampled.

    Attributes:
        rank: r ≥ 1, the rows of A and the columns of B. An adapter of a matrix [m, n] has r·(m + n) weights.
        alpha: what an adapter adds is scaled by alpha/rank, so that another rank keeps the learning rate.
        target_modules: "all-linear" (all but the head), or the last parts of names of linear layers.
    """

    rank: int = 16
    alpha: float | int = 32
    target_modules: str | tuple[str, ...] | list[str] = ALL_LINEAR

    def __post_init__(self) -> None:
        if type(self.rank) is not int or self.rank < 1:
            raise ConfigError(f"policy.lora.rank is {self.rank}: give a whole number, 1 or more")
        if not (self.alpha > 0 and math.isfinite(self.alpha)):
            raise ConfigError(f"policy.lora.alpha is {self.alpha}: give a positive number")
        if self.target_modules != ALL_LINEAR and (isinstance(self.target_modules, str) or not self.target_modules):
            raise ConfigError(
                f"policy.lora.target_modules is {self.target_modules!r}: give {ALL_LINEAR}, or a list of names such as "
                "[q_proj,v_proj]"
            )

    def check(self, config: PretrainedConfig) -> None:
        """Whether the model has the layers that are named; loads no weights.

        Raises:
            ConfigError: a name is that of no linear layer between embedding and head.
        """
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
        head = model.get_output_embeddings()
        layers = [
            name for name, module in model.named_modules() if isinstance(module, nn.Linear) and module is not head
        ]
        for target in () if isinstance(self.target_modules, str) else self.target_modules:
            if not any(f".{name}".endswith(f".{target}") for name in layers):
                known = ", ".join(sorted({name.rpartition(".")[2] for name in layers}))
                raise ConfigError(
                    f"policy.lora.target_modules has {target!r}, which no adaptable layer of a {config.model_type} "
                    f"model is called: choose from {known}; the head is never adapted"
                )

    def attach(self, model: PreTrainedModel, seed: int) -> None:
        """Put adapters into the model and freeze all else. B is 0: the model computes what it did before.

        Args:
            model: changed in place.
            seed: of A's weights; the global RNG is left as it was.
        """
        config = LoraConfig(
            r=self.rank,
            lora_alpha=self.alpha,  # pyright: ignore[reportArgumentType]
            target_modules=self.target_modules if isinstance(self.target_modules, str) else list(self.target_modules),
            lora_dropout=0.0,
            task_type="CAUSAL_LM",
            base_model_name_or_path=model.name_or_path or None,
        )
        # Not public, but documented by PEFT as its one way to layers of one's own.
        config._register_custom_module({nn.Linear: AdaptedLinear})
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            inject_adapter_in_model(config, model, ADAPTER)
        # PEFT keeps a set, which would be written in another order every time.
        config.target_modules = sorted(config.target_modules or ())


def has_adapters(model: nn.Module) -> bool:
    """True where an adapter was attached to any of its layers."""
    return any(isinstance(module, LoraLayer) for module in model.modules())


def describe_adapters(model: nn.Module) -> str:
    """A line for the log, e.g. `LoRA rank 16: 4.9M of 139.4M parameters trained`; empty without adapters."""
    rank = next((module.r[ADAPTER] for module in model.modules() if isinstance(module, LoraLayer)), None)
    if rank is None:
        return ""
    trained, all_of_them = (
        sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad or counts_frozen) / 1e6
        for counts_frozen in (False, True)
    )
    return f"LoRA rank {rank}: {trained:.1f}M of {all_of_them:.1f}M parameters trained"


@contextmanager
def adapters_off(model: nn.Module) -> Iterator[None]:
    """The model as it was before they were attached, until the block is left, normally or by an exception.

    Only for blocks without a gradient: recomputed under checkpointing, a forward would find them on again.
    """
    layers = [module for module in model.modules() if isinstance(module, AdaptedLinear)]
    before = [layer.is_bypassed for layer in layers]
    for layer in layers:
        layer.is_bypassed = True
    try:
        yield
    finally:
        for layer, state in zip(layers, before, strict=True):
            layer.is_bypassed = state


def merged_parameters(model: nn.Module, *, remove_duplicate: bool = True) -> Iterator[tuple[str, Tensor]]:
    """The parameters of the model without adapters that computes the same, one at a time, detached.

    Nothing is changed: adding to W and subtracting again would leave rounding behind in it, sync after sync.

    Args:
        model: with or without adapters; sharded parameters come sharded, and are read by all ranks together.
        remove_duplicate: a tied parameter comes once, by its first name.

    Example:
        >>> [name for name, _ in merged_parameters(nn.Linear(1, 1))]
        ['weight', 'bias']
    """
    adapted = {
        f"{name}.base_layer.weight": module for name, module in model.named_modules() if isinstance(module, LoraLayer)
    }
    for name, parameter in model.named_parameters(remove_duplicate=remove_duplicate):
        if _is_of_adapter(name):
            continue
        weight = parameter.detach()
        yield name.replace(".base_layer.", "."), _merged(weight, adapted[name]) if name in adapted else weight


def _is_of_adapter(name: str) -> bool:
    return name.endswith((f".lora_A.{ADAPTER}.weight", f".lora_B.{ADAPTER}.weight"))


def _merged(weight: Tensor, layer: Any) -> Tensor:
    """W + (alpha/rank)·B·A; all three are sharded by rows, or none is."""
    down, up = layer.lora_A[ADAPTER].weight.detach(), layer.lora_B[ADAPTER].weight.detach()
    if isinstance(down, DTensor):
        # With all of A each rank makes its own rows of the product.
        down = down.redistribute(placements=[Replicate()] * down.device_mesh.ndim)
    return merged_matrix(weight, down, up, layer.scaling[ADAPTER])


def whole(weight: Tensor) -> Tensor:
    """The whole of a parameter; gathering one that is sharded is collective."""
    if not isinstance(weight, DTensor):
        return weight
    # Offloaded shards are gathered on the accelerator: between CPUs it takes many times as long.
    on_accelerator = weight.to(weight.device_mesh.device_type)
    assert isinstance(on_accelerator, DTensor)
    return on_accelerator.full_tensor()


def merged_weights(model: nn.Module) -> dict[str, Tensor]:
    """All of `merged_parameters`, whole, on the CPU, on the first rank; all ranks have to call it."""
    return _on_first_rank(merged_parameters(model))


def save_adapter(model: PreTrainedModel, folder: Path) -> None:
    """Write a folder that `peft.PeftModel.from_pretrained(base, folder)` loads.

    The first rank writes, all ranks have to call it.
    """
    named = ((name, parameter.detach()) for name, parameter in model.named_parameters() if _is_of_adapter(name))
    weights = _on_first_rank((f"base_model.model.{name.replace(f'.{ADAPTER}.', '.')}", part) for name, part in named)
    if weights:
        save_file(weights, folder / SAFETENSORS_WEIGHTS_NAME, metadata={"format": "pt"})
        config: Any = model.peft_config[ADAPTER]  # pyright: ignore[reportIndexIssue]
        config.save_pretrained(folder)


def _on_first_rank(named: Iterator[tuple[str, Tensor]]) -> dict[str, Tensor]:
    is_first = process_rank() == 0
    weights = {}
    for name, part in named:
        gathered = whole(part)
        if is_first:
            weights[name] = gathered.cpu().contiguous()
    return weights

"""Low-rank adapters: a matrix W acts as W + (alpha/rank)·B·A, and only A and B are trained.

PEFT's adapters are injected into the model in place, which keeps its class and methods. Exported and synchronised
weights are merged and have the model's own names.

Layers multiply by the merged matrix, as the engine does. Computed separately, as W·x + s·B·(A·x), a layer would differ
from the one that samples: the engine has W + s·B·A rounded to bfloat16, where an update below half a unit in the last
place of W is lost. (SmolLM2's engine and trainer differ by 0.05 nats a token before training, and differed by 0.13
after three steps.) Here the trainer rounds the same sum, so both are the same policy in any dtype. The gradient is
still low-rank and never a matrix of W's size.

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
from peft.tuners.lora import Linear, LoraLayer
from peft.utils import SAFETENSORS_WEIGHTS_NAME
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.distributed.tensor import DTensor, Replicate
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from apo_lightning.common.files import naming
from apo_lightning.common.process_group import process_rank
from apo_lightning.errors import ConfigError

ADAPTER = "default"
"""PEFT's default adapter name."""
ALL_LINEAR = "all-linear"


@dataclass(frozen=True, kw_only=True)
class LoRA:
    """Which matrices are adapted, and how. Its fields are the keys of `configs/policy/lora.yaml`.

    There is no dropout: it would make the updated policy differ from the one that sampled.

    Attributes:
        rank: r ≥ 1, the rows of A and the columns of B. An adapter of a matrix [m, n] has r·(m + n) weights.
        alpha: the adapter's product is scaled by alpha/rank, so that another rank needs no other learning rate.
        target_modules: "all-linear" (all but the head), or suffixes of names of linear layers.
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
        """Check that the model has the named layers; loads no weights.

        Raises:
            ConfigError: a name matches no linear layer between embedding and head; or all are asked for, and the
                experts, most of the weights, are none.
        """
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
        head = model.get_output_embeddings()
        layers = [name for name, layer in model.named_modules() if isinstance(layer, nn.Linear) and layer is not head]
        if isinstance(self.target_modules, str) and any(weight.ndim == 3 for weight in model.parameters()):
            attention = sorted({name.rpartition(".")[2] for name in layers if "attn" in name})
            raise ConfigError(
                f"policy.lora.target_modules is {ALL_LINEAR}, and the experts of a {config.model_type} model are no "
                f"linear layers, so that they would stay frozen: name the layers to adapt, [{','.join(attention)}] say"
            )
        for target in () if isinstance(self.target_modules, str) else self.target_modules:
            if not any(f".{name}".endswith(f".{target}") for name in layers):
                known = ", ".join(sorted({name.rpartition(".")[2] for name in layers}))
                raise ConfigError(
                    f"policy.lora.target_modules has {target!r}, which matches no adaptable layer of a "
                    f"{config.model_type} model: choose from {known}; the head is never adapted"
                )

    def attach(self, model: PreTrainedModel, seed: int) -> None:
        """Inject adapters into the model and freeze all other weights. B is 0: outputs do not change yet.

        The seed is that of A's weights; the global RNG is left as it was.
        """
        config = LoraConfig(
            r=self.rank,
            lora_alpha=self.alpha,  # pyright: ignore[reportArgumentType]
            target_modules=self.target_modules if isinstance(self.target_modules, str) else list(self.target_modules),
            lora_dropout=0.0,
            task_type="CAUSAL_LM",
            base_model_name_or_path=model.name_or_path or None,
        )
        # Private, but PEFT documents it as the way to custom layers.
        config._register_custom_module({nn.Linear: AdaptedLinear})
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            inject_adapter_in_model(config, model, ADAPTER)
        # PEFT keeps a set, which would be written in another order each time.
        config.target_modules = sorted(config.target_modules or ())


def has_adapters(model: nn.Module) -> bool:
    """True if any layer has an adapter."""
    return any(isinstance(module, LoraLayer) for module in model.modules())


@contextmanager
def adapters_off(model: nn.Module) -> Iterator[None]:
    """Context in which the model runs without its adapters.

    Only for blocks without a gradient: checkpointing would recompute the forward with the adapters on.
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
    """Parameters of the equivalent model without adapters, one at a time, detached; all ranks must read them together.

    Nothing is changed in place: adding to W and subtracting again would leave rounding errors, sync after sync.

    Args:
        model: with or without adapters; sharded parameters stay sharded.
        remove_duplicate: yield a tied parameter once, by its first name.

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


def persistent_buffers(model: nn.Module) -> dict[str, Tensor]:
    """What a checkpoint holds besides parameters, by name: the bias by which a router chooses experts.

    Example:
        >>> list(persistent_buffers(nn.BatchNorm1d(1)))
        ['running_mean', 'running_var', 'num_batches_tracked']
    """
    parameters = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    return {name: tensor for name, tensor in model.state_dict().items() if name not in parameters}


def _is_of_adapter(name: str) -> bool:
    return name.endswith((f".lora_A.{ADAPTER}.weight", f".lora_B.{ADAPTER}.weight"))


def _merged(weight: Tensor, layer: Any) -> Tensor:
    """W + (alpha/rank)·B·A; either all three are sharded by rows or none is."""
    down, up = layer.lora_A[ADAPTER].weight.detach(), layer.lora_B[ADAPTER].weight.detach()
    if isinstance(down, DTensor):
        # With the whole of A, each rank computes its own rows of the product.
        down = down.redistribute(placements=[Replicate()] * down.device_mesh.ndim)
    return merged_matrix(weight, down, up, layer.scaling[ADAPTER])


def whole(weight: Tensor) -> Tensor:
    """The full tensor of a parameter; collective if it is sharded."""
    if not isinstance(weight, DTensor):
        return weight
    # Offloaded shards are gathered on the accelerator: gathering between CPUs takes many times as long.
    on_accelerator = weight.to(weight.device_mesh.device_type)
    assert isinstance(on_accelerator, DTensor)
    return on_accelerator.full_tensor()


def save_adapter(model: PreTrainedModel, folder: Path) -> None:
    """Write a folder that `peft.PeftModel.from_pretrained(base, folder)` loads, on the first rank; all must call it."""
    named = ((name, parameter.detach()) for name, parameter in model.named_parameters() if _is_of_adapter(name))
    weights = on_first_rank((f"base_model.model.{name.replace(f'.{ADAPTER}.', '.')}", part) for name, part in named)
    if weights:
        config: Any = model.peft_config[ADAPTER]  # pyright: ignore[reportIndexIssue]
        with naming(folder):
            save_file(weights, folder / SAFETENSORS_WEIGHTS_NAME, metadata={"format": "pt"})
            config.save_pretrained(folder)


def on_first_rank(named: Iterator[tuple[str, Tensor]]) -> dict[str, Tensor]:
    """These parameters as full tensors on the CPU of the first rank, nothing on others; all ranks must call it."""
    gathered = ((name, whole(part)) for name, part in named)
    return {name: part.cpu().contiguous() for name, part in gathered if process_rank() == 0}


# ------------------------------------------------------------------ adapted layers


def merged_matrix(weight: Tensor, down: Tensor, up: Tensor, scaling: float | int) -> Tensor:
    """W + s·B·A in the dtype of the three matrices, also under autocast: W [m, n], A `down` [r, n], B `up` [m, r].

    Example:
        >>> merged_matrix(torch.ones(2, 2), torch.tensor([[1.0, 0.0]]), torch.tensor([[1.0], [2.0]]), 0.5)
        tensor([[1.5000, 1.0000],
                [2.0000, 1.0000]])
    """
    with torch.autocast(weight.device.type, enabled=False):
        return torch.add(weight, up @ down, alpha=scaling)


class AdaptedLinear(Linear):
    """PEFT's linear layer with a merged product; with its adapters off it is the layer that it wraps."""

    is_bypassed = False
    """True switches the adapters off and changes nothing else.

    PEFT's own switch also clears `requires_grad`; a sharded parameter that is first gathered in that state would get
    no gradient for the rest of the run.
    """

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """x·(W + s·B·A)ᵀ + bias, in autocast's dtype if it is on."""
        base: Any = self.base_layer
        if self.is_bypassed or self.disable_adapters:
            return base(x, *args, **kwargs)
        (adapter,) = self.active_adapters
        device = x.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else base.weight.dtype
        down, up = self.lora_A[adapter].weight, self.lora_B[adapter].weight
        product = _MergedProduct.apply(x, base.weight, down, up, self.scaling[adapter], dtype)
        return product if base.bias is None else product + base.bias.to(dtype)


class _MergedProduct(torch.autograd.Function):
    """x·round(W + s·B·A)ᵀ. Rounding passes the gradient unchanged, as it does from full training's master weights."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, down: Tensor, up: Tensor, scaling: float | int, dtype: torch.dtype
    ) -> Tensor:
        ctx.save_for_backward(x, weight, down, up)
        ctx.scaling, ctx.dtype = scaling, dtype
        return nn.functional.linear(x.to(dtype), merged_matrix(weight, down, up, scaling).to(dtype))

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, grad: Tensor
    ) -> tuple[Any, ...]:
        x, weight, down, up = ctx.saved_tensors
        grad_x = None
        if ctx.needs_input_grad[0]:
            # Merged again: the merged matrices of all layers, kept from the forward, would be a second model.
            grad_x = (grad @ merged_matrix(weight, down, up, ctx.scaling).to(ctx.dtype)).to(x.dtype)
        rows, grads = x.to(ctx.dtype).flatten(0, -2), grad.flatten(0, -2)
        grad_down = (grads @ up.to(ctx.dtype)).T @ rows
        grad_up = grads.T @ (rows @ down.to(ctx.dtype).T)
        return grad_x, None, *(part.to(down.dtype).mul_(ctx.scaling) for part in (grad_down, grad_up)), None, None

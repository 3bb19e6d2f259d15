"""A linear layer with a low-rank adapter that multiplies by the merged matrix, as the engine does.

Computed separately, as W·x + s·B·(A·x), the layer would differ from the one that samples: the engine has W + s·B·A
rounded to bfloat16, where an update below half a unit in the last place of W is lost. (SmolLM2's engine and trainer
differ by 0.05 nats a token before training, and differed by 0.13 after three steps.) Here the trainer rounds the same
sum, so both are the same policy in any dtype. The gradient is still low-rank and never a matrix of W's size.
"""

from typing import Any

import torch
from peft.tuners.lora import Linear
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


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

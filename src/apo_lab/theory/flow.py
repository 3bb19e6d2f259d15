"""Following a force: one plain gradient step, or many small ones."""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

Force = Callable[[Tensor], Tensor]
"""Logits to the force on them, of one shape."""


def step(
    logits: Float[Tensor, "*batch vocab"], force: Float[Tensor, "*batch vocab"], eta: float
) -> Float[Tensor, "*batch vocab"]:
    """z + η·f."""
    return logits + eta * force


def flow(
    logits: Float[Tensor, "*batch vocab"], force: Force, end: float, *, stride: float = 0.01, growth: float = 0.0
) -> Float[Tensor, "*batch vocab"]:
    """dz/dt = f(z) up to t = `end`, by Euler's steps.

    A step moves no logit by more than `stride` and takes no more than `growth` of the time that has passed, where that
    is above 0: slow decays over many decades of time are then as fine late as early.

    Args:
        logits: at t = 0.
        force: of the logits.
        end: the time [1/η].
        stride: most that a logit moves in a step [nats].
        growth: most of t + 1 that a step may take; 0: no such bound.
    """
    time = 0.0
    while time < end:
        direction = force(logits)
        size = min(stride / max(direction.abs().max().item(), 1e-300), end - time)
        if growth > 0:
            size = min(size, growth * (1 + time))
        logits = step(logits, direction, size)
        time += size
    return logits


def inner_steps(logits: Float[Tensor, "vocab"], force: Force, eta: float, count: int) -> Float[Tensor, "steps vocab"]:
    """The logits before and after each of `count` optimizer steps of one rollout."""
    path = [logits]
    for _ in range(count):
        path.append(step(path[-1], force(path[-1]), eta))
    return torch.stack(path)

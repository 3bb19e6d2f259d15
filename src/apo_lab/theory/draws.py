"""Distributions to try a statement on: written down, or random with a fixed seed."""

from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from apo_lab.theory.forces import token_force
from apo_lightning.losses import APO


def dist(*values: float | int) -> Float[Tensor, "vocab"]:
    """A float64 vector.

    Example:
        >>> dist(0.5, 0.5).dtype
        torch.float64
    """
    return torch.tensor(values, dtype=torch.float64)


def seeded(seed: int) -> torch.Generator:
    """A generator of its own for each check, so that no check depends on another."""
    return torch.Generator().manual_seed(seed)


def random_probs(rows: int, vocab: int, generator: torch.Generator, spread: float = 2.0) -> Float[Tensor, "rows vocab"]:
    """Softmaxes of normal logits with standard deviation `spread` [nats]."""
    logits = torch.randn(rows, vocab, generator=generator, dtype=torch.float64) * spread
    return logits.softmax(1)


def random_tokens(probs: Float[Tensor, "rows vocab"], generator: torch.Generator) -> Tensor:
    """One uniform token a row."""
    return torch.randint(probs.shape[1], (len(probs),), generator=generator)


def pull_alone(loss: APO, probs: Tensor, ref: Tensor, token_id: int) -> Float[Tensor, "vocab"]:
    """The shipped loss's force on an error less its force with β = 0; neither may be beyond the clip."""
    return token_force(loss, probs, ref, token_id) - token_force(replace(loss, pull_coef=0.0), probs, ref, token_id)


def cosine(one: Tensor, other: Tensor) -> float:
    """Of the angle between two forces."""
    return (one @ other / (one.norm() * other.norm())).item()

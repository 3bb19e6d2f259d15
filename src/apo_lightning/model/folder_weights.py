"""The weights in a model's folder: each accounted for before any is loaded, and their fingerprint.

Files are mapped into memory, so a tensor's name, shape and dtype cost its header, and its values what is read of them.
"""

import json
import pickle
import zipfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from transformers import PreTrainedModel
from transformers.utils import logging as transformers_logging

from apo_lightning.common.console import progress_bars_hidden
from apo_lightning.common.identity import sha256_of
from apo_lightning.errors import ConfigError, in_brief
from apo_lightning.model.fingerprint import content

SINGLE = ("model.safetensors", "pytorch_model.bin")
"""The names that `transformers` loads from a folder, each before the index of the same kind, in this order."""
SAMPLED_BYTES = 256 * 2**20
"""Most that is read of all values together, for the fingerprint and to find NaN before loading."""
NUM_BLOCKS = 16
"""Parts of a tensor that is not read whole, at equal distances."""
NAMED = 3
"""Names in a message; the others are counted."""


def read_folder(folder: Path, where: str) -> dict[str, Tensor]:
    """Name → tensor of the weights that `transformers` would load from the folder, mapped; empty if it has none.

    `where` begins the messages.

    Raises:
        ConfigError: a file is missing or damaged.
    """
    found: dict[str, Tensor] = {}
    for path in _weight_files(folder, where):
        tensors = _mapped(path, where)
        for name in tensors.keys() & found.keys():
            if not _are_equal(tensors[name], found[name]):
                raise ConfigError(
                    f"{where}: {name} is in {path.name} and, with other values, in another file of the "
                    f"index: copy all files of the model again"
                )
        found |= tensors
    return found


def _weight_files(folder: Path, where: str) -> list[Path]:
    for single in SINGLE:
        if (folder / single).is_file():
            return [folder / single]
        if not (index := folder / f"{single}.index.json").is_file():
            continue
        try:
            fields = json.loads(index.read_bytes())
            weight_map, _ = fields["weight_map"], fields["metadata"]  # transformers reads both
            names = sorted({str(name) for name in weight_map.values()})
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(f"{where}: {index.name} is damaged ({in_brief(error)}): copy it again") from error
        if lacking := [name for name in names if not (folder / name).is_file()]:
            raise ConfigError(
                f"{where}: {index.name} names {', '.join(lacking[:NAMED])}, which the folder lacks ({len(lacking)} of "
                f"{len(names)} files): copy all files of the model"
            )
        return [folder / name for name in names]
    return []


def _mapped(path: Path, where: str) -> dict[str, Tensor]:
    """Name → tensor of one file; the values are read when they are used."""
    try:
        if path.suffix == ".safetensors":
            with safe_open(path, framework="pt") as file:  # pyright: ignore[reportUnknownVariableType]
                return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
        found = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
        if others := [name for name, value in found.items() if not isinstance(value, Tensor)]:
            raise TypeError(f"{others[0]} is no tensor")
        return found
    except (SafetensorError, pickle.UnpicklingError, RuntimeError, EOFError, AttributeError, TypeError) as error:
        with path.open("rb") as file:
            is_pointer = file.read(7) == b"version"
        remedy = "fetch it with git lfs pull" if is_pointer else "give a folder with intact .safetensors files"
        raise ConfigError(
            f"{where}: {path.name}: its weights are damaged, or hold more than tensors "
            f"({in_brief(error).partition('. ')[0]}): {remedy}"
        ) from error
    except OSError as error:
        raise ConfigError(f"{where}: {path.name} cannot be read ({in_brief(error)})") from error


def account(skeleton: PreTrainedModel, tensors: Mapping[str, Tensor], where: str) -> None:
    """Check that each weight of a model is in its folder, and each tensor of the folder in the model; reads samples.

    `transformers` itself loads the tensors without values on the meta device, with its renamings and conversions.

    Args:
        skeleton: the model on the meta device.
        tensors: those of `read_folder`.
        where: begins the message.

    Raises:
        ConfigError: a weight is missing, left over, of another shape, no floating-point number, or has NaN or inf; or
            the config ties it to another that has other values in the folder.
    """
    coded = sorted(n for n, t in tensors.items() if not t.dtype.is_floating_point or t.dtype.itemsize == 1)
    # Integers are buffers, or quantised weights: without them, those are missing.
    info = _load_names(skeleton, tensors.keys() - coded, tensors, where)
    if coded and _missing(skeleton, info):
        kinds = ", ".join(sorted({str(tensors[name].dtype).removeprefix("torch.") for name in coded}))
        raise ConfigError(
            f"{where}: stored as {kinds}: {_listed(coded)}; quantised weights cannot be trained: give the folder in "
            "bfloat16 or float32"
        )
    if coded:
        info = _load_names(skeleton, tensors.keys(), tensors, where)
    _refuse_incomplete(skeleton, info, where)
    for target, source in skeleton.get_expanded_tied_weights_keys(all_submodels=True).items():
        if target in tensors and source in tensors and not _are_equal(tensors[target], tensors[source]):
            raise _not_tied(target, source, where)
    samples = _samples(tensors)
    if damaged := [name for name in tensors if name not in coded and not samples[name].isfinite().all()]:
        raise _not_finite(damaged, where)


def _load_names(
    skeleton: PreTrainedModel, names: Collection[str], tensors: Mapping[str, Tensor], where: str
) -> Mapping[str, Collection[Any]]:
    """What `transformers` says of loading tensors of these names and shapes, without values."""
    shapes = {name: torch.empty_like(tensors[name], device="meta", dtype=torch.float32) for name in sorted(names)}
    verbosity = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()  # it would print a table of its own
    try:
        with progress_bars_hidden():
            _, info = cast(Any, type(skeleton)).from_pretrained(
                None,
                config=skeleton.config,
                state_dict=shapes,
                device_map={"": "meta"},
                dtype=torch.float32,
                ignore_mismatched_sizes=True,
                output_loading_info=True,
            )
        return info
    except RuntimeError as error:
        raise ConfigError(f"{where}: its weights do not fit {type(skeleton).__name__} ({in_brief(error)})") from error
    finally:
        transformers_logging.set_verbosity(verbosity)


def check_loaded(model: PreTrainedModel, info: Mapping[str, Collection[Any]], where: str) -> None:
    """`account` of a model with its values, after loading: every value is read.

    Raises:
        ConfigError: as `account`.
    """
    _refuse_incomplete(model, info, where)
    for target, source in model.get_expanded_tied_weights_keys(all_submodels=True).items():
        if model.get_parameter(target) is not model.get_parameter(source):
            raise _not_tied(target, source, where)
    # A sum is one pass without a copy; it is infinite for some finite weights too.
    suspects = [(name, weight) for name, weight in model.named_parameters() if not weight.detach().sum().isfinite()]
    if damaged := [name for name, weight in suspects if not weight.isfinite().all()]:
        raise _not_finite(damaged, where)


def _missing(model: PreTrainedModel, info: Mapping[str, Collection[Any]]) -> list[str]:
    """The weights that were not loaded; integers are buffers with their initial values."""
    return sorted(name for name in info["missing_keys"] if model.get_parameter_or_buffer(name).is_floating_point())


def _refuse_incomplete(model: PreTrainedModel, info: Mapping[str, Collection[Any]], where: str) -> None:
    """Raise `ConfigError` if loading left out a weight of the model, or a tensor of the folder."""
    missing, left_over, kind = _missing(model, info), sorted(info["unexpected_keys"]), type(model).__name__
    if reshaped := sorted(info["mismatched_keys"]):
        _, found, expected = reshaped[0]
        raise ConfigError(
            f"{where}: another shape than config.json says: {_listed([name for name, *_ in reshaped])} ({[*found]}, "
            f"not {[*expected]}): give the config that belongs to the weights"
        )
    also = f"; {_listed(left_over)} would be left out" if left_over else ""
    if missing:
        raise ConfigError(
            f"{where}: the folder lacks {_listed(missing)} of {kind}, which would be random{also}: give all weights, "
            "under the names of the model itself, and the config that belongs to them"
        )
    if left_over:
        raise ConfigError(
            f"{where}: {kind} has no weight for {_listed(left_over)} in the folder, which would be left out: give the "
            "config that belongs to the weights, or remove what is no part of the model"
        )


def fingerprint(tensors: Mapping[str, Tensor]) -> str:
    """A hash over names, dtypes, shapes and values; of more than `SAMPLED_BYTES`, evenly spaced parts of each tensor.

    It does not depend on how tensors are divided into files. A change of single values can escape it, and an update of
    training, which changes all, cannot.

    Example:
        >>> fingerprint({"a": torch.zeros(2)}) == fingerprint({"a": torch.zeros(2)})
        True
        >>> fingerprint({"a": torch.zeros(2)}) == fingerprint({"a": torch.ones(2)})
        False
    """
    samples = sorted(_samples(tensors).items())
    return sha256_of(part for name, values in samples for part in content(name, tensors[name], values))


def file_fingerprint(path: Path) -> str:
    """`fingerprint` of a file's bytes, such as a GGUF file's."""
    size = path.stat().st_size
    return fingerprint({path.suffix: torch.from_file(str(path), size=size, dtype=torch.uint8)})


def _samples(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Name → values of each tensor, all or of evenly spaced blocks, `SAMPLED_BYTES` together."""
    left, found = SAMPLED_BYTES, {}
    for number, name in enumerate(sorted(tensors, key=lambda name: tensors[name].nbytes)):
        flat, share = tensors[name].detach().reshape(-1), left // (len(tensors) - number)
        if flat.nbytes > share:
            length = max(1, share // NUM_BLOCKS // flat.itemsize)
            starts = torch.linspace(0, flat.numel() - length, NUM_BLOCKS, dtype=torch.float64).long().tolist()
            flat = torch.cat([flat[start : start + length] for start in starts])
        found[name] = flat
        left -= flat.nbytes
    return found


def _are_equal(one: Tensor, other: Tensor) -> bool:
    dtype = torch.promote_types(one.dtype, other.dtype)
    return one.shape == other.shape and torch.equal(one.to(dtype), other.to(dtype))


def _not_tied(target: str, source: str, where: str) -> ConfigError:
    return ConfigError(
        f"{where}: tie_word_embeddings is true in config.json, but the folder has a {target} that differs from "
        f"{source}: set it to false, or remove {target} from the file"
    )


def _not_finite(names: Collection[str], where: str) -> ConfigError:
    return ConfigError(f"{where}: NaN or inf in {_listed(names)}: copy or save the weights again")


def _listed(names: Collection[str]) -> str:
    """How many names there are, and the first of them; the name alone if it is one."""
    first = ", ".join([*names][:NAMED])
    return first if len(names) == 1 else f"{len(names)} tensors ({first}{', …' * (len(names) > NAMED)})"

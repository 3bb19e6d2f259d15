"""Reads sampled weights back from a vLLM model, whose layers are fused, sliced and packed, by Hugging Face name.

Relies on the attributes of vLLM's layers and does not import vLLM.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from apo_lightning.rollout.weight_sample import HeldPart, WeightSample


def held_parts(worker: Any, samples: Mapping[str, WeightSample]) -> Iterator[HeldPart]:
    """The part of each sample that this tensor-parallel rank holds; parameters whose layer is not found are left out.

    On the CPU a linear layer multiplies with a packed copy of its weight that cannot be read. Multiplying rows of the
    identity returns its columns, exactly, since all other products are 0.

    `worker` is vLLM's, as `collective_rpc` passes it; `samples` are those of the weights that were sent, by name.
    """
    model = worker.get_model()
    layers = dict(model.named_modules())
    read: dict[tuple[str, str, range], Tensor] = {}
    fused = {part: (whole, parts) for whole, parts in model.packed_modules_mapping.items() for part in parts}
    for name, sample in samples.items():
        path, _, kind = name.rpartition(".")
        parent, _, own = path.rpartition(".")
        whole, parts = fused.get(own, (own, [own]))
        path = f"{parent}.{whole}" if parent else whole
        layer = layers.get(path)
        if layer is None or getattr(layer, kind, None) is None:
            continue
        first_column, num_columns = 0, sample.num_columns
        if kind == "weight" and hasattr(layer, "input_size_per_partition"):
            num_columns = layer.input_size_per_partition
            first_column = _first(layer, sample.num_columns, num_columns)
        inside = sample.within(first_column, num_columns)
        key = path, kind, sample.columns
        if key not in read:  # a fused layer is read once for all of its parts
            columns = [column - first_column for column in sample.columns[inside]]
            read = {key: _columns(layer, kind, columns, num_columns)}
        start, count, first_row = _rows(layer, parts.index(own), sample.num_rows)
        yield HeldPart(name, first_row, inside, read[key][start : start + count])


def _rows(layer: Any, place: int, num_rows: int) -> tuple[int, int, int]:
    """(first row in the layer, number of rows, first row in the whole parameter)."""
    if hasattr(layer, "shard_indices"):  # a vocabulary, padded at the end
        vocabulary = layer.shard_indices
        return 0, vocabulary.num_org_elements, vocabulary.org_vocab_start_index
    sizes = getattr(layer, "output_partition_sizes", [num_rows])
    return sum(sizes[:place]), sizes[place], _first(layer, num_rows, sizes[place])


def _first(layer: Any, whole: int, part: int) -> int:
    """The start of this rank's slice. If there are fewer slices than ranks (few key heads), neighbours share one."""
    num_slices = whole // part
    return 0 if num_slices == 1 else layer.tp_rank * num_slices // layer.tp_size * part


def _columns(layer: Any, kind: str, columns: list[int], num_columns: int) -> Tensor:
    """These columns of all rows of the layer."""
    held: Tensor = getattr(layer, kind)
    is_lookup = hasattr(layer, "shard_indices") and not hasattr(layer, "bias")  # an embedding, never multiplied
    if kind != "weight" or is_lookup or not hasattr(layer, "cpu_linear"):
        return held.detach().reshape(len(held), -1)[:, columns]
    rows_of_identity = torch.zeros(len(columns), num_columns, dtype=held.dtype)
    rows_of_identity[range(len(columns)), columns] = 1.0
    return layer.quant_method.apply(layer, rows_of_identity).T

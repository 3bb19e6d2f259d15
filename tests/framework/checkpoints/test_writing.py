"""The files of a checkpoint come back as they were written, and a changed one is found."""

import dataclasses

import pytest
import torch

from apo_lightning.checkpoints import contents as module
from apo_lightning.checkpoints.contents import file_numbers, load_tensors, save_tensors, tensor_shapes
from apo_lightning.checkpoints.folder import (
    Checkpoint,
    Header,
    checksums,
    complete_checkpoints,
    damaged_file,
    partial_folder,
    publish,
)


def published(root, content: bytes) -> Checkpoint:
    """A checkpoint with one file, whose sums two ranks took."""
    header = Header(step=1, validated_step=None, score=None, config={}, files={})
    partial = partial_folder(root, header.step)
    (partial / "tensors").mkdir(parents=True)
    (partial / "digits").write_bytes(content)
    (partial / "tensors" / "empty").write_bytes(b"")
    files = checksums(partial, 0, 2) | checksums(partial, 1, 2)
    publish(partial, dataclasses.replace(header, files=files))
    [found] = complete_checkpoints(root)[0]
    return found


def test_the_manifest_lists_sizes_and_checksums(tmp_path):
    found = published(tmp_path, b"123456789")
    # The check value of CRC-32 is the one of these nine digits.
    assert found.header.files == {"digits": [9, 0xCBF43926], "tensors/empty": [0, 0]}
    assert damaged_file(found, found.header.files) is None
    assert [path.name for path in tmp_path.iterdir()] == ["step_000001"]


def test_a_changed_byte_and_a_missing_one_are_found(tmp_path):
    found = published(tmp_path, b"123456789")
    (found.folder / "digits").write_bytes(b"123456780")
    assert damaged_file(found, found.header.files) == "digits"
    (found.folder / "digits").write_bytes(b"12345678")
    assert complete_checkpoints(tmp_path) == ([], [f"checkpoint {found.folder} is incomplete: digits has 8 of 9 bytes"])


SIZES = {"policy.a": (3, 5), "policy.b": (40,), "optimizer.a": (3, 5), "empty": (0, 4), "half": (7,)}


@pytest.mark.parametrize(("bytes_per_file", "num_files"), [(10**6, 1), (160, 3), (1, 4)])
def test_tensors_come_back_to_the_bit_from_files_of_any_size(tmp_path, monkeypatch, bytes_per_file, num_files):
    monkeypatch.setattr(module, "BYTES_PER_FILE", bytes_per_file)
    saved = {name: torch.randn(size) for name, size in SIZES.items()} | {"half": torch.randn(7).bfloat16()}
    read = {name: torch.full_like(tensor, 7.0) for name, tensor in saved.items()}
    save_tensors(saved, tmp_path)
    assert len(list(tmp_path.iterdir())) == num_files
    assert tensor_shapes(tmp_path) == SIZES
    load_tensors(read, tmp_path)
    assert all(torch.equal(saved[name], read[name]) for name in SIZES)


def test_no_file_is_above_the_limit_but_for_a_tensor_that_is():
    sizes = {"a": 5, "b": 5, "c": 30, "d": 0, "e": 10, "f": 1}
    numbers = file_numbers(sizes, bytes_per_file=10)
    files = {n: sum(size for name, size in sizes.items() if numbers[name] == n) for n in numbers.values()}
    assert list(files) == [1, 2, 3, 4]
    assert files == {1: 10, 2: 30, 3: 10, 4: 1}

"""The large tensors of a checkpoint come back to the bit, however many files they are in."""

import pytest
import torch

from apo_lightning.checkpoints import tensors as module
from apo_lightning.checkpoints.folder import crc32
from apo_lightning.checkpoints.small_files import Written
from apo_lightning.checkpoints.tensors import file_numbers, load_tensors, save_tensors, tensor_shapes

SIZES = {"policy.a": (3, 5), "policy.b": (40,), "optimizer.a": (3, 5), "empty": (0, 4), "half": (7,)}


def made(value=None):
    generator = torch.Generator().manual_seed(1)
    dtypes = {"half": torch.bfloat16}
    return {
        name: torch.randn(size, generator=generator).to(dtypes.get(name, torch.float32))
        if value is None
        else torch.full(size, value, dtype=dtypes.get(name, torch.float32))
        for name, size in SIZES.items()
    }


@pytest.mark.parametrize(("bytes_per_file", "num_files"), [(10**6, 1), (160, 3), (1, 4)])
def test_they_come_back_to_the_bit_from_files_of_any_size(tmp_path, monkeypatch, bytes_per_file, num_files):
    monkeypatch.setattr(module, "BYTES_PER_FILE", bytes_per_file)
    saved, read, written = made(), made(7.0), Written(tmp_path)
    save_tensors(saved, tmp_path / "tensors", written)
    files = sorted((tmp_path / "tensors").iterdir())
    assert len(files) == num_files
    assert written.files == {f"tensors/{file.name}": [file.stat().st_size, crc32(file)] for file in files}
    assert tensor_shapes(tmp_path / "tensors") == SIZES
    load_tensors(read, tmp_path / "tensors")
    assert all(torch.equal(saved[name], read[name]) for name in SIZES)


def test_no_file_is_above_the_limit_but_for_a_tensor_that_is():
    sizes = {"a": 5, "b": 5, "c": 30, "d": 0, "e": 10, "f": 1}
    numbers = file_numbers(sizes, bytes_per_file=10)
    files = {n: sum(size for name, size in sizes.items() if numbers[name] == n) for n in numbers.values()}
    assert list(files) == [1, 2, 3, 4]
    assert files == {1: 10, 2: 30, 3: 10, 4: 1}

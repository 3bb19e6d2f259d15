"""The large tensors of a checkpoint come back to the bit, however many files they are in."""

import threading

import pytest
import torch
import torch.distributed as dist

from apo_lightning.checkpoints import CheckpointSettings
from apo_lightning.checkpoints import tensors as module
from apo_lightning.checkpoints.folder import crc32
from apo_lightning.checkpoints.tensors import (
    background_group,
    file_numbers,
    load_tensors,
    save_tensors,
    save_tensors_later,
    tensor_shapes,
)
from apo_lightning.checkpoints.writing import Written
from apo_lightning.errors import ConfigError

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


@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize(("bytes_per_file", "num_files"), [(10**6, 1), (160, 3), (1, 4)])
def test_they_come_back_to_the_bit_from_files_of_any_size(tmp_path, monkeypatch, bytes_per_file, num_files, later):
    monkeypatch.setattr(module, "BYTES_PER_FILE", bytes_per_file)
    saved, read, written = made(), made(7.0), Written(tmp_path)
    if later:
        save_tensors_later(saved, tmp_path / "tensors", written, background_group()).result()
    else:
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


def test_writing_in_the_background_without_gloo_is_refused(monkeypatch):
    monkeypatch.setattr(dist, "is_gloo_available", lambda: False)
    options = {"save_every": 1, "keep": 1, "best": None}
    CheckpointSettings(asynchronous=False, **options)
    with pytest.raises(ConfigError, match=r"checkpoint\.asynchronous=false"):
        CheckpointSettings(asynchronous=True, **options)


def test_a_thread_that_writes_has_the_gpu_of_its_rank_and_makes_no_stream(monkeypatch, tmp_path):
    devices = {}

    def make_stream(device=None):
        raise AssertionError("it would be on GPU 0 if the thread had no device of its own")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: devices.setdefault(threading.get_ident(), device))
    monkeypatch.setattr(torch.cuda, "current_stream", make_stream)
    save_tensors_later(made(), tmp_path / "tensors", Written(tmp_path), background_group()).result()
    assert list(devices.values()) == [3]
    assert threading.get_ident() not in devices

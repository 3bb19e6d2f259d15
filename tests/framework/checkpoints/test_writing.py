"""The files of a checkpoint come back as they were written, and a changed one is found."""

import dataclasses

import pytest
import torch

from apo_lightning.checkpoints import contents as module
from apo_lightning.checkpoints.contents import file_numbers, load_tensors, save_tensors, tensor_shapes
from apo_lightning.checkpoints.folder import (
    Checkpoint,
    Header,
    complete_checkpoints,
    damaged_file,
    partial_folder,
    publish,
    sums_of_share,
)
from apo_lightning.common.identity import read_sealed, sealed


def published(root, content: bytes, step: int = 1) -> Checkpoint:
    """A checkpoint with one file, whose sums two ranks took."""
    header = Header(step=step, num_ranks=0, validated_step=None, score=None, config={}, identity={}, files={})
    partial = partial_folder(root, header.step)
    (partial / "tensors").mkdir(parents=True)
    (partial / "digits").write_bytes(content)
    (partial / "tensors" / "empty").write_bytes(b"")
    files = {**sums_of_share(partial, 0, 2), **sums_of_share(partial, 1, 2)}
    publish(partial, dataclasses.replace(header, files=files))
    return complete_checkpoints(root)[0][-1]


def test_the_manifest_lists_sizes_and_checksums(tmp_path):
    found = published(tmp_path, b"123456789")
    # `printf 123456789 | sha256sum`, and of nothing.
    digits = "15e2b0d3c33891ebb0f1ef609ec419420c20e320ce94c65fbc8c3312448eb225"
    nothing = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    assert found.header.files == {"digits": (9, digits), "tensors/empty": (0, nothing)}
    assert damaged_file(found, found.header.files) is None
    assert [path.name for path in tmp_path.iterdir()] == ["step_000001"]


def test_a_changed_byte_and_a_missing_one_are_found(tmp_path):
    found = published(tmp_path, b"123456789")
    (found.folder / "digits").write_bytes(b"123456780")
    assert damaged_file(found, found.header.files) == "digits"
    (found.folder / "digits").write_bytes(b"12345678")
    [line] = complete_checkpoints(tmp_path)[1]
    assert line == f"checkpoint {found.folder} is damaged: digits has 8 of 9 bytes; use another checkpoint"


NOT_ITS_OWN = {
    "a list of files": ({"files": [1]}, "files: Input should be a valid"),
    "a size without a hash": ({"files": {"digits": 5}}, "files.digits: Input should be a valid tuple"),
    "NUL in a name": ({"files": {"a\0b": [1, "ff"]}}, "cannot be read"),
    "a long name": ({"files": {"a" * 5000: [1, "ff"]}}, "cannot be read"),
    "no settings": ({"config": None}, "config: Input should be a valid"),
    "a list of sources": ({"identity": [1]}, "identity: Input should be a valid"),
    "another step": ({"step": 3}, "is of step 3, which its name step_000002 is not"),
    "no file of state": ({"num_ranks": 1}, "does not list shared.pt"),
    "no state of a rank": (
        {"num_ranks": 2, "files": {"shared.pt": [1, "ff"], "rank_00000.pt": [1, "f"]}},
        "rank_00001",
    ),
    "an earlier version": ({"format": 4}, "has format 4, and this version of apo-lightning reads format 5"),
}


@pytest.mark.parametrize("name", NOT_ITS_OWN)
def test_a_header_of_another_shape_costs_its_checkpoint_alone(tmp_path, name):
    changes, words = NOT_ITS_OWN[name]
    older, newest = published(tmp_path, b"123456789"), published(tmp_path, b"123456789", step=2)
    path = newest.folder / "checkpoint.json"
    path.write_bytes(sealed({**read_sealed(path), **changes}))
    usable, [line] = complete_checkpoints(tmp_path)
    assert [checkpoint.folder for checkpoint in usable] == [older.folder]
    assert words in line
    assert str(newest.folder) in line
    assert "\n" not in line


@pytest.mark.parametrize("content", [b"", b"\0" * 90, b"[1]", b"[" * 200_000, b'{"format": 4, "step": 2}'])
def test_a_header_that_is_none_costs_its_checkpoint_alone(tmp_path, content):
    older, newest = published(tmp_path, b"123456789"), published(tmp_path, b"123456789", step=2)
    (newest.folder / "checkpoint.json").write_bytes(content)
    usable, [line] = complete_checkpoints(tmp_path)
    assert [checkpoint.folder for checkpoint in usable] == [older.folder]
    assert "\n" not in line


def test_a_file_beside_those_that_were_written_is_not_read(tmp_path):
    older, newest = published(tmp_path, b"123456789"), published(tmp_path, b"123456789", step=2)
    (newest.folder / "tensors" / "copy.safetensors").write_bytes(b"")
    usable, [line] = complete_checkpoints(tmp_path)
    assert [checkpoint.folder for checkpoint in usable] == [older.folder]
    assert "'tensors/copy.safetensors' is not one of its files" in line


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

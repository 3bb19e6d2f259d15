"""A checksum is of the bytes that were to be written, whatever became of them afterwards."""

import dataclasses
import datetime
import io
import os
import zlib
from pathlib import Path

import pytest
import torch

from apo_lightning.checkpoints.folder import (
    Checkpoint,
    Header,
    Position,
    crc32,
    damaged_file,
    read_header,
    write_header,
)
from apo_lightning.checkpoints.small_files import (
    SequentialFile,
    Written,
    load_plain,
    rollouts_from_plain,
    rollouts_to_plain,
    save_plain,
)
from factories import make_rollouts


def header(files) -> Header:
    return Header(position=Position(step=1), world_size=1, validated_step=None, score=None, config={}, files=files)


def test_bytes_in_pieces_have_the_checksum_of_the_whole(tmp_path):
    written, path = Written(tmp_path), tmp_path / "pieces"
    with written.open(path) as file:
        assert [file.write(piece) for piece in (b"1234", memoryview(b"56789"), b"")] == [4, 5, 0]
        assert file.tell() == 9
        assert not written.files
    # The check value of CRC-32 is the one of these nine digits.
    assert written.files == {"pieces": [9, 0xCBF43926]}
    assert path.read_bytes() == b"123456789"


def test_plain_data_is_written_from_beginning_to_end(tmp_path):
    written, path = Written(tmp_path), tmp_path / "state.pt"
    content = {"random": torch.get_rng_state(), "texts": ["π"] * 1000, "none": None}
    save_plain(content, path, written)
    assert written.files == {"state.pt": [path.stat().st_size, crc32(path)]}
    assert load_plain(path)["texts"] == content["texts"]
    archive = io.BytesIO()
    torch.save(content, archive)
    assert zlib.crc32(archive.getvalue()) == written.files["state.pt"][1]


def test_a_writer_that_goes_back_is_refused(tmp_path):
    with pytest.raises(io.UnsupportedOperation, match="seek"), Written(tmp_path).open(tmp_path / "file") as file:
        file.seek(0)


def test_every_byte_is_on_disk_when_the_file_is_closed_which_may_be_twice(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.fstat(descriptor).st_size))
    file = SequentialFile(tmp_path / "file")
    file.write(b"in this process")
    file.close()
    file.close()
    assert synced == [15]


def test_a_file_that_was_given_up_is_not_listed(tmp_path):
    written = Written(tmp_path)
    with pytest.raises(RuntimeError, match="given up"), written.open(tmp_path / "file") as file:
        raise RuntimeError(f"given up after {file.write(b'half')} bytes")
    assert not written.files


def test_a_byte_that_changed_before_the_list_was_written_is_found_when_it_is_read(tmp_path):
    written = Written(tmp_path)
    save_plain([1, 2, 3], tmp_path / "state.pt", written)
    content = bytearray((tmp_path / "state.pt").read_bytes())
    content[len(content) // 2] ^= 1
    (tmp_path / "state.pt").write_bytes(content)
    write_header(tmp_path, header(written.files))
    assert damaged_file(Checkpoint(folder=tmp_path, header=read_header(tmp_path)), written.files) == "state.pt"


def test_a_file_without_a_checksum_is_no_part_of_a_checkpoint(tmp_path: Path):
    written = Written(tmp_path)
    save_plain([1, 2, 3], tmp_path / "state.pt", written)
    (tmp_path / "tensors").mkdir()
    (tmp_path / "tensors" / "other").write_bytes(b"")
    with pytest.raises(RuntimeError, match="tensors/other has no checksum"):
        write_header(tmp_path, header(written.files))


def test_scored_rollouts_are_saved_whole_but_for_the_columns_of_the_data_set(tmp_path):
    rollouts = make_rollouts(["correct", "unparsed"], group_size=2)
    columns = {"date": datetime.date(2026, 1, 1)}  # of a parquet file, and nothing that plain data may hold
    prompts = tuple(dataclasses.replace(prompt, columns=columns) for prompt in rollouts.prompts)
    verdicts = tuple(
        dataclasses.replace(verdict, rewards={"a": 1.0, "b": None}, extra={"c": "d"}, is_scored=False)
        for verdict in rollouts.verdicts
    )
    rollouts = dataclasses.replace(rollouts, prompts=prompts, verdicts=verdicts, reward_metrics={"n": (1.0, 2.0)})
    save_plain(rollouts_to_plain(rollouts), tmp_path / "rank.pt", Written(tmp_path))
    restored = rollouts_from_plain(load_plain(tmp_path / "rank.pt"))
    assert restored == rollouts
    assert [prompt.columns for prompt in restored.prompts] == [{}]

"""Hashes of contents, and records that hold their own."""

import contextlib
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apo_lightning.common.identity import (
    SEAL,
    difference_from,
    differences,
    files_of,
    read_sealed,
    sealed,
    sha256_of_file,
    sha256_of_lines,
    sha256_of_plain,
)
from apo_lightning.errors import ConfigError

RECORD = {"step": 2, "score": 0.25, "files": {"a.bin": [3, "ff"]}, "best": None, "name": "π"}


def test_the_hash_of_a_file_is_that_of_its_bytes(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    # FIPS 180-2, appendix B.1.
    expected = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert sha256_of_file(tmp_path / "a") == expected
    (tmp_path / "b").write_bytes(b"a\nb\n")
    assert sha256_of_lines(["a", "b"]) == sha256_of_file(tmp_path / "b")


@given(st.dictionaries(st.text(), st.integers() | st.text() | st.none() | st.floats(allow_nan=False)))
def test_the_hash_of_a_mapping_has_no_order(record: dict[str, object]) -> None:
    assert sha256_of_plain(record) == sha256_of_plain(dict(reversed(record.items())))


def test_a_name_on_one_side_alone_differs() -> None:
    assert differences({"a": "1"}, {"a": "1"}) == []
    assert differences({"a": "1", "b": "2"}, {"a": "3", "c": "2"}) == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda folder: (folder / "sub" / "b").write_bytes(b"xyw"), "sub/b has changed since it was written"),
        (lambda folder: (folder / "sub" / "b").write_bytes(b"xy"), "sub/b has 2 of 3 bytes"),
        (lambda folder: (folder / "a").unlink(), "'a' is missing"),
        (lambda folder: (folder / "sub" / "c").touch(), "'sub/c' is not one of its files"),
        (lambda folder: (folder / "sub" / "c").symlink_to("nowhere"), "'sub/c' is not one of its files"),
    ],
)
def test_a_change_in_a_folder_is_named(tmp_path: Path, change, expected: str) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "a").write_bytes(b"abc")
    (tmp_path / "sub" / "b").write_bytes(b"xyz")
    files = files_of(tmp_path)
    assert difference_from(tmp_path, files) is None
    change(tmp_path)
    assert difference_from(tmp_path, files) == expected


def test_a_file_out_of_the_folder_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"abc")
    (tmp_path / "folder").mkdir()
    files = {"../secret": (3, sha256_of_file(tmp_path / "secret"))}
    assert difference_from(tmp_path / "folder", files) == "'../secret' leads out of it"


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    (tmp_path / "r.json").write_bytes(sealed(RECORD))
    assert read_sealed(tmp_path / "r.json") == RECORD


def test_no_bit_of_a_record_changes_unseen(tmp_path: Path) -> None:
    content, path = sealed(RECORD), tmp_path / "r.json"
    unseen = []
    for place in range(8 * len(content)):
        changed = bytearray(content)
        changed[place // 8] ^= 1 << place % 8
        path.write_bytes(changed)
        # White space between tokens may become another one: the record is then the same.
        with contextlib.suppress(ConfigError):
            if read_sealed(path) != RECORD:
                unseen.append(place)
    assert unseen == []


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "Expecting value"),
        (b"\0" * 40, "Expecting value"),
        (b"\xff{}", "codec can't decode"),
        (b"[1]", "it is no record"),
        (b"[" * 200_000, "recursion"),
        (b'{"step": 2}', f"it has no {SEAL} of its own"),
        (json.dumps({**RECORD, SEAL: "0" * 64}).encode(), f"its content is not that of its {SEAL}"),
    ],
)
def test_a_damaged_record_ends_in_one_line(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "r.json"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="is damaged") as raised:
        read_sealed(path)
    assert reason in str(raised.value)
    assert "\n" not in str(raised.value)

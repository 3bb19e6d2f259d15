import json
import os
from pathlib import Path

import pytest

from apo_lightning.common.files import (
    append,
    flush_written,
    publish_folder,
    read_yaml_text,
    remove_remains,
    take_lock,
    to_json,
    write_atomically,
)
from apo_lightning.errors import ConfigError


def stop(partial, final):
    raise KeyboardInterrupt


def test_a_write_that_is_stopped_leaves_what_was_there(monkeypatch, tmp_path):
    path = tmp_path / "folder" / "config.json"
    write_atomically(path, b"old")
    monkeypatch.setattr(Path, "replace", stop)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"


def test_json_of_what_is_not_finite_and_of_a_lone_surrogate():
    assert to_json([float("nan"), float("-inf"), 1.5]) == b"[null, null, 1.5]"
    assert json.loads(to_json("a\ud800b")) == "a\ud800b"


def test_a_file_that_cannot_be_locked_is_said_and_used(tmp_path, caplog):
    unlockable = os.open(tmp_path, os.O_PATH)
    take_lock(unlockable, "taken")
    os.close(unlockable)
    assert "no lock here" in caplog.text


def test_what_a_killed_writer_has_left_is_removed_and_nothing_else(tmp_path):
    (tmp_path / ".final.superseded").mkdir()
    (tmp_path / ".final.superseded" / "weights").touch()
    for name in (".metrics.csv.17.partial", "mine.partial", ".lock"):
        (tmp_path / name).touch()
    remove_remains(tmp_path, tmp_path / "nowhere")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", "mine.partial"]


def test_a_pipe_is_no_yaml_file(tmp_path):
    os.mkfifo(tmp_path / "overrides.yaml")
    with pytest.raises(ConfigError, match="it is no file"):
        read_yaml_text(tmp_path / "overrides.yaml")


@pytest.fixture
def done(monkeypatch):
    """The names of what was flushed, and `-> name` for a new name."""
    flush_written()  # of other tests
    calls, fsync, rename, replace = [], os.fsync, os.rename, os.replace

    def flushed(descriptor):
        calls.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", flushed)
    for name, original in (("rename", rename), ("replace", replace)):
        monkeypatch.setattr(os, name, lambda a, b, o=original: (calls.append(f"-> {Path(b).name}"), o(a, b)))
    return calls


def test_content_is_on_disk_before_its_name_and_the_name_on_return(tmp_path, done):
    folder = tmp_path / "run"
    write_atomically(folder / "a", b"1")
    assert done == [f".a.{os.getpid()}.partial", "-> a", "run"]
    done.clear()
    for _ in range(2):
        (folder / ".b.partial" / "inner").mkdir(parents=True)
        (folder / ".b.partial" / "inner" / "c").touch()
        publish_folder(folder / ".b.partial", folder / "b")
    first, second = ["inner", "c", ".b.partial"], ["-> .b.superseded", "-> b", "run"]
    assert done == [*first, *second[1:], *first, *second]
    assert [path.name for path in folder.iterdir()].count("b") == 1


def test_files_of_each_step_are_flushed_together_and_once(tmp_path, done):
    write_atomically(tmp_path / "a", b"1", flushes=False)
    append(tmp_path / "log", b"1")
    append(tmp_path / "gone", b"1")
    (tmp_path / "gone").unlink()
    assert done == ["-> a"]
    for _ in range(2):
        flush_written()
    assert done == ["-> a", tmp_path.name, "a", "log"]

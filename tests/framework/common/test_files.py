import json
from pathlib import Path

import pytest

from apo_lightning.common.files import to_json, write_atomically, write_once


def test_two_that_write_once_at_the_same_time_both_succeed(monkeypatch, tmp_path):
    path, replace = tmp_path / "folder" / "config.json", Path.replace

    def after_another(partial, final):
        monkeypatch.setattr(Path, "replace", replace)
        write_once(path, b"content")
        return partial.replace(final)

    monkeypatch.setattr(Path, "replace", after_another)
    write_once(path, b"content")
    assert path.read_bytes() == b"content"
    assert list(path.parent.iterdir()) == [path]


def stop(partial, final):
    raise KeyboardInterrupt


def test_one_that_is_stopped_leaves_nothing_under_the_name(monkeypatch, tmp_path):
    path = tmp_path / "config.json"
    monkeypatch.setattr(Path, "replace", stop)
    with pytest.raises(KeyboardInterrupt):
        write_once(path, b"content")
    assert not path.exists()


def test_what_was_written_once_is_not_written_again_unless_a_crash_emptied_it(tmp_path):
    path = tmp_path / "config.json"
    write_once(path, b"content")
    first = path.stat().st_ino
    write_once(path, b"content")
    assert path.stat().st_ino == first
    path.write_bytes(b"")
    write_once(path, b"content")
    assert path.read_bytes() == b"content"


def test_a_write_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    def interrupted(*args):
        raise KeyboardInterrupt

    path = tmp_path / "step.jsonl"
    write_atomically(path, b"old")
    monkeypatch.setattr(Path, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"


def test_json_of_what_is_not_finite_and_of_a_lone_surrogate():
    assert to_json([float("nan"), float("-inf"), 1.5]) == b"[null, null, 1.5]"
    assert json.loads(to_json("a\ud800b")) == "a\ud800b"

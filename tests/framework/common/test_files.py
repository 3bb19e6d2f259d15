import json
import os
from pathlib import Path

import pytest

from apo_lightning.common.files import take_lock, to_json, write_atomically


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

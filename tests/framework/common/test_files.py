from pathlib import Path

import pytest

from apo_lightning.common.files import write_atomically


def stop(partial, final):
    raise KeyboardInterrupt


def test_a_write_that_is_stopped_leaves_what_was_there(monkeypatch, tmp_path):
    path = tmp_path / "folder" / "config.json"
    write_atomically(path, b"old")
    monkeypatch.setattr(Path, "replace", stop)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"

"""A run has its folder to itself, and a refused one changes nothing there."""

import multiprocessing
import time

import pytest

from apo_lightning.common.files import folder_locked
from apo_lightning.errors import ConfigError
from processes import CONTEXT, start_script
from running import RUN, train_tiny

FORK = multiprocessing.get_context("fork")


def hold(folder, holds):
    with folder_locked(folder, "taken"):
        FORK.Process(target=time.sleep, args=(60,)).start()
        holds.set()
        time.sleep(60)


def test_a_lock_refuses_another_process_and_dies_with_its_own_and_not_with_what_that_forked(tmp_path):
    holds = CONTEXT.Event()
    holder = CONTEXT.Process(target=hold, args=(tmp_path, holds))
    holder.start()
    assert holds.wait(60)
    with pytest.raises(ConfigError, match="another process is training in"):
        train_tiny(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]
    holder.kill()
    holder.join()
    with folder_locked(tmp_path, "taken"):
        pass


def test_a_run_is_refused_where_another_was_and_leaves_its_record_as_it_is(tmp_path):
    sizes = (*RUN, "trainer.max_steps=1", "checkpoint.save_every=null", f"hydra.run.dir={tmp_path}")
    start_script("train", *sizes).finish()
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".log"}
    second = start_script("train", *sizes, "seed=2")
    assert second.wait() == [1]
    assert "holds the metrics.csv of an earlier run" in second.said
    assert {path: path.read_bytes() for path in before} == before
    assert "seed: 1" in (tmp_path / ".hydra" / "config.yaml").read_text()

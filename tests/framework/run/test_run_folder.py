"""A run has its folder to itself, and a refused one changes nothing there."""

import contextlib
import multiprocessing
import os
import time
from pathlib import Path

import pytest
from hydra.core.hydra_config import HydraConfig

from apo_lightning.common import files
from apo_lightning.common.files import LOCK, folder_locked, take_lock
from apo_lightning.errors import ConfigError
from apo_lightning.run.choices import composed
from apo_lightning.run.launching import new_folder, register_resolvers
from apo_lightning.run.user_message import user_message
from processes import CONTEXT, start_script
from running import HELPERS, RUN, train_tiny, training_rows

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
    with pytest.raises(ConfigError, match="another process is at work in"):
        train_tiny(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]
    holder.kill()
    holder.join()
    with folder_locked(tmp_path, "taken"):
        pass
    assert not [*tmp_path.iterdir()]


def test_a_refused_command_leaves_the_lock_of_the_run_that_is_at_work(tmp_path):
    folder, holds = tmp_path / "run", CONTEXT.Event()
    folder.mkdir()
    holder = CONTEXT.Process(target=hold, args=(folder, holds))
    holder.start()
    assert holds.wait(60)
    lock = (folder / LOCK).stat().st_ino
    for words in (("train",), ("train", "resume=auto"), ("preflight",)):
        refused = start_script(*words, *RUN, f"hydra.run.dir={folder}")
        assert refused.wait() == [1], words
        assert refused.said.strip() == (
            f"error: another process is at work in {folder}: wait for it, or choose another hydra.run.dir"
        )
        assert {path.name: path.stat().st_ino for path in folder.iterdir()} == {LOCK: lock}
    holder.kill()
    holder.join()


def is_taken(folder):
    with pytest.raises(ConfigError, match="taken"), folder_locked(folder, "taken"):
        pass


def test_a_lock_that_its_holder_has_removed_meanwhile_is_taken_anew(tmp_path, monkeypatch):
    folder = tmp_path / "run"

    def after_its_holder(descriptor, refusal):
        monkeypatch.setattr(files, "take_lock", take_lock)
        with contextlib.closing(os.fdopen(descriptor, closefd=False)):
            (folder / LOCK).unlink()
            folder.rmdir()
            take_lock(descriptor, refusal)

    monkeypatch.setattr(files, "take_lock", after_its_holder)
    with folder_locked(folder, "free"):
        is_taken(folder)


def test_a_folder_that_was_removed_and_is_anothers_now_keeps_its_lock(tmp_path):
    with contextlib.ExitStack() as other:
        with folder_locked(tmp_path, "free"):
            (tmp_path / LOCK).unlink()
            other.enter_context(folder_locked(tmp_path, "free"))
        is_taken(tmp_path)


def take_folder(path):
    Path(new_folder(f"{path}/12-00-00"), str(os.getpid())).touch()


def test_runs_that_begin_in_one_second_have_a_folder_each(tmp_path):
    processes = [CONTEXT.Process(target=take_folder, args=(tmp_path,)) for _ in range(8)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    found = {folder.name: len([*folder.iterdir()]) for folder in tmp_path.iterdir()}
    assert found == {f"12-00-00{end}": 1 for end in ("", *(f"_{number}" for number in range(2, 9)))}


def test_the_default_folders_of_a_run_and_a_sweep_are_made_once_for_each_and_not_for_a_page(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    register_resolvers()
    runs = [composed("train", ["model=tiny"], with_hydra=True) for _ in range(3)]
    assert not [*tmp_path.iterdir()]
    for key, start in (("run", "outputs"), ("sweep", "multirun")):
        first, *others = [asked(cfg, key) for cfg in runs]
        assert others == [f"{first}_2", f"{first}_3"]
        assert [asked(cfg, key) for cfg in runs] == [first, *others]
        assert {str(path.relative_to(tmp_path)) for path in tmp_path.glob(f"{start}/*/*")} == {first, *others}


def asked(cfg, key):
    HydraConfig.instance().set_config(cfg)
    return cfg.hydra[key].dir


@pytest.mark.slow(20)
def test_ranks_share_the_folder_of_their_first_one(tmp_path):
    """Of two runs at once, whose ranks are told of each other as by torchrun, and started by Lightning."""
    sizes = (*RUN, "trainer=ddp_cpu2", "trainer.max_steps=1", f"hydra.run.dir=${{new_folder:{tmp_path}/mine}}")
    environment = {"PYTHONPATH": HELPERS, "OMP_NUM_THREADS": "1"}
    for script in [start_script("train.py", *sizes, num_ranks=ranks, **environment) for ranks in (1, 2)]:
        script.finish()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine", "mine_2"]
    for folder in tmp_path.iterdir():
        assert [row["step"] for row in training_rows(folder)] == ["1"]


def test_the_log_that_an_error_names_stays_and_that_of_an_earlier_run_too(tmp_path):
    (tmp_path / "broken.py").write_text("def make():\n    raise ValueError('so it is')\n")
    words = (*RUN, "hydra.run.dir=run")
    failed = start_script("train", *words, "+callbacks.mine._target_=broken.make", cwd=tmp_path)
    assert failed.wait() == [1]
    assert "ValueError: so it is (its traceback is in run.log)" in failed.said
    refused = start_script("train", *words, "model.path=/no/such", cwd=tmp_path)
    assert refused.wait() == [1]
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["run.log"]
    assert "Traceback" in (tmp_path / "run" / "run.log").read_text()
    renamed = start_script("train", *words, "hydra.run.dir=new", "+callbacks.mine._target_=broken.no", cwd=tmp_path)
    assert renamed.wait() == [1]
    assert not (tmp_path / "new").exists()


def test_a_run_is_refused_where_another_was_and_leaves_its_record_as_it_is(tmp_path):
    sizes = (*RUN, "trainer.max_steps=1", "checkpoint.save_every=null", f"hydra.run.dir={tmp_path}")
    start_script("train", *sizes).finish()
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".log"}
    second = start_script("train", *sizes, "seed=2")
    assert second.wait() == [1]
    assert "holds the metrics.csv of an earlier run" in second.said
    assert {path: path.read_bytes() for path in before} == before
    assert "seed: 1" in (tmp_path / ".hydra" / "config.yaml").read_text()


@pytest.mark.parametrize("name", [LOCK, "run.log", "checkpoints", "checkpoints of a link"])
def test_another_kind_of_file_in_place_of_one_of_the_runs_is_refused_by_name(tmp_path, name):
    path = tmp_path / name.partition(" ")[0]
    if "link" in name:
        path.symlink_to(tmp_path / "nowhere")
    elif name == "checkpoints":
        path.touch()
    else:
        path.mkdir()
    with pytest.raises(OSError, match=path.name) as caught:
        train_tiny(tmp_path)
    assert user_message(caught.value).startswith(f"cannot read or write {path}: ")

"""Runs with W&B and TensorBoard, read back from the files that both wrote."""

import shutil
from pathlib import Path

import pytest
import yaml

import wandb_file
from processes import start_script
from running import RUN

LOGGED = (
    *RUN,
    "logger=[wandb,tensorboard]",
    "callbacks=quiet",
    "callbacks.completion_table.every_n_steps=2",
)


@pytest.fixture(scope="module")
def resumed(tmp_path_factory):
    """A run of four steps, then the same from its checkpoint after two, as if it had been killed after four."""
    folder = tmp_path_factory.mktemp("logged") / "run"
    command = (*LOGGED, f"hydra.run.dir={folder}", "resume=auto", "checkpoint.save_every=2")
    start_script("train", *command, "trainer.max_steps=4").finish()
    shutil.rmtree(folder / "checkpoints" / "step_000004")
    start_script("train", *command, "trainer.max_steps=6").finish()
    return folder


def files_of(folder: Path) -> list[Path]:
    """The parts of a W&B run, in order of their start."""
    return sorted(folder.glob("wandb/offline-run-*/*.wandb"))


def test_a_resumed_run_continues_the_same_wandb_run(resumed):
    first, second = files_of(resumed)
    assert wandb_file.begun(first).run_id == wandb_file.begun(second).run_id
    assert wandb_file.begun(first).display_name.startswith("callbacks.completion_table.every_n_steps=2")
    rows = [row for file in (first, second) for row in wandb_file.history(file) if "train/reward" in row]
    rewards = {}
    for row in rows:
        rewards.setdefault(row["trainer/global_step"], set()).add(row["train/reward"])
    assert [row["trainer/global_step"] for row in rows] == [1, 2, 3, 4, 3, 4, 5, 6]
    assert all(len(values) == 1 for values in rewards.values())  # a repeated step has the same value
    settings = yaml.safe_load((resumed / ".hydra" / "config.yaml").read_text())
    assert wandb_file.config(first)["algo"]["loss"]["pull_coef"] == settings["algo"]["loss"]["pull_coef"]
    assert wandb_file.config(second)["trainer"]["max_steps"] == 6


def test_wandb_has_a_table_of_completions_every_n_steps(resumed):
    rows = [row for file in files_of(resumed) for row in wandb_file.history(file) if "_type" in str(row)]
    assert [row["trainer/global_step"] for row in rows] == [2, 4, 4, 6]
    table = resumed.glob("wandb/offline-run-*/files/" + rows[0]["completions/path"])
    content = yaml.safe_load(next(table).read_text())
    assert content["columns"] == ["prompt", "completion", "reward", "advantage", "status"]
    assert len(content["data"]) == 4  # one of each prompt
    prompt, _, reward, _, status = content["data"][0]
    assert "What is" in prompt
    assert (status == "correct") == (reward == 1)


def test_a_resumed_run_continues_in_the_same_tensorboard_folder(resumed):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(resumed / "tensorboard")).Reload()
    assert [event.step for event in events.Scalars("train/reward")] == [1, 2, 3, 4, 3, 4, 5, 6]
    assert yaml.safe_load((resumed / "tensorboard" / "hparams.yaml").read_text())["algo"]["loss"]["pull_coef"] > 0
    last = events.Tensors("completions/text_summary")[-1]
    text = last.tensor_proto.string_val[0].decode()
    assert last.step == 6
    assert text.count("    prompt: ") == text.count("\n    status: ") == 4


def test_the_jobs_of_a_sweep_are_runs_of_one_wandb_group(tmp_path):
    sweep = tmp_path / "sweep"
    command = ("-m", *RUN, "logger=wandb", f"hydra.sweep.dir={sweep}", "seed=1,2", "trainer.max_steps=1")
    start_script("train", *command).finish()
    runs = [wandb_file.begun(files_of(sweep / job)[0]) for job in ("0", "1")]
    assert [run.run_group for run in runs] == [str(sweep)] * 2
    assert runs[0].run_id != runs[1].run_id
    assert [wandb_file.config(files_of(sweep / job)[0])["seed"] for job in ("0", "1")] == [1, 2]


def test_a_run_with_wandb_can_be_exported(resumed, tmp_path):
    """W&B links a log file outside of the run's folder, which commands refuse elsewhere."""
    assert any(path.is_symlink() for path in resumed.glob("wandb/offline-run-*/logs/*"))
    start_script("export", f"run={resumed}", f"to={tmp_path / 'export'}").finish()
    assert (tmp_path / "export" / "config.json").is_file()

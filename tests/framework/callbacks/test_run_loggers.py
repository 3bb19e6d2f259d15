"""Runs with W&B and TensorBoard, read back from the files that both wrote."""

import shutil
from pathlib import Path

import pytest
import yaml
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import wandb_file
from apo_lightning.callbacks import CompletionTable
from apo_lightning.errors import ConfigError
from processes import start_script
from running import RUN

LOGGED = (
    *RUN,
    "logger=[wandb,tensorboard]",
    "callbacks=quiet",
    "callbacks.completion_table.every_n_steps=2",
    "callbacks.completion_table.num_completions=3",
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


def test_a_resumed_run_goes_on_in_the_same_wandb_run_without_overlapping_steps(resumed):
    first, second = files_of(resumed)
    assert wandb_file.begun(first).run_id == wandb_file.begun(second).run_id
    steps = [
        row["trainer/global_step"]
        for file in (first, second)
        for row in wandb_file.history(file)
        if "train/reward" in row
    ]
    assert steps == [1, 2, 3, 4, 5, 6]


def test_a_resumed_run_goes_on_in_the_same_tensorboard_folder_without_overlapping_steps(resumed):
    events = EventAccumulator(str(resumed / "tensorboard")).Reload()
    assert [event.step for event in events.Scalars("train/reward")] == [1, 2, 3, 4, 5, 6]


def test_wandb_has_a_table_of_completions_every_n_steps(resumed):
    rows = [row for file in files_of(resumed) for row in wandb_file.history(file) if "_type" in str(row)]
    assert [row["trainer/global_step"] for row in rows] == [2, 4, 6]
    table = resumed.glob("wandb/offline-run-*/files/" + rows[0]["completions/path"])
    content = yaml.safe_load(next(table).read_text())
    assert content["columns"] == ["prompt", "completion", "reward", "advantage", "correct"]
    assert len(content["data"]) == 3
    prompt, _, reward, _, is_correct = content["data"][0]
    assert "What is" in prompt
    assert is_correct == (reward == 1)


def test_tensorboard_has_a_table_of_completions(resumed):
    events = EventAccumulator(str(resumed / "tensorboard")).Reload()
    last = events.Tensors("completions/text_summary")[-1]
    header, _, *rows = last.tensor_proto.string_val[0].decode().splitlines()
    assert last.step == 6
    assert header == "prompt|completion|reward|advantage|correct"
    assert [row.count("|") for row in rows] == [4, 4, 4]


def test_wandb_has_the_configuration_and_the_final_summary(resumed):
    first, second = files_of(resumed)
    config = wandb_file.config(first)
    assert (
        config["algo"]["loss"]["pull_coef"]
        == yaml.safe_load((resumed / ".hydra" / "config.yaml").read_text())["algo"]["loss"]["pull_coef"]
    )
    assert wandb_file.config(second)["trainer"]["max_steps"] == 6
    assert wandb_file.summary(second)["run"]["steps"] == 6
    assert wandb_file.begun(first).display_name.startswith("callbacks.completion_table.every_n_steps=2")


def test_tensorboard_has_the_configuration_and_the_final_summary(resumed):
    events = EventAccumulator(str(resumed / "tensorboard")).Reload()
    summary = events.Tensors("summary/text_summary")[-1].tensor_proto.string_val[0].decode()
    assert '"max_steps": 6' in summary
    assert yaml.safe_load((resumed / "tensorboard" / "hparams.yaml").read_text())["algo"]["loss"]["pull_coef"] > 0


def test_the_jobs_of_a_sweep_are_runs_of_one_wandb_group(tmp_path):
    sweep = tmp_path / "sweep"
    command = ("-m", *RUN, "logger=wandb", f"hydra.sweep.dir={sweep}", "seed=1,2", "trainer.max_steps=1")
    start_script("train", *command).finish()
    runs = [wandb_file.begun(files_of(sweep / job)[0]) for job in ("0", "1")]
    assert [run.run_group for run in runs] == [str(sweep)] * 2
    assert runs[0].run_id != runs[1].run_id
    assert [wandb_file.config(files_of(sweep / job)[0])["seed"] for job in ("0", "1")] == [1, 2]


def test_a_table_without_rows_is_refused():
    with pytest.raises(ConfigError, match="num_completions is 0: give 1 or more"):
        CompletionTable(num_completions=0)

"""A sweep whose jobs start their own ranks: the README's own command, at the smallest sizes."""

import os
import subprocess
import sys

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.hydra_config import HydraConfig
from omegaconf import read_write

from apo_lightning.run.sweeping import each_job_a_run, is_swept
from benchmarks.shared.runs import write_stub
from composing import CONFIGS, ROOT
from running import training_rows


def begin_job(*overrides):
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        HydraConfig.instance().set_config(compose("train", overrides=list(overrides), return_hydra_config=True))


def test_a_rank_of_a_job_is_told_its_command_its_folder_and_that_it_is_swept(monkeypatch):
    sweep = ["train.py", "-m", "seed=1,2"]
    monkeypatch.setattr(sys, "argv", sweep)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    begin_job("seed=2", "hydra.mode=MULTIRUN")
    with read_write(HydraConfig.get()):
        HydraConfig.get().runtime.output_dir = "/sweep/1"
    with each_job_a_run():
        assert sys.argv == ["train.py", "seed=2", "hydra.mode=RUN"]
        assert HydraConfig.get().run.dir == "/sweep/1"
        os.environ["LOCAL_RANK"] = "0"  # as the launcher leaves it
        begin_job(*sys.argv[1:])
        assert is_swept()
        with each_job_a_run():
            assert sys.argv == ["train.py", "seed=2", "hydra.mode=RUN"]
    assert sys.argv == sweep
    assert "LOCAL_RANK" not in os.environ
    begin_job("seed=2")
    assert not is_swept()
    HydraConfig.instance().cfg = None


@pytest.mark.slow(30)
def test_each_job_of_a_sweep_over_two_ranks_leaves_one_folder_with_a_checkpoint(tmp_path):
    stub = write_stub(tmp_path / "stub.jsonl")
    command = [
        *(sys.executable, str(ROOT / "train.py"), "--multirun", "algo=grpo,apo", "model=tiny", "trainer=fsdp_cpu2"),
        *("data=dapo17k", f"data.path={stub}", "reward=math_verify", "engine=transformers", "callbacks=none"),
        *("data.max_completion_tokens=8", "prompts_per_step=4", "prompts_per_minibatch=4", "trainer.max_steps=2"),
    ]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stderr
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["multirun"]
    (sweep,) = (tmp_path / "multirun").glob("*/*")
    assert sorted(path.name for path in sweep.iterdir()) == ["0", "1", "multirun.yaml"]
    for job, algo in enumerate(("grpo", "apo")):
        folder = sweep / str(job)
        assert f"- algo={algo}" in (folder / ".hydra" / "overrides.yaml").read_text().splitlines()
        assert [row["step"] for row in training_rows(folder)] == ["1", "2"]
        assert (folder / "checkpoints" / "step_000002" / "checkpoint.json").is_file()

"""Two processes make the run that one makes, up to the order of summation."""

import csv
import os
import subprocess
import sys

import pytest

from composing import ROOT

pytestmark = pytest.mark.slow


def rows(folder, trainer):
    command = [
        sys.executable,
        "train.py",
        f"trainer={trainer}",
        "model=tiny",
        "engine=transformers",
        "callbacks=none",
        "reward=callable",
        "reward.function._target_=rewarding.even_start",
        "data.num_validation=8",
        "prompts_per_step=4",
        "prompts_per_minibatch=2",
        "trainer.max_steps=2",
        "scheduler.num_warmup_steps=0",
        "optimizer.lr=1e-3",
        f"hydra.run.dir={folder}",
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "tests"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stderr
    with (folder / "metrics.csv").open() as file:
        return [row for row in csv.DictReader(file) if row["train/reward"]]


def test_ddp_and_fsdp_on_two_processes_log_what_one_process_logs(tmp_path):
    alone = rows(tmp_path / "cpu", "cpu")
    for trainer in ("ddp_cpu2", "fsdp_cpu2"):
        together = rows(tmp_path / trainer, trainer)
        for one, two in zip(alone, together, strict=True):
            for name in ("train/reward", "train/loss", "train/grad_norm", "train/entropy", "apo/triggered_fraction"):
                assert float(two[name]) == pytest.approx(float(one[name]), rel=1e-3, abs=1e-5), (trainer, name)

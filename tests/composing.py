"""Compose the real configuration in a test, or run the command line itself."""

import csv
import os
import subprocess
import sys
from pathlib import Path

from hydra import compose, initialize_config_dir
from omegaconf import DictConfig

ROOT = Path(__file__).resolve().parents[1]
CONFIGS = ROOT / "configs"


def composed(*overrides: str, config_name: str = "train") -> DictConfig:
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        return compose(config_name, overrides=list(overrides))


def names(group: str) -> list[str]:
    return sorted(path.stem for path in (CONFIGS / group).glob("*.yaml"))


def run_train(folder: Path, *overrides: str) -> list[dict[str, str]]:
    """A short run of `train.py` on a random model in a process of its own; the training rows of its metrics.csv."""
    process = start_train(folder, *overrides)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    return training_rows(folder)


def start_train(folder: Path, *overrides: str) -> subprocess.Popen[str]:
    """That run, not waited for."""
    command = [
        sys.executable,
        "train.py",
        "model=tiny",
        "reward=callable",
        "reward.function._target_=rewarding.even_start",
        "data.num_validation=8",
        "prompts_per_step=4",
        "prompts_per_minibatch=2",
        "scheduler.num_warmup_steps=0",
        "optimizer.lr=1e-3",
        f"hydra.run.dir={folder}",
        *overrides,
    ]
    paths = [str(ROOT / "tests"), *filter(None, [os.environ.get("PYTHONPATH")])]
    return subprocess.Popen(
        command,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
    )


def training_rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "metrics.csv").open() as file:
        return [row for row in csv.DictReader(file) if row["train/reward"]]

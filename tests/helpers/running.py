"""Short runs of `train.py` on a random model, and what they leave in metrics.csv."""

import csv
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from omegaconf import DictConfig

from apo_lightning.module import RLVRModule
from apo_lightning.run import train
from composing import ROOT, composed
from processes import Script, free_port, on_two_ranks, start_script

RUN = (
    "model=tiny",
    "engine=transformers",
    "callbacks=none",
    "data.max_operand=20",  # 400 problems: to tokenise the 9,801 of the default takes longer than such a run
    "data.num_validation=4",
    "prompts_per_step=4",
    "prompts_per_minibatch=2",
    "group_size=4",
    "scheduler.num_warmup_steps=0",
    "trainer.max_steps=2",
    "trainer.val_check_interval=100",
)
"""Of an override that is given twice the last one counts: callers add theirs."""
HELPERS = os.pathsep.join([str(ROOT / "tests" / "helpers"), *filter(None, [os.environ.get("PYTHONPATH")])])
# A random model gets no sum right; this it gets half right.
SIGNAL = ("reward=callable", "reward.function._target_=rewarding.even_start")


def train_tiny(folder: Path, *overrides: str) -> RLVRModule:
    """A run in this process."""
    return train(composed(*RUN, *overrides), folder)


def weights(module: RLVRModule) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in module.policy.named_parameters()}


def run(folder: Path, *overrides: str) -> tuple[dict[str, torch.Tensor], list[dict[str, str]]]:
    """Final weights, and the training rows of metrics.csv."""
    final = weights(train_tiny(folder, *overrides))
    return final, training_rows(folder)


def read_metrics(folder: Path) -> list[dict[str, str]]:
    """The rows of metrics.csv, of training and of held-out problems."""
    with (folder / "metrics.csv").open() as file:
        return list(csv.DictReader(file))


def training_rows(folder: Path) -> list[dict[str, str]]:
    return [row for row in read_metrics(folder) if row["train/reward"]]


def without_clock(row: dict[str, str]) -> dict[str, str]:
    """A row but for what depends on the clock."""
    return {key: value for key, value in row.items() if not key.startswith(("time/", "perf/"))}


def train_on_two_ranks(*runs: tuple[DictConfig, Path]) -> None:
    """Runs one after the other in two processes, which are ranks of all of them."""
    on_two_ranks(_train_in_turn, free_port(), runs)


def _train_in_turn(rank: int, port: int, runs: tuple[tuple[DictConfig, Path], ...]) -> None:
    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", TORCHELASTIC_RUN_ID="test")
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    for cfg, folder in runs:
        train(cfg, folder)
    torch.distributed.destroy_process_group()


def on_one_and_two_ranks(folder: Path, trainers: Sequence[str], *overrides: str) -> list[list[dict[str, str]]]:
    """The training rows of a run with a signal in this process, and on two ranks with each of the trainers."""
    train_tiny(folder / "cpu", *SIGNAL, *overrides, "trainer=cpu")
    given = (*RUN, *SIGNAL, *overrides)
    train_on_two_ranks(*((composed(*given, f"trainer={trainer}"), folder / trainer) for trainer in trainers))
    return [training_rows(folder / trainer) for trainer in ("cpu", *trainers)]


def run_train(folder: Path, *overrides: str) -> list[dict[str, str]]:
    """A run with a signal in processes of its own, one a rank; its training rows."""
    arguments = (*RUN, *SIGNAL, *overrides)
    num_ranks = composed(*arguments).trainer.devices
    start_script("train.py", *arguments, f"hydra.run.dir={folder}", num_ranks=num_ranks).finish()
    return training_rows(folder)


def start_launched(folder: Path, *overrides: str, **environment: str) -> Script:
    """That run with Lightning's launcher, which starts the other ranks from nothing; not waited for."""
    arguments = (*RUN, *SIGNAL, f"hydra.run.dir={folder}", *overrides)
    return start_script("train.py", *arguments, **{"PYTHONPATH": HELPERS, "OMP_NUM_THREADS": "1"} | environment)


def run_cold(script: str, *overrides: str) -> None:
    """A script of ours as a user starts it: in a new Python, in which nothing is imported."""
    environment = {**os.environ, "PYTHONPATH": HELPERS, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, script, *overrides]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


class Stopper:
    """Sends the process a signal at the n-th call of something."""

    def __init__(self, monkeypatch, owner, name, call, number=signal.SIGTERM):
        original = getattr(owner, name)
        self.calls = 0

        def wrapped(*args, **kwargs):
            self.calls += 1
            if self.calls == call:
                os.kill(os.getpid(), number)
            return original(*args, **kwargs)

        monkeypatch.setattr(owner, name, wrapped)

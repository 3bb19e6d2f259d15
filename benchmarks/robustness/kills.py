"""A run killed again and again is the run that was never killed: kill it, go on, compare.

    python -m benchmarks.robustness.kills [--kills 20] [--engine vllm] [any override of train.py]

Trains a random model once without interruption and once with SIGKILL at random moments, each time gone on from with
`resume=auto`; prints where the kills hit, and whether weights and metrics.csv (all but `time/*` and `perf/*`) are the
same. Needs no GPU; some minutes. Exits with 1 where they differ.
"""

import argparse
import csv
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from safetensors.torch import load_file

from benchmarks import ROOT

RUN = (
    "model=tiny",
    "reward=callable",
    "reward.function._target_=benchmarks.shared.runs.even_start",
    "data.num_validation=8",
    "prompts_per_step=8",
    "prompts_per_minibatch=2",
    "optimizer.lr=1e-3",
    "scheduler.num_warmup_steps=0",
    "trainer.max_steps=8",
    "trainer.val_check_interval=3",
    "checkpoint.save_every=1",
    "+callbacks.witness._target_=benchmarks.robustness.kills.Witness",
)


class Witness(pl.Callback):
    """Leaves word of the phase that runs, in a file that outlives the process."""

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        path = Path(trainer.default_root_dir) / "phase"
        clock: Any = pl_module.clock
        clock.subscribe(lambda phase: path.write_text(phase or "between phases"))
        path.write_text("between phases")


def start(folder: Path, overrides: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "train.py", *RUN, *overrides, f"hydra.run.dir={folder}", "resume=auto"],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )


def run_to_the_end(folder: Path, overrides: list[str]) -> None:
    process = start(folder, overrides)
    _, errors = process.communicate()
    if process.returncode != 0:
        sys.exit(errors.decode())


def kill_once(folder: Path, overrides: list[str], seconds: float) -> str:
    """Start or go on, kill after so many seconds of training; where it was."""
    phase = folder / "phase"
    phase.unlink(missing_ok=True)
    process = start(folder, overrides)
    while not phase.exists() and process.poll() is None:
        time.sleep(0.005)
    time.sleep(seconds)
    if process.poll() is not None:
        return "after its end"
    process.send_signal(signal.SIGKILL)
    process.wait()
    is_saving = any((folder / "checkpoints").glob(".*.partial"))
    return "save" if is_saving else phase.read_text() or "between phases"


def rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "metrics.csv").open() as file:
        return [
            {key: value for key, value in row.items() if not key.startswith(("time/", "perf/"))}
            for row in csv.DictReader(file)
        ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--engine", default="transformers", choices=["transformers", "vllm"])
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    given, overrides = parser.parse_known_args()
    overrides = [f"engine={given.engine}", *overrides]
    moments = random.Random(given.seed)
    with tempfile.TemporaryDirectory() as root:
        whole, killed = Path(root) / "whole", Path(root) / "killed"
        run_to_the_end(whole, overrides)
        # Two steps of eight are enough to get on between two kills; the wait is for the first sign of training.
        with (whole / "metrics.csv").open() as file:
            steps = [float(row["time/step"]) for row in csv.DictReader(file) if row["time/step"]]
        longest = 3 * sum(steps) / len(steps)
        where = Counter(kill_once(killed, overrides, moments.uniform(0, longest)) for _ in range(given.kills))
        run_to_the_end(killed, overrides)
        weights = [load_file(path / "checkpoints" / "final" / "model.safetensors") for path in (whole, killed)]
        same_weights = all(weights[0][name].equal(weights[1][name]) for name in weights[0])
        same_rows = rows(whole) == rows(killed)
    print("\n| killed in | times |\n|:--|--:|")
    for phase, times in where.most_common():
        print(f"| {phase} | {times} |")
    print(
        f"\nfinal weights {'equal to the bit' if same_weights else 'DIFFER'}; metrics.csv "
        f"{'equal' if same_rows else 'DIFFERS'} but for time/* and perf/*"
    )
    sys.exit(0 if same_weights and same_rows else 1)


if __name__ == "__main__":
    main()

"""A long run with faults at random moments is the run without them, and leaves nothing behind.

    python -m benchmarks.robustness.soak [--steps 2000] [--faults 40] [--engine vllm] [any override of train.py]

Trains a random model once without interruption and once with a fault at random moments, each time gone on from with
`resume=auto`. Prints how each fault ended, whether final weights and metrics.csv (all but `time/*` and `perf/*`) are
the same, how much the resident memory of the first run grew, and which files and processes are left. Needs no GPU;
about twenty minutes of two cores. Exits with 1 where something differs, grew or is left.
"""

import argparse
import contextlib
import csv
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from safetensors.torch import load_file

from apo_lightning.errors import Preempted
from apo_lightning.rewards import MathVerifyReward
from apo_lightning.types import Verdict
from benchmarks import ROOT
from benchmarks.shared.runs import even_start
from benchmarks.shared.timing import megabytes, resident_bytes

RUN = (
    "model=tiny",
    "reward=math_verify",
    "reward._target_=benchmarks.robustness.soak.JudgedReward",
    "data.num_validation=8",
    "prompts_per_step=8",
    "prompts_per_minibatch=2",
    "optimizer.lr=1e-4",
    "scheduler.num_warmup_steps=0",
    "trainer.val_check_interval=100",
    "checkpoint.save_every=10",
    "+callbacks.witness._target_=benchmarks.robustness.soak.Witness",
)
FAULTS = ("kill", "terminate", "disk", "worker", "engine", "nan")
PATIENCE_S = 20.0
"""A fault that the run outlives, such as a killed worker between two answers, is followed by a kill after this."""
GROWTH = 1.02


class JudgedReward(MathVerifyReward):
    """A reward that a random model gets half of the time, for which a worker judges one pair a call."""

    def score(self, completions: Sequence[str], answers: Sequence[str]) -> list[Verdict]:
        (status,) = self.pool.judge([(r"\frac{x}{7}", r"\frac{2x}{14}")])
        first = Verdict(reward=0.0, status="error", extracted=None)
        verdicts = [
            Verdict(reward=reward, status="correct" if reward else "incorrect", extracted=None)
            for reward in even_start([*completions])
        ]
        return verdicts if status == "correct" else [first, *verdicts[1:]]


class Witness(pl.Callback):
    """Writes the phase that runs and the memory of each step to the run folder, and commits the faults inside."""

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        folder = Path(trainer.default_root_dir)
        clock: Any = pl_module.clock

        def enter(phase: str) -> None:
            (folder / "phase").write_text(phase or "between phases")
            ordered = folder / "fault"
            fault = ordered.read_text() if ordered.exists() else ""
            if (fault, phase) in (("engine", "generate"), ("nan", "update")):
                ordered.unlink()
                if fault == "engine":
                    raise RuntimeError("the engine fails, as the soak wants")
                with torch.no_grad():
                    next(pl_module.parameters()).view(-1)[0] = torch.nan

        inner = clock.phase

        @contextlib.contextmanager
        def phase(name: str) -> Iterator[None]:
            enter(name)
            with inner(name):
                yield
            enter("")

        clock.phase = phase
        enter("")

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        with (Path(trainer.default_root_dir) / "memory").open("a") as file:
            file.write(f"{resident_bytes('VmRSS')}\n")


class Soak:
    """A run in a folder of its own, started as often as needed."""

    def __init__(self, root: Path, name: str, overrides: Sequence[str]) -> None:
        self.folder = root / name
        self.temporary = root / f"{name}_tmp"
        self.temporary.mkdir()
        self.overrides = overrides

    def start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "train.py", *RUN, *self.overrides, f"hydra.run.dir={self.folder}", "resume=auto"]
        variables = {**os.environ, "TMPDIR": str(self.temporary), "OMP_NUM_THREADS": "1"}
        return subprocess.Popen(command, cwd=ROOT, env=variables, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)

    def finish(self) -> None:
        process = self.start()
        _, errors = process.communicate()
        if process.returncode != 0:
            sys.exit(errors.decode())

    def suffer(self, fault: str, seconds: float) -> str:
        """Start or go on, commit a fault after so many seconds of training, and say how it ended."""
        phase = self.folder / "phase"
        phase.unlink(missing_ok=True)
        process = self.start()
        while not phase.exists() and process.poll() is None:
            time.sleep(0.01)
        time.sleep(seconds)
        if process.poll() is not None:
            return f"the run had ended, status {process.returncode}"
        where = (
            "save" if any((self.folder / "checkpoints").glob(".*.partial")) else phase.read_text() or "between phases"
        )
        self._commit(fault, process.pid)
        try:
            _, errors = process.communicate(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            return "went on"
        finally:
            (self.folder / "fault").unlink(missing_ok=True)
        if fault == "kill":
            return f"killed in {where}"
        if process.returncode == Preempted.STATUS:
            return "saved, and stopped as asked"
        return f"status {process.returncode}: {(errors.decode().strip().splitlines() or ['no line'])[-1][:100]}"

    def _commit(self, fault: str, pid: int) -> None:
        if fault in ("engine", "nan"):
            (self.folder / "fault").write_text(fault)
        elif fault == "disk":  # every write behind the first 4 kB of a file fails
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (4096, 4096))
        elif fault == "worker":
            for worker in children(pid):
                for judge in children(worker) or [worker]:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(judge, signal.SIGKILL)
        else:
            os.kill(pid, signal.SIGKILL if fault == "kill" else signal.SIGTERM)

    def rows(self) -> list[dict[str, str]]:
        with (self.folder / "metrics.csv").open() as file:
            return [
                {key: value for key, value in row.items() if not key.startswith(("time/", "perf/"))}
                for row in csv.DictReader(file)
            ]

    def left(self) -> list[str]:
        """Temporary files of the run, and processes that name its folder."""
        partial = [str(path) for path in self.folder.rglob(".*") if path.name.endswith((".partial", ".tmp"))]
        found = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                if str(self.temporary).encode() in path.read_bytes():
                    found.append(f"process {path.parent.name}")
        return [*partial, *map(str, self.temporary.iterdir()), *found]


def children(pid: int) -> list[int]:
    return [int(child) for path in Path(f"/proc/{pid}/task").glob("*/children") for child in path.read_text().split()]


def growth(memory: Sequence[int]) -> float:
    """The resident memory of the last tenth of the steps over that of the third tenth, medians."""
    tenth = len(memory) // 10
    early, late = sorted(memory[2 * tenth : 3 * tenth]), sorted(memory[-tenth:])
    return late[tenth // 2] / early[tenth // 2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--faults", type=int, default=40)
    parser.add_argument("--engine", default="transformers", choices=["transformers", "vllm"])
    parser.add_argument("--seed", type=int, default=0, help="of the moments and the order of faults")
    given, overrides = parser.parse_known_args()
    moments = random.Random(given.seed)
    with tempfile.TemporaryDirectory() as root:
        options = [f"engine={given.engine}", f"trainer.max_steps={given.steps}", *overrides]
        whole, faulty = (Soak(Path(root), name, options) for name in ("whole", "faulty"))
        began = time.monotonic()
        whole.finish()
        seconds = (time.monotonic() - began) / given.faults
        ends = Counter()
        for i in range(given.faults):
            fault = FAULTS[i % len(FAULTS)]
            # On average half of the way to the next fault, so that the run gets on.
            ends[fault, faulty.suffer(fault, moments.uniform(0, seconds))] += 1
        faulty.finish()
        weights = [load_file(run.folder / "checkpoints" / "final" / "model.safetensors") for run in (whole, faulty)]
        memory = [int(line) for line in (whole.folder / "memory").read_text().split()]
        is_same = all(weights[0][name].equal(weights[1][name]) for name in weights[0]), whole.rows() == faulty.rows()
        left = [*whole.left(), *faulty.left()]
    print("\n| fault | how it ended | times |\n|:--|:--|--:|")
    for (fault, end), times in sorted(ends.items()):
        print(f"| {fault} | {end} | {times} |")
    ratio = growth(memory)
    print(
        f"\n{given.steps} steps: final weights {'equal to the bit' if is_same[0] else 'DIFFER'}; metrics.csv "
        f"{'equal' if is_same[1] else 'DIFFERS'} but for time/* and perf/*; resident memory {megabytes(memory[-1])} MB "
        f"at the end, {ratio:.4f} of that after a quarter; left: {', '.join(left) or 'nothing'}"
    )
    sys.exit(0 if all(is_same) and ratio < GROWTH and not left else 1)


if __name__ == "__main__":
    main()

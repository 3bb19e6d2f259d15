"""The memory that `apo preflight` plans, and what real runs take.

    python -m benchmarks.performance.memory [--steps 2] [--trainers cpu,fsdp_cpu2] [--engines transformers,vllm] […]

SmolLM2-135M, micro-batches small enough to be full. Prints one Markdown table. Takes some five minutes a row on two
busy cores; needs the extra `cpu`.

What is measured is the high-water mark of resident memory, `VmHWM` of `/proc/<pid>/status`, of every process of the run
until it ends: the kernel keeps it, so no peak falls between two looks. It counts the pages of shared libraries in every
process; the proportional set size does not, but changes with whatever else runs on the machine and must be caught by
looking at the right moment.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from hydra import compose, initialize_config_dir

from apo_plan.memory_plan import MIB
from apo_plan.plan import plan_run
from benchmarks import CONFIGS, ROOT
from benchmarks.shared.timing import print_header, print_table

SECONDS_BETWEEN_LOOKS = 0.5
LEAST_OF_A_RANK = 300 * MIB
"""A process of a run that has loaded torch; the workers of a verifier and the like stay below."""
BAR = 0.15
COMMON = (
    "model=smollm2_135m",
    "tokens_per_microbatch=512",
    "callbacks=none",
    "data.num_validation=8",
    "trainer.val_check_interval=null",
)


def main() -> None:
    parser = argparse.ArgumentParser(description="Planned and measured memory of a process, as Markdown.")
    parser.add_argument("--steps", type=int, default=2, help="rollouts; the optimizer has its moments from the second")
    parser.add_argument("--trainers", default="cpu,fsdp_cpu2")
    parser.add_argument("--engines", default="transformers,vllm")
    parser.add_argument("overrides", nargs="*", help="of every run, after the script's own")
    arguments = parser.parse_args()
    print_header("Planned and measured memory, SmolLM2-135M")
    rows = []
    for trainer in arguments.trainers.split(","):
        for engine in arguments.engines.split(","):
            axes = (f"trainer={trainer}", f"engine={engine}", f"trainer.max_steps={arguments.steps}")
            rows.append(row(f"{trainer}, {engine}", [*COMMON, *axes, *arguments.overrides]))
    print_table(["run", "planned [MiB]", "measured, each rank [MiB]", "planned/measured", f"within {BAR:.0%}"], rows)


def row(name: str, overrides: list[str]) -> list[str]:
    planned = planned_bytes(overrides)
    ranks = measured_bytes(overrides)
    ratio = planned / max(ranks)
    measured = " ".join(f"{size / MIB:.0f}" for size in ranks)
    return [name, f"{planned / MIB:.0f}", measured, f"{ratio:.2f}", "yes" if abs(ratio - 1) <= BAR else "NO"]


def planned_bytes(overrides: list[str]) -> int:
    """The worst phase, loading included."""
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        plan = plan_run(compose("train", overrides=overrides)).memory
    return max(plan.peak, plan.loading)


def measured_bytes(overrides: list[str]) -> list[int]:
    """The high-water mark of every rank of a run."""
    peaks: dict[int, int] = {}
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(ROOT / "train.py"), *overrides, f"hydra.run.dir={folder}"]
        # Two cores for two ranks: more threads would only get in each other's way.
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL) as run:
            while run.poll() is None:
                for pid in family(run.pid):
                    peaks[pid] = max(peaks.get(pid, 0), high_water_bytes(pid))
                time.sleep(SECONDS_BETWEEN_LOOKS)
    if run.returncode:
        raise SystemExit(f"the run failed with status {run.returncode}: {' '.join(command)}")
    return sorted(peak for peak in peaks.values() if peak > LEAST_OF_A_RANK)


def family(pid: int) -> Iterator[int]:
    """A process and all that it started; nothing where it has ended."""
    yield pid
    try:
        threads = list(Path(f"/proc/{pid}/task").iterdir())
        children = [int(child) for thread in threads for child in (thread / "children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return
    for child in children:
        yield from family(child)


def high_water_bytes(pid: int) -> int:
    """0 where it has ended."""
    try:
        found = re.search(r"^VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return int(found[1]) * 1024 if found else 0


if __name__ == "__main__":
    main()

"""What each diagnostic costs, and that it changes no bit: the same run without it and with it.

    python -m benchmarks.performance.diagnostics [--steps 21] [--runs FOLDER] [--sets …] [any override of train.py]
    python -m benchmarks.performance.diagnostics experiment=lab/locks model.path=outputs/bases/locks
    python -m benchmarks.performance.diagnostics --steps 11 --sets squeezing_monitor+reachability,collapse_alarm

Runs `train.py` once without diagnostics, once with each set of them, and once more without, which says how much of a
difference is noise. The first step is left out, so that 11 or 21 steps hold every frequency by which they are due.
Prints a Markdown table: seconds a step, the share that is added, and whether the final weights are the same to the last
bit; exits with 1 where they are not. With --runs the folders stay, for `apo report runs=FOLDER`.
"""

import argparse
import csv
import hashlib
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks import ROOT
from benchmarks.shared.timing import print_header, print_table

DIAGNOSTICS = ("squeezing_monitor", "collapse_alarm", "reachability")
BARE = ("quiet",)
"""Callbacks of the run without diagnostics: its files, and no pass beyond what the algorithm needs."""


def run(folder: Path, callbacks: tuple[str, ...], overrides: list[str]) -> None:
    """One run of `train.py`; a setting of a diagnostic goes to the runs that have it."""
    overrides = [given for given in overrides if not given.startswith("callbacks.") or given.split(".")[1] in callbacks]
    command = [sys.executable, "train.py", f"callbacks=[{','.join(callbacks)}]", f"hydra.run.dir={folder}", *overrides]
    threads = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, **threads}, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")


def step_seconds(folder: Path) -> list[float]:
    """Of each step but the first, which pays for what is set up once."""
    with (folder / "metrics.csv").open() as file:
        seconds = [float(row["time/step"]) for row in csv.DictReader(file) if row.get("time/step")]
    return seconds[1:]


def fingerprint(folder: Path) -> str:
    """A hash of the exported weights."""
    digest = hashlib.sha256()
    for path in sorted((folder / "checkpoints" / "final").glob("*.safetensors")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=21)
    parser.add_argument("--runs", type=Path)
    parser.add_argument("--sets", default=",".join(DIAGNOSTICS), help="joined by +, separated by commas")
    given, overrides = parser.parse_known_args()
    print_header("Diagnostics")
    overrides = [*overrides, f"trainer.max_steps={given.steps}"]
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary) if given.runs is None else given.runs.resolve()
        variants = {
            "none": BARE,
            **{name: (*BARE, *name.split("+")) for name in given.sets.split(",")},
            "none again": BARE,
        }
        for name, callbacks in variants.items():
            run(root / name.replace(" ", "_"), callbacks, overrides)
        folders = {name: root / name.replace(" ", "_") for name in variants}
        bare, weights = statistics.mean(step_seconds(folders["none"])), fingerprint(folders["none"])
        rows, same = [], True
        for name, folder in folders.items():
            seconds, found = statistics.mean(step_seconds(folder)), fingerprint(folder)
            same &= found == weights
            added = "" if name == "none" else f"{seconds / bare - 1:+.1%}"
            rows.append(
                [name, f"{seconds:.3f}", added, f"{found} {'' if found == weights else 'OTHER WEIGHTS'}".strip()]
            )
        print_table(["diagnostics", "mean step [s]", "added", "final weights"], rows)
    if not same:
        raise SystemExit(1)


if __name__ == "__main__":
    main()

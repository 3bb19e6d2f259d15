"""Every run of the paper starts: each `experiment=paper/*` on a random model, sharded over two CPU processes.

    python benchmarks/experiments.py [--only apo] [any override of train.py]

Runs `python train.py experiment=paper/…` to the end of its second step, as a user would, with the experiment's own
algorithm, coefficients and optimizer; only sizes, model, data and reward are replaced. Prints one Markdown table and
exits with 1 where a run failed. Needs no GPU and no network; four minutes of two cores.
"""

import argparse
import csv
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from timing import print_header, print_table

ROOT = Path(__file__).resolve().parents[1]
OPTIONS = (
    "trainer=fsdp_cpu2",
    "model=tiny",
    "engine=transformers",
    # A model whose answers are noise gets no sum right, and an update without a reward moves nothing.
    "reward=callable",
    "data.max_completion_tokens=12",
    # Held-out problems are on the hub.
    "data.validation=null",
    "prompts_per_step=8",
    "prompts_per_minibatch=4",
    "callbacks=quiet",
    "trainer.max_steps=2",
)
METRICS = {"reward": "train/reward", "loss": "train/loss", "gradient norm": "train/grad_norm"}
"""Of the last step, by their names in `metrics.csv`."""


def paper_experiments() -> list[str]:
    folder = ROOT / "configs" / "experiment" / "paper"
    return sorted(path.stem for path in folder.glob("*.yaml") if path.stem != "base")


def write_stub(path: Path) -> Path:
    """Problems in the layout of `data=dapo17k`: a bare answer to each."""
    sums = [(a, b) for a in range(2, 10) for b in range(2, 10)]
    lines = [json.dumps({"problem": f"What is {a} + {b}?", "answer": str(a + b)}) for a, b in sums]
    path.write_text("\n".join(lines) + "\n")
    return path


def even_start(completions: list[str], **columns: object) -> list[float]:
    """A reward that a random model gets about half of the time."""
    return [float(ord(text[0]) % 2 == 0) if text else 0.0 for text in completions]


def rows_of(folder: Path) -> list[dict[str, str]]:
    """Of the training steps in `metrics.csv`."""
    with (folder / "metrics.csv").open() as file:
        return [row for row in csv.DictReader(file) if row["train/reward"]]


def start(name: str, folder: Path, overrides: list[str]) -> tuple[bool, list[str]]:
    """One experiment; whether it came to its end, and its row of the table."""
    command = [
        sys.executable,
        "train.py",
        f"experiment=paper/{name}",
        *OPTIONS,
        "reward.function._target_=experiments.even_start",
        f"data.path={write_stub(folder / 'stub.jsonl')}",
        f"hydra.run.dir={folder / name}",
        *overrides,
    ]
    paths = [str(ROOT / "benchmarks"), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    begun = time.perf_counter()
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )
    seconds = f"{time.perf_counter() - begun:.0f}"
    if done.returncode != 0:
        print(done.stderr, file=sys.stderr)
        return False, [name, "–", seconds, *["–"] * len(METRICS), "failed"]
    rows = rows_of(folder / name)
    values = [rows[-1].get(metric) or "nan" for metric in METRICS.values()]
    return True, [name, str(len(rows)), seconds, *(f"{float(value):.4f}" for value in values), "ok"]


def main() -> None:
    parser = argparse.ArgumentParser(description="Start every run of the paper; prints Markdown.")
    parser.add_argument("--only", default="", help="a part of their names")
    given, overrides = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as folder:
        names = [name for name in paper_experiments() if given.only in name]
        found = [start(name, Path(folder), overrides) for name in names]
    print_header("Every run of the paper, two steps", "lightning")
    print_table(["experiment=paper/…", "steps", "seconds", *METRICS, ""], [row for _, row in found])
    sys.exit(not all(is_ok for is_ok, _ in found))


if __name__ == "__main__":
    main()

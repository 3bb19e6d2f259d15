"""How long a command takes to say what is wrong with it, and what it imports for that.

    python -m benchmarks.performance.start_up [--rounds 5]

Each command runs in a process of its own, once to fill the caches and then `--rounds` times. Prints one Markdown table.
Takes a minute or two.
"""

import argparse
import resource
import statistics
import subprocess
import sys
import time

from benchmarks import ROOT
from benchmarks.shared.timing import print_table

COMMANDS = (
    ("--help",),
    ("train", "bad=override"),
    ("train", "experiment=paper/qwen_math7b_apoo"),
    ("train", "--help"),
    ("evaluate", "bad=override"),
    ("report", "bad=override"),
    ("export", "bad=override"),
    ("report", "runs=/no/such/folder"),
    ("train", "model=tiny", "engine=transformers", "group_size=0"),
)
LARGE = ("torch", "matplotlib", "transformers", "lightning", "vllm")


def main() -> None:
    parser = argparse.ArgumentParser(description="Seconds until a command ends, and its imports, as Markdown.")
    parser.add_argument("--rounds", type=int, default=5, help="timed runs of each command")
    rounds = parser.parse_args().rounds
    columns = ["command", "minimum [s]", "median [s]", "processor [s]", "large imports"]
    print_table(columns, [row(command, rounds) for command in COMMANDS])


def row(command: tuple[str, ...], rounds: int) -> list[str]:
    """Seconds until it ends; least seconds of a processor, which others on the machine do not change; large imports."""
    log = run(command)[2]
    runs = [run(command) for _ in range(rounds)]
    seconds = [elapsed for elapsed, _, _ in runs]
    processor = min(busy for _, busy, _ in runs)
    imported = {line.rpartition("|")[2].strip() for line in log.splitlines() if line.startswith("import time:")}
    large = ", ".join(name for name in LARGE if name in imported)
    figures = [f"{figure:.2f}" for figure in (min(seconds), statistics.median(seconds), processor)]
    return [f"`apo {' '.join(command)}`", *figures, large or "–"]


def run(command: tuple[str, ...]) -> tuple[float, float, str]:
    """Seconds, seconds of a processor, and what it wrote on stderr: a line for each import among it."""
    arguments = [sys.executable, "-X", "importtime", "-m", "apo_lightning", *command]
    busy, began = processor_seconds(), time.perf_counter()
    done = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    return time.perf_counter() - began, processor_seconds() - busy, done.stderr


def processor_seconds() -> float:
    """Of all child processes that have ended [s]."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    main()

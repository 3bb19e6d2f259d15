"""Whether all is well on one NVIDIA GPU, in one command: training, kernels, the update, vLLM, the machine's rates.

    python -m benchmarks.gpu [--parts a,b,c,d,e,rates] [--device cpu] [--output FOLDER] [--minutes 25]

    a  train.py: bfloat16, recomputation, held-out problems, checkpoints, resume, LoRA, fsdp8 with one device
    b  kernels: flex attention and the tiles of the head, against the CPU in float32; compiled layers; graphs over
       varying lengths
    c  the update of a Llama-3.2-3B- and a Qwen2.5-7B-shaped model: time, share of the peak, memory against the plan,
       dearest kernels; the head alone against the time of its products
    d  vLLM: start, publish, generate, sleep, wake, and again; a second engine in the process
    e  without a GPU: the kernels compiled for one, and run by Triton's interpreter
    rates  products and copies, as overrides of the cost model

Every section runs in a process of its own with a time limit, so that one that fails, hangs or runs out of memory hides
no other. At the end one Markdown table is printed, and left in the folder with a JSON of every number and a log of each
section. All weights are random and nothing is downloaded. Without a GPU the same code runs at small sizes, and sections
run side by side: no duration means anything then. The status is 1 where a target was missed or something failed.
"""

import argparse
import importlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks import ROOT
from benchmarks.gpu.rows import Row, attempt, count_verdicts, failed, from_line, not_run, table, to_line

MACHINE = "machine"
PARTS = {
    MACHINE: "machine",
    "rates": "rates",
    "a": "a training",
    "b": "b kernels",
    "c": "c update",
    "d": "d engine",
    "e": "e ahead",
}
REASONS = {"cuda": "no GPU", "vllm": "vLLM is not installed", "triton": "Triton or a C++ compiler is not installed"}
LEAST_SECONDS = 20
"""A section that has less time left is not begun: its imports alone take as long."""
MOST_AT_ONCE = 4
"""Sections side by side on a CPU; each takes some two GB."""


@dataclass(frozen=True)
class Section:
    """What one process does: `SECTIONS[name]` of a module of `benchmarks`, a function from a device to rows."""

    part: str
    module: str
    name: str
    seconds: int
    """The most that it may take."""
    needs: frozenset[str] = frozenset()
    """"cuda" or "cpu", what there is on one kind of device alone; "vllm", "triton"."""

    @property
    def label(self) -> str:
        """A name for its files.

        Example:
            >>> Section("d", "gpu.engine", "eager, 256", 60).label
            'd_eager_256'
        """
        return "_".join([self.part, *self.name.replace(",", " ").split()])


GPU, VLLM, CARDLESS = frozenset({"cuda"}), frozenset({"vllm"}), frozenset({"cpu", "triton"})
SECTIONS = (
    Section("rates", "gpu.rates", "rates", 120),
    Section("a", "gpu.training", "tiny", 400),
    Section("a", "gpu.training", "smollm2", 400, GPU),
    Section("b", "gpu.kernels", "attention", 300),
    Section("b", "gpu.kernels", "graphs", 200),
    Section("b", "gpu.kernels", "head tiles", 150),
    Section("b", "gpu.layers", "layers", 240),
    *(
        Section("c", "gpu.update", f"{model}, {how}", 180)
        for model in ("llama3b", "qwen7b")
        for how in ("recomputing", "keeping all", "compiled")
    ),
    Section("c", "gpu.head", "head", 100),
    *(Section("d", "gpu.engine", f"{how}, {n}", 240, GPU | VLLM) for how in ("eager", "graphs") for n in (256, 512)),
    Section("d", "gpu.engine", "small", 240, VLLM | {"cpu"}),
    Section("d", "gpu.engine", "a second engine", 240, VLLM),
    Section("e", "emulated.kernels", "compiled", 400, CARDLESS),
    Section("e", "emulated.kernels", "interpreted", 400, CARDLESS),
    Section("e", "emulated.steps", "steps", 300, CARDLESS),
    Section("e", "emulated.runs", "runs", 300, CARDLESS),
)


def parts_of(text: str) -> list[str]:
    """The parts that are asked for, in the order of the table.

    Example:
        >>> parts_of("c,a")
        ['a', 'c']
    """
    asked = [part.strip() for part in text.split(",")]
    if unknown := sorted(set(asked) - (PARTS.keys() - {MACHINE})):
        raise argparse.ArgumentTypeError(f"no part {', '.join(unknown)}: choose among a,b,c,d,e,rates")
    return [part for part in PARTS if part in asked]


def divide(parts: Sequence[str], there: frozenset[str]) -> tuple[list[Section], list[Row]]:
    """The sections that can run with what is there, and a row for each of the others that a GPU would run."""
    asked = [section for section in SECTIONS if section.part in parts]
    rows = []
    for section in asked:
        missing = section.needs - there
        if missing and "cpu" not in missing:
            reason = " and ".join(REASONS[need] for need in sorted(missing))
            rows.append(replace(not_run(section.name, reason), part=PARTS[section.part]))
    return [section for section in asked if section.needs <= there], rows


def command_of(section: Section, device: str, rows: Path) -> list[str]:
    given = (f"--section={section.part}/{section.module}/{section.name}", f"--device={device}", f"--rows={rows}")
    return [sys.executable, "-m", "benchmarks.gpu", *given]


def in_own_process(section: Section, command: Sequence[str], rows_file: Path, seconds: float) -> list[Row]:
    """The rows that a process leaves in a file, and one more where it did not come to its end."""
    log = rows_file.with_suffix(".log")
    with log.open("wb") as said:
        process = subprocess.Popen(
            command, cwd=ROOT, stdout=said, stderr=said, stdin=subprocess.DEVNULL, start_new_session=True
        )
        try:
            status: int | None = process.wait(max(0.0, seconds))
        except subprocess.TimeoutExpired:
            status = None
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # what it has started itself would go on
        process.wait()
    rows = [from_line(line) for line in rows_file.read_text().splitlines()] if rows_file.exists() else []
    if status != 0:
        where = f"behind “{rows[-1].check}”" if rows else section.name
        rows.append(failed(where, why_ended(status, seconds, log)))
    return [replace(row, part=PARTS[section.part]) for row in rows]


def why_ended(status: int | None, seconds: float, log: Path) -> str:
    """One line on a process that did not end well."""
    if status is None:
        return f"killed after {seconds:.0f} s"
    if status < 0:
        return f"ended by {signal.Signals(-status).name}; the log is {log.name}"
    lines = log.read_text(errors="replace").split("\n")
    return next((line for line in reversed(lines) if line.strip()), f"status {status}")


def run_section(section: Section, device: str, logs: Path, end: float) -> list[Row]:
    """Its rows, within its own limit and before the end of all."""
    left = end - time.monotonic()
    if left < LEAST_SECONDS:
        return [replace(not_run(section.name, "the time was up"), part=PARTS[section.part])]
    print(f"{time.strftime('%H:%M:%S')} {PARTS[section.part]}: {section.name}", file=sys.stderr, flush=True)
    rows_file = logs / f"{section.label}.jsonl"
    return in_own_process(section, command_of(section, device, rows_file), rows_file, min(left, section.seconds))


def run_all(given: argparse.Namespace, logs: Path) -> tuple[dict[str, Any], list[Row]]:
    """What the machine is, and the rows of all parts."""
    end = time.monotonic() + 60 * given.minutes
    rows = run_section(Section(MACHINE, "gpu.machine", MACHINE, 120), given.device, logs, end)
    facts = {key: value for row in rows for key, value in row.figures.items()}
    device = facts.get("device", "cpu")
    there = {device, *(["vllm"] if facts.get("vllm") else [])}
    if facts.get("triton") and facts.get("compiler"):
        there.add("triton")
    sections, others = divide(given.parts, frozenset(there))
    # A GPU that two sections share would give neither its time nor its memory.
    at_once = 1
    if device == "cpu":
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        at_once = min(MOST_AT_ONCE, len(os.sched_getaffinity(0)))
    with ThreadPoolExecutor(at_once) as pool:
        for found in pool.map(lambda section: run_section(section, device, logs, end), sections):
            rows += found
    return facts, sorted([*rows, *others], key=lambda row: list(PARTS.values()).index(row.part))


def report(folder: Path, facts: Mapping[str, Any], rows: Sequence[Row], seconds: float) -> None:
    """Print the table, and leave it in the folder beside the JSON."""
    date = time.strftime("%Y-%m-%d %H:%M")
    head = f"{date}, {facts.get('name', 'unknown machine')}, {seconds / 60:.1f} minutes: {count_verdicts(rows)}"
    text = f"## make gpu\n\n{head}\n\n{table(rows)}\n"
    (folder / "table.md").write_text(text)
    content = {"date": date, "seconds": seconds, "machine": dict(facts), "rows": [asdict(row) for row in rows]}
    (folder / "results.json").write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n")
    print(f"{text}\n{folder / 'table.md'}, {folder / 'results.json'}")


def run_child(given: argparse.Namespace) -> None:
    """One section, in this process; each row is in the file as soon as it is known."""
    _, module, name = given.section.split("/")
    section = importlib.import_module(f"benchmarks.{module}").SECTIONS[name]
    with given.rows.open("a") as file:
        for row in attempt(name, section(given.device)):
            print(to_line(row), file=file, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        "python -m benchmarks.gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parts", type=parts_of, default=parts_of("a,b,c,d,e,rates"), help="of a,b,c,d,e,rates")
    parser.add_argument("--device", choices=["auto", "cuda", "cpu"], default="auto", help="cpu: leave the GPU out")
    parser.add_argument("--output", type=Path, help="where the table goes; outputs/gpu/<date-time> without it")
    parser.add_argument("--minutes", type=float, default=25, help="the most that all of it may take")
    parser.add_argument("--section", help=argparse.SUPPRESS)
    parser.add_argument("--rows", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.section is not None:
        run_child(given)
        return
    folder = (given.output or ROOT / "outputs" / "gpu" / time.strftime("%Y-%m-%d_%H-%M-%S")).absolute()
    logs = folder / "logs"
    logs.mkdir(parents=True)
    os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
    begun = time.monotonic()
    facts, rows = run_all(given, logs)
    report(folder, facts, rows, time.monotonic() - begun)
    sys.exit(any(row.is_bad for row in rows))


if __name__ == "__main__":
    main()

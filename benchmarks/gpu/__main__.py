"""Whether all is well on one NVIDIA GPU, in one command: training, kernels, the update, vLLM, the machine's rates.

    python -m benchmarks.gpu [first] [second] [PART…] [SECTION…] [--minutes 25] [--device cpu] [--output FOLDER]

    first   the questions that come first, in six minutes; second: the next ones, in four
    run     lab/locks from its base model: steps on the GPU against those of a CPU
    a       train.py: bfloat16, recomputation, held-out problems, checkpoints, resume, LoRA, fsdp8 with one device
    b       kernels: flex attention and the tiles of the head, against the CPU in float32; compiled layers; graphs over
            varying lengths
    c       the update of a Llama-3.2-3B- and a Qwen2.5-7B-shaped model: time, share of the peak and of the GPU's time,
            memory against the plan, dearest kernels; the head alone; ours beside TRL
    d       vLLM: start, publish, generate, sleep, wake, and again; a second engine in the process
    rates   products, attention and copies, as overrides of `apo preflight`

Sections run in the order of their value, each in a process of its own with a time limit, so that one that fails, hangs
or runs out of memory hides no other, and what the budget cuts off is the least. Checks of results run side by side;
what is timed runs alone. Every row is in rows.jsonl as soon as it is known and on the terminal when its section ends;
table.md, results.json and a log of each section are in the same folder. `run` trains a base model of the laboratory;
all other weights are random. Nothing is downloaded. Without a GPU the same code runs at small sizes, side by side: no
duration means anything then. The status is 1 where a target was missed or something failed.
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
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from benchmarks import ROOT
from benchmarks.gpu.rows import Row, attempt, cells, count_verdicts, failed, from_line, not_run, table, to_line
from benchmarks.gpu.sections import MACHINE, PARTS, Section, chosen, divide, together

LEAST_SECONDS = 20
"""A section that has less time left is not begun: its imports alone take as long."""
MOST_AT_ONCE = 4
"""Sections side by side; on a CPU each takes some two GB."""


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
        rows.append(replace(failed(where, why_ended(status, seconds, log)), part=PARTS[section.part]))
        append(rows_file.parent.parent / "rows.jsonl", rows[-1])
    return rows


def append(path: Path, row: Row) -> None:
    with path.open("a") as file:
        print(to_line(row), file=file)


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
    begun = time.monotonic()
    rows_file = logs / f"{section.label}.jsonl"
    rows = in_own_process(section, command_of(section, device, rows_file), rows_file, min(left, section.seconds))
    lines = [f"{time.strftime('%H:%M:%S')} {section.name}, {time.monotonic() - begun:.0f} s", *map(cells, rows)]
    print("\n".join(lines), flush=True)
    return rows


def run_all(given: argparse.Namespace, folder: Path) -> tuple[dict[str, Any], list[Row]]:
    """What the machine is, and the rows of all sections."""
    end, logs = time.monotonic() + 60 * given.minutes, folder / "logs"
    rows = run_section(Section(MACHINE, "gpu.machine", MACHINE, 90), given.device, logs, end)
    facts = {key: value for row in rows for key, value in row.figures.items()}
    device = str(facts.get("device", "cpu"))
    there = frozenset({device, "vllm"} if facts.get("vllm") else {device})
    sections, others = divide(given.sections, there)
    at_once = MOST_AT_ONCE
    if device == "cpu":
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        at_once = min(MOST_AT_ONCE, len(os.sched_getaffinity(0)))
    for lot in together(sections, device):
        with ThreadPoolExecutor(at_once) as pool:
            for found in pool.map(lambda section: run_section(section, device, logs, end), lot):
                rows += found
                (folder / "table.md").write_text(table(rows) + "\n")
    return facts, [*rows, *others]


def report(folder: Path, facts: Mapping[str, Any], rows: Sequence[Row], seconds: float) -> None:
    """Print the table, and leave it in the folder beside the JSON."""
    date = time.strftime("%Y-%m-%d %H:%M")
    head = f"{date}, {facts.get('name', 'unknown machine')}, {seconds / 60:.1f} minutes: {count_verdicts(rows)}"
    text = f"## make gpu\n\n{head}\n\n{table(rows)}\n"
    (folder / "table.md").write_text(text)
    content = {"date": date, "seconds": seconds, "machine": dict(facts), "rows": [asdict(row) for row in rows]}
    (folder / "results.json").write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n")
    print(f"\n{text}\n{folder / 'table.md'}, {folder / 'results.json'}")


def run_child(given: argparse.Namespace) -> None:
    """One section, in this process; each row is in its file and in that of all as soon as it is known."""
    part, module, name = given.section.split("/")
    section = importlib.import_module(f"benchmarks.{module}").SECTIONS[name]
    for row in attempt(name, section(given.device)):
        for path in (given.rows, given.rows.parent.parent / "rows.jsonl"):
            append(path, replace(row, part=PARTS[part]))


def main() -> None:
    parser = argparse.ArgumentParser(
        "python -m benchmarks.gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sections", nargs="*", help="first, second, parts or sections; all of them without one")
    parser.add_argument("--device", choices=["auto", "cuda", "cpu"], default="auto", help="cpu: leave the GPU out")
    parser.add_argument("--output", type=Path, help="where the table goes; outputs/gpu/<date-time> without it")
    parser.add_argument("--minutes", type=float, default=25, help="the most that all of it may take")
    parser.add_argument("--section", help=argparse.SUPPRESS)
    parser.add_argument("--rows", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.section is not None:
        run_child(given)
        return
    try:
        given.sections = chosen(given.sections)
    except argparse.ArgumentTypeError as error:
        parser.error(str(error))
    folder = (given.output or ROOT / "outputs" / "gpu" / time.strftime("%Y-%m-%d_%H-%M-%S")).absolute()
    (folder / "logs").mkdir(parents=True)
    os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
    begun = time.monotonic()
    facts, rows = run_all(given, folder)
    report(folder, facts, rows, time.monotonic() - begun)
    sys.exit(any(row.is_bad for row in rows))


if __name__ == "__main__":
    main()

"""A whole training step of SmolLM2-135M on arithmetic: ours against TRL's, APO against GRPO, and what no timer sees.

    python -m benchmarks.performance.step [--dtype bfloat16] [--tables short replay]

Every run is a process of its own (`step_runs.py`), the runs of a table take turns, and the first step of each run is
left out. Steps are timed from outside, from the end of one to the end of the next. Prints Markdown. On one core a
step of ours takes seconds and one of TRL's minutes: `--tables replay` is over soon, the others are not.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks import ROOT
from benchmarks.shared.timing import Timing, has_peer, megabytes, pin_threads, print_header, print_table, ratio

RUNS = "benchmarks.performance.step_runs"
REPLAY = ("engine=transformers", "~engine.sequences_per_batch", f"engine._target_={RUNS}.ReplayEngine")


@dataclass
class Runs:
    """The runs of one variant, together."""

    who: str
    overrides: tuple[str, ...]
    seconds: list[float] = field(default_factory=list)
    phases: list[dict[str, float]] = field(default_factory=list)
    completion_tokens: list[float] = field(default_factory=list)
    peak_bytes: int = 0

    @property
    def timing(self) -> Timing:
        return Timing(tuple(self.seconds))

    @property
    def unaccounted(self) -> list[float]:
        """Share of each step, as seen from outside, that lies in no `time/*` phase."""
        inside = [sum(value for name, value in row.items() if name != "time/step") for row in self.phases]
        return [1 - phases / whole for phases, whole in zip(inside, self.seconds, strict=True)]


@dataclass(frozen=True)
class Setting:
    steps: int
    repeats: int
    threads: int
    new_tokens: int
    force_length: bool
    common: tuple[str, ...]


def take_turns(variants: dict[str, Runs], setting: Setting) -> None:
    for _ in range(setting.repeats):
        for runs in variants.values():
            run(runs, setting)


def run(runs: Runs, setting: Setting) -> None:
    """One run in a process of its own, added to the others.

    Raises:
        SystemExit: it failed; with the end of what it wrote.
    """
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", RUNS, runs.who, f"--folder={folder}", f"--steps={setting.steps + 1}"]
        command += [f"--new-tokens={setting.new_tokens}", f"--threads={setting.threads}"]
        command += ["--force-length"] * setting.force_length
        done = subprocess.run(
            [*command, "--overrides", *setting.common, *runs.overrides],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        if done.returncode != 0:
            sys.exit(f"{' '.join(command[2:4])} failed:\n{done.stderr[-2000:]}")
        found = json.loads((Path(folder) / "run.json").read_text())
    runs.seconds += found["seconds"]
    runs.phases += found["phases"]
    runs.completion_tokens += found["completion_tokens"]
    runs.peak_bytes = max(runs.peak_bytes, found["peak_bytes"])


def with_engine(engine: str, new_tokens: int) -> tuple[str, ...]:
    """Overrides: the engine, and for vLLM as much cache as the keys and values of 128 completions take."""
    return f"engine={engine}", f"kv_cache_gib={0.25 if new_tokens <= 8 else 0.5}"


def against_trl(setting: Setting, *, with_trl: bool) -> None:
    variants = {
        "ours, APO": Runs("ours", ("algo=apo",)),
        "ours, GRPO": Runs("ours", ("algo=grpo",)),
        **({"TRL, GRPO": Runs("trl", ("algo=grpo",))} if with_trl else {}),
    }
    take_turns(variants, setting)
    rows = [
        [
            name,
            *runs.timing.cells(),
            ratio(runs.timing, variants["ours, APO"].timing),
            f"{statistics.mean(runs.completion_tokens):.1f}",
            megabytes(runs.peak_bytes),
        ]
        for name, runs in variants.items()
    ]
    length = f"exactly {setting.new_tokens}" if setting.force_length else f"at most {setting.new_tokens}"
    print(f"16 prompts × 8 completions of {length} tokens, {setting.steps * setting.repeats} steps each\n")
    columns = ["", "s a step, min", "s, median", "÷ ours, APO", "tokens a completion", "peak resident MB"]
    print_table(columns, rows)
    print_phases(variants)


def apo_against_grpo(setting: Setting) -> None:
    """Both replay one recording, with a learning rate of 0, so that it stays one of their policy."""
    with tempfile.TemporaryDirectory() as folder:
        replay = f"+engine.recording={folder}/recording.pickle"
        recording = Runs("ours", ("algo=grpo", "engine=transformers", f"engine._target_={RUNS}.RecordingEngine"))
        recording.overrides += (replay, "optimizer.lr=0")
        run(recording, setting)
        variants = {
            name: Runs("ours", (f"algo={algo}", *REPLAY, replay, "optimizer.lr=0"))
            for name, algo in (("GRPO", "grpo"), ("APO", "apo"))
        }
        take_turns(variants, setting)
    print("APO's step and GRPO's on the same recorded rollouts\n")
    rows = [
        [name, *runs.timing.cells(), ratio(runs.timing, variants["GRPO"].timing)] for name, runs in variants.items()
    ]
    print_table(["", "s a step, min", "s, median", "÷ GRPO"], rows)
    print_phases(variants)


def print_phases(variants: dict[str, Runs]) -> None:
    """Medians over the steps, and what no phase accounts for."""
    timed = {name: runs for name, runs in variants.items() if runs.phases}
    phases = dict.fromkeys(phase for runs in timed.values() for phase in runs.phases[0] if phase != "time/step")
    rows = [
        [
            name,
            *(f"{statistics.median(row.get(phase, 0.0) for row in runs.phases):.3f}" for phase in phases),
            f"{statistics.median(row['time/step'] for row in runs.phases):.3f}",
            f"{100 * statistics.median(runs.unaccounted):.1f} % ({100 * max(runs.unaccounted):.1f} %)",
        ]
        for name, runs in timed.items()
    ]
    print_table(["s, median", *phases, "time/step", "in no phase: median (max)"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--engine", choices=["auto", "vllm", "transformers"], default="auto", help="ours; not replayed")
    parser.add_argument("--steps", type=int, default=3, help="measured steps of a run, beside the first")
    parser.add_argument("--repeats", type=int, default=2, help="runs of each variant")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--tables", nargs="+", choices=["short", "long", "replay"], default=["short", "long", "replay"])
    given = parser.parse_args()
    if given.steps * given.repeats < 5:
        parser.error(f"--steps times --repeats is {given.steps * given.repeats}: give at least 5 measured steps")
    pin_threads(given.threads)
    with_trl = has_peer("trl")
    print_header(f"Training step, {given.dtype}", "transformers", "lightning", *(["trl"] if with_trl else []))
    common = (f"model.compute_dtype={given.dtype}",)
    for table, new_tokens in (("short", 8), ("long", 64)):
        if table in given.tables:
            setting = Setting(
                given.steps,
                given.repeats,
                given.threads,
                new_tokens,
                table == "long",
                (*common, *with_engine(given.engine, new_tokens)),
            )
            against_trl(setting, with_trl=with_trl)
    if "replay" in given.tables:
        apo_against_grpo(Setting(given.steps, given.repeats, given.threads, 8, force_length=False, common=common))


if __name__ == "__main__":
    main()

"""The command of eight GPUs, in eight processes of a CPU: start, step, checkpoint, SIGTERM, resume, export.

    python -m benchmarks.robustness.eight_ranks [any override of train.py]

`python train.py algo=apo trainer=fsdp8 data=dapo17k` as a user types it, with gloo in place of NCCL, a random model, a
reward that a random model gets half of the time, and problems made here. One run is stopped by SIGTERM after its first
checkpoint and resumed; its weights are held against those of a run that was left alone. Prints one Markdown table
and exits with 1 where something failed. Needs no GPU and no network, 6 GB, and some minutes of two cores.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from safetensors.torch import load_file

from benchmarks import ROOT
from benchmarks.shared.runs import rows_of, write_stub
from benchmarks.shared.timing import print_header, print_table

COMMAND = ("algo=apo", "trainer=fsdp8", "data=dapo17k")
ON_A_CPU = (
    *("trainer.accelerator=cpu", "trainer.strategy.process_group_backend=gloo", "engine=transformers", "model=tiny"),
    "model.compile_layers=false",
    *("reward=callable", "reward.function._target_=benchmarks.shared.runs.even_start", "callbacks=quiet"),
    *("data.validation=null", "data.num_validation=0", "data.max_completion_tokens=12", "optimizer.lr=1e-3"),
    *("prompts_per_step=32", "prompts_per_minibatch=16", "trainer.max_steps=3", "checkpoint.save_every=1"),
)
STOPPED = 75
"""The exit status of a run that was asked to stop and can be resumed."""
LONGEST_SECONDS = 900


class StageError(Exception):
    """A stage did not end as it must."""


def start(folder: Path, overrides: list[str], *more: str) -> subprocess.Popen[str]:
    """`train.py` in eight processes; the first starts the others."""
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return subprocess.Popen(
        [sys.executable, "train.py", *COMMAND, *ON_A_CPU, *overrides, *more, f"hydra.run.dir={folder}"],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(process: subprocess.Popen[str], status: int) -> str:
    """The last line that it printed.

    Raises:
        StageError: it ended with another status, or not at all.
    """
    try:
        said, _ = process.communicate(timeout=LONGEST_SECONDS)
    except subprocess.TimeoutExpired as error:
        process.kill()
        raise StageError(f"no end after {LONGEST_SECONDS} s") from error
    lines = [line for line in said.splitlines() if line.strip()]
    if process.returncode != status:
        raise StageError(f"status {process.returncode}: {lines[-1] if lines else 'nothing was printed'}")
    return lines[-1]


def left_alone(root: Path, overrides: list[str]) -> str:
    finish(start(root / "whole", overrides), 0)
    rows = rows_of(root / "whole")
    return f"{len(rows)} steps, gradient norm {float(rows[-1]['train/grad_norm']):.3f}"


def stopped(root: Path, overrides: list[str]) -> str:
    process = start(root / "stopped", overrides)
    deadline = time.monotonic() + LONGEST_SECONDS
    while not (root / "stopped" / "checkpoints" / "step_000001").exists() and process.poll() is None:
        if time.monotonic() > deadline:
            break
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    return finish(process, STOPPED)


def gone_on(root: Path, overrides: list[str]) -> str:
    finish(start(root / "stopped", overrides, "resume=auto"), 0)
    whole, again = (
        load_file(root / name / "checkpoints" / "final" / "model.safetensors") for name in ("whole", "stopped")
    )
    difference = max(float((whole[name] - again[name]).abs().max()) for name in whole)
    if difference > 0:
        raise StageError(f"weights differ by up to {difference:.1e} from those of the run that was left alone")
    return "final weights equal to the bit"


def exported(root: Path, overrides: list[str]) -> str:
    command = [sys.executable, "-m", "apo_lightning", "export", f"run={root / 'whole'}", f"to={root / 'exported'}"]
    finish(subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True), 0)
    ours, final = (
        load_file(folder / "model.safetensors")
        for folder in (root / "exported", root / "whole" / "checkpoints" / "final")
    )
    # A tied head is written twice by ranks that gather, and once by one process.
    if not all(ours[name].equal(final[name]) for name in ours):
        raise StageError("the newest checkpoint is not the final policy")
    return f"{len(ours)} tensors, those of checkpoints/final"


STAGES = {"start, step, checkpoint": left_alone, "SIGTERM": stopped, "resume": gone_on, "export": exported}


def main() -> None:
    print_header("Eight ranks on a CPU")
    rows, is_sound = [], True
    with tempfile.TemporaryDirectory() as folder:
        write_stub(Path(folder) / "stub.jsonl")
        overrides = [f"data.path={Path(folder) / 'stub.jsonl'}", *sys.argv[1:]]
        for name, stage in STAGES.items():
            begun = time.monotonic()
            try:
                found, verdict = stage(Path(folder), overrides), "ok"
            except (StageError, OSError, KeyError) as error:
                found, verdict, is_sound = str(error), "FAILED", False
            rows.append([name, verdict, f"{time.monotonic() - begun:.0f}", found.replace(folder, "")])
    print_table(["stage", "verdict", "seconds", "found"], rows)
    sys.exit(0 if is_sound else 1)


if __name__ == "__main__":
    main()

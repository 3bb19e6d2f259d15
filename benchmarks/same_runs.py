"""Whether two states of the code train to the same bytes: rollouts, metrics and exported weights of short runs.

    python -m benchmarks.same_runs --output before.json
    python -m benchmarks.same_runs --output after.json --against before.json

Every run is `train.py model=tiny` in a process of its own, on one thread: several algorithms, adapters, two ranks under
DDP and FSDP, and a run that is killed after a checkpoint and goes on. Columns of times, speeds and memory are left out,
and columns that only one of both has are named. The status is 1 where something differs. Three minutes on two cores.
"""

import argparse
import csv
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks import ROOT

COMMON = ("model=tiny", "engine=transformers", "trainer.max_steps=4", "trainer.val_check_interval=2", "seed=3")
RUNS: dict[str, tuple[str, ...]] = {
    **{name: (f"algo={name}",) for name in ("apo", "grpo_kl", "grpo_kl_error_only", "nsr", "apo_ppo", "dapo")},
    "two mini-batches": ("algo=apo", "prompts_per_minibatch=4"),
    "LoRA": ("algo=apo", "policy=lora"),
    "two ranks, DDP": ("algo=apo", "trainer=ddp_cpu2"),
    "two ranks, FSDP": ("algo=apo", "trainer=fsdp_cpu2"),
    "killed": ("algo=apo", "checkpoint.save_every=1"),
}
CHANGING = ("time/", "perf/", "memory/")


def run(name: str, folder: Path) -> dict[str, str]:
    """The digests of one run."""
    command = [sys.executable, "train.py", *COMMON, *RUNS[name], f"hydra.run.dir={folder}"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    log = folder.with_suffix(".log")
    with log.open("wb") as said:
        start = lambda: subprocess.Popen(command, cwd=ROOT, env=environment, stdout=said, stderr=said)  # noqa: E731
        process = start()
        if name == "killed":
            wait_for(folder / "checkpoints" / "step_000002" / "checkpoint.json", process)
            process.send_signal(signal.SIGKILL)
            process.wait()
            command.insert(2, f"resume={folder}")
            process = start()
        if process.wait() != 0:
            return {"failed": log.read_text(errors="replace").strip().rpartition("\n")[2]}
    return digests(folder)


def wait_for(path: Path, process: subprocess.Popen[bytes]) -> None:
    while not path.exists() and process.poll() is None:
        time.sleep(0.01)


def digests(folder: Path) -> dict[str, str]:
    """One digest a rollout file, a column of the metrics and the weights."""
    found = {path.name: digest(path.read_bytes()) for path in sorted((folder / "rollouts").glob("*.jsonl"))}
    with (folder / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    for column in sorted(name for name in rows[0] if not name.startswith(CHANGING)):
        values = [(row["step"], row[column]) for row in rows if row[column]]
        found[column] = digest(json.dumps(values).encode())
    weights = folder / "checkpoints" / "final" / "model.safetensors"
    return found | {"weights": digest(weights.read_bytes())}


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def differences(before: dict[str, dict[str, str]], after: dict[str, dict[str, str]]) -> list[str]:
    """One line a run that differs, and one for what only one of both has."""
    lines = []
    for name in before.keys() & after.keys():
        one, other = before[name], after[name]
        if changed := sorted(key for key in one.keys() & other.keys() if one[key] != other[key]):
            lines.append(f"{name}: differs in {', '.join(changed)}")
        for keys, where in ((one.keys() - other.keys(), "before"), (other.keys() - one.keys(), "after")):
            if keys:
                lines.append(f"{name}: only {where}: {', '.join(sorted(keys))}")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="the digests, as JSON")
    parser.add_argument("--against", type=Path, help="an earlier output to compare with")
    parser.add_argument("--runs", nargs="*", choices=RUNS, default=list(RUNS))
    given = parser.parse_args()
    found = {}
    with tempfile.TemporaryDirectory() as root:
        for index, name in enumerate(given.runs):
            found[name] = run(name, Path(root) / str(index))
            print(f"{name}: {found[name].get('failed') or found[name]['weights']}", flush=True)
    given.output.write_text(json.dumps(found, indent=1))
    lines = differences(json.loads(given.against.read_text()), found) if given.against else []
    print("\n".join(lines) or ("the same" if given.against else ""))
    sys.exit(any("differs" in line for line in lines) or any("failed" in one for one in found.values()))


if __name__ == "__main__":
    main()

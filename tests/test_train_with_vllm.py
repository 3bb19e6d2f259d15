"""The command line, the whole way, with the real vLLM engine; each run in a process of its own."""

import csv
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from composing import ROOT

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed"),
]


def train(folder: Path, *overrides: str) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "train.py",
        "model=tiny",
        "engine=vllm",
        "callbacks=quiet",
        "reward=callable",
        "reward.function._target_=rewarding.even_start",
        "data.num_validation=8",
        "prompts_per_step=4",
        "prompts_per_minibatch=2",
        "group_size=4",
        "optimizer.lr=1e-3",
        "scheduler.num_warmup_steps=0",
        "trainer.max_steps=3",
        f"hydra.run.dir={folder}",
        *overrides,
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "tests"), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        command,
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        stdin=subprocess.DEVNULL,
    )


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> list[Path]:
    folders = [tmp_path_factory.mktemp(name) for name in ("first", "second")]
    for folder in folders:
        done = train(folder, "algo=apo", "seed=1")
        assert done.returncode == 0, done.stderr
    return folders


def test_apo_trains_through_vllm_and_every_sync_arrives(runs):
    with (runs[0] / "metrics.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["train/reward"]]
    assert [row["step"] for row in rows] == ["1", "2", "3"]
    assert all(float(row["sync/logprob_gap"]) < 1e-3 for row in rows)
    assert all(float(row["train/grad_norm"]) > 0 for row in rows)
    assert any(float(row["apo/triggered_fraction"]) > 0 for row in rows)
    # The sync of step 1 was learnt from: the engine at step 3 samples from other weights than at the start.
    assert len({row["train/entropy"] for row in rows}) == 3


def test_two_runs_of_one_seed_leave_the_same_rollouts_byte_for_byte(runs):
    first, second = (sorted((folder / "rollouts").glob("*.jsonl")) for folder in runs)
    assert [path.name for path in first] == [f"step_{step:06d}.jsonl" for step in (1, 2, 3)]
    for one, two in zip(first, second, strict=True):
        assert one.read_bytes() == two.read_bytes()
    line = json.loads(first[0].read_text().splitlines()[0])
    assert {"problem", "completion", "answer", "status", "reward"} <= line.keys()


def test_two_runs_of_one_seed_end_in_the_same_weights(runs):
    hashes = [json.loads((folder / "summary.json").read_text())["weights_sha256"] for folder in runs]
    assert hashes[0] == hashes[1]
    exported = [(folder / "checkpoints" / "final" / "model.safetensors").read_bytes() for folder in runs]
    assert exported[0] == exported[1]

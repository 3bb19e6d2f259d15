"""The command line, the whole way, with the real vLLM engine; each run in a process of its own."""

import importlib.util
import json
import re
from pathlib import Path

import pytest

from running import RUN, SIGNAL, run_cold, run_train, training_rows

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.slow(40),
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed"),
]


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> list[tuple[Path, list[dict[str, str]]]]:
    """The same run twice: its folder and the training rows of its metrics.csv."""
    folders = [tmp_path_factory.mktemp(name) for name in ("first", "second")]
    options = ("engine=vllm", "callbacks=quiet", "algo=apo", "seed=1", "trainer.max_steps=3")
    sizes = ("data.num_validation=8", "optimizer.lr=1e-3")
    run_cold("train.py", *RUN, *SIGNAL, f"hydra.run.dir={folders[0]}", *options, *sizes)
    run_train(folders[1], *options, *sizes)
    return [(folder, training_rows(folder)) for folder in folders]


def test_apo_trains_through_vllm_and_every_sync_arrives(runs):
    _, rows = runs[0]
    assert [row["step"] for row in rows] == ["1", "2", "3"]
    assert all(float(row["sync/logprob_gap"]) < 1e-3 for row in rows)
    assert all(float(row["train/grad_norm"]) > 0 for row in rows)
    assert any(float(row["apo/triggered_fraction"]) > 0 for row in rows)
    assert len({row["train/entropy"] for row in rows}) == 3


def test_two_runs_of_one_seed_leave_the_same_rollouts_and_weights_byte_for_byte_from_one_compile_cache(runs):
    first, second = (sorted((folder / "rollouts").glob("*.jsonl")) for folder, _ in runs)
    assert [path.name for path in first] == [f"step_{step:06d}.jsonl" for step in (1, 2, 3)]
    for one, two in zip(first, second, strict=True):
        assert one.read_bytes() == two.read_bytes()
    line = json.loads(first[0].read_text().splitlines()[0])
    assert {"problem", "completion", "answer", "status", "reward"} <= line.keys()
    hashes = [json.loads((folder / "summary.json").read_text())["weights_sha256"] for folder, _ in runs]
    assert hashes[0] == hashes[1]
    exported = [(folder / "checkpoints" / "final" / "model.safetensors").read_bytes() for folder, _ in runs]
    assert exported[0] == exported[1]
    starts = [re.findall(r"started from (\S+);.*key: (\w+)", (folder / "run.log").read_text()) for folder, _ in runs]
    assert len(starts[0]) == 1
    assert starts[0] == starts[1]

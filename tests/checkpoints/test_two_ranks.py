"""Checkpoints of a sharded policy: stopped and gone on from by two processes, read by one."""

import shutil
import signal
import time

import pytest
import torch
from transformers import AutoModelForCausalLM

from apo_lightning.checkpoints.folder import complete_checkpoints
from apo_lightning.run import export
from composing import composed, run_train, start_train, training_rows

pytestmark = pytest.mark.slow

RUN = (
    "engine=transformers",
    "callbacks=quiet",
    "data.max_completion_tokens=12",
    "trainer.max_steps=3",
    "trainer.val_check_interval=100",
    "checkpoint.save_every=1",
)


def comparable(row: dict[str, str]) -> dict[str, float]:
    return {key: float(value or "nan") for key, value in row.items() if not key.startswith(("time/", "perf/"))}


def test_a_sharded_run_is_stopped_gone_on_from_and_read_by_one_process(tmp_path):
    whole, stopped, alone = tmp_path / "whole", tmp_path / "stopped", tmp_path / "alone"
    expected = run_train(whole, *RUN, "trainer=fsdp_cpu2")

    process = start_train(stopped, *RUN, "trainer=fsdp_cpu2")
    deadline = time.monotonic() + 200
    while not (stopped / "checkpoints" / "step_000001").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    said, errors = process.communicate(timeout=100)
    assert process.returncode == 75, errors
    assert "stopped by SIGTERM" in said
    newest = complete_checkpoints(stopped / "checkpoints")[0][-1]
    assert newest.header.world_size == 2
    for one, two in zip(expected, run_train(stopped, *RUN, "trainer=fsdp_cpu2", "resume=auto"), strict=True):
        assert comparable(two) == pytest.approx(comparable(one), rel=1e-4, abs=1e-6, nan_ok=True)

    before = complete_checkpoints(whole / "checkpoints")[0][0]
    assert before.folder.name == "step_000002"
    shutil.copytree(before.folder, alone / "checkpoints" / "step_000002")
    (alone / "metrics.csv").write_bytes((whole / "metrics.csv").read_bytes())
    run_train(alone, *RUN, "trainer=cpu", "resume=auto")
    one, two = (training_rows(folder)[-1] for folder in (whole, alone))
    for name in ("train/reward", "train/loss", "train/grad_norm", "train/entropy"):
        assert float(two[name]) == pytest.approx(float(one[name]), rel=1e-3, abs=1e-5), name

    exported = export(composed(f"run={whole}", config_name="export"))
    models = [AutoModelForCausalLM.from_pretrained(path) for path in (exported, whole / "checkpoints" / "final")]
    pairs = zip(*(model.state_dict().items() for model in models), strict=True)
    assert all(a == b and torch.equal(x, y) for (a, x), (b, y) in pairs)

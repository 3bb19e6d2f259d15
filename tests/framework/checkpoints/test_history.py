"""Advantages that read a prompt's history: the same after a stop, to the last bit, and on two ranks."""

from pathlib import Path

import pytest
import torch

import apo_lightning.module
from apo_lightning.checkpoints.contents import SHARED, load_plain
from apo_lightning.checkpoints.folder import complete_checkpoints
from apo_lightning.errors import Preempted
from apo_lightning.module import RLVRModule
from composing import composed
from running import (
    RUN,
    SIGNAL,
    Stopper,
    read_metrics,
    train_on_two_ranks,
    train_tiny,
    training_rows,
    weights,
    without_clock,
)

# Nine problems, four a step: from the third step on prompts come back.
SETTINGS = (
    *("algo=rare_answers", "callbacks=none", "reward._target_=rewarding.StatingReward", "data.max_operand=3"),
    *("data.num_validation=1", "data.max_completion_tokens=8", "optimizer.lr=1e-2", "trainer.max_steps=4"),
    *("checkpoint.save_every=1", "algo.advantage.adjustment.coef=1.0"),
)


def run(folder: Path, *overrides: str) -> dict[str, torch.Tensor]:
    return weights(train_tiny(folder, *SIGNAL, *SETTINGS, *overrides))


def history(folder: Path, name: str) -> dict[str, list]:
    return load_plain(folder / "checkpoints" / name / SHARED)["parts"]["history"]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("uninterrupted")
    return run(folder), folder


def test_a_checkpoint_holds_the_history_of_finished_steps(uninterrupted):
    _, folder = uninterrupted
    for step in (3, 4):
        found = history(folder, f"step_{step:06d}")
        assert sum(sampled for sampled, _, _ in found.values()) == step * 4 * 4
        assert any(sampled > 4 for sampled, _, _ in found.values())
        assert all(sum(answers.values()) <= sampled for sampled, _, answers in found.values())


@pytest.mark.parametrize(
    ("owner", "name", "call", "expected"),
    [
        # The held-out set is sampled before the first step and after the last.
        (apo_lightning.module, "check_policy_version", 4, "step_000002_sampled"),
        (RLVRModule, "_optimizer_step", 5, "step_000003"),
    ],
)
def test_stopped_and_resumed_to_the_bit(uninterrupted, tmp_path, monkeypatch, owner, name, call, expected):
    final, folder = uninterrupted
    with monkeypatch.context() as patch:
        Stopper(patch, owner, name, call)
        with pytest.raises(Preempted, match=expected):
            run(tmp_path)
    assert complete_checkpoints(tmp_path / "checkpoints")[0][-1].folder.name == expected
    finished = int(expected.split("_")[1])
    assert sum(sampled for sampled, _, _ in history(tmp_path, expected).values()) == finished * 4 * 4
    resumed = run(tmp_path, "resume=auto")
    assert all(torch.equal(resumed[key], final[key]) for key in final)
    rows = [[without_clock(row) for row in read_metrics(path)] for path in (tmp_path, folder)]
    assert rows[0] == rows[1]
    assert history(tmp_path, "step_000004") == history(folder, "step_000004")


@pytest.mark.slow
def test_two_ranks_equal_one_process(uninterrupted, tmp_path):
    _, folder = uninterrupted
    train_on_two_ranks((composed(*RUN, *SIGNAL, *SETTINGS, "trainer=ddp_cpu2"), tmp_path))
    for one, two in zip(*(training_rows(path) for path in (folder, tmp_path)), strict=True):
        numbers = [{k: float(v or "nan") for k, v in without_clock(row).items()} for row in (one, two)]
        assert numbers[1] == pytest.approx(numbers[0], rel=1e-4, abs=1e-6, nan_ok=True)
    one, two = (history(path, "step_000004") for path in (folder, tmp_path))
    assert list(one.items()) == list(two.items())

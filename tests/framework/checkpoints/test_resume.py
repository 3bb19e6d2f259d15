"""A run that is stopped anywhere and gone on from is the run that was not stopped, to the last bit."""

import json
import shutil
import signal
from pathlib import Path

import pytest
import torch

import apo_lightning.checkpoints.checkpointer
import apo_lightning.module
from apo_lightning.callbacks import StepCallback
from apo_lightning.checkpoints.folder import complete_checkpoints
from apo_lightning.common.identity import files_of, read_sealed, sealed
from apo_lightning.errors import ConfigError, Preempted
from apo_lightning.module import RLVRModule
from apo_lightning.rollout.collector import Collector
from apo_lightning.rollout.engine import RolloutEngine
from apo_lightning.rollout.transformers_engine import TransformersEngine
from running import SIGNAL, Stopper, read_metrics, train_tiny, training_rows, weights, without_clock

SETTINGS = (
    *("callbacks=quiet", "data.max_completion_tokens=12", "trainer.max_steps=3", "trainer.val_check_interval=2"),
    *(f"+callbacks.counter._target_={__name__}.Counter", "optimizer.lr=1e-2", "scheduler.name=linear"),
    *("scheduler.num_warmup_steps=2", "checkpoint.save_every=1"),
)


class Counter(StepCallback):
    """Logs how many completions of the run were correct."""

    def __init__(self):
        self.total = 0

    def on_step(self, step):
        self.total += int(step.rollouts.is_correct.sum())
        return {"mine/correct": float(self.total)}

    def state_dict(self):
        return {"total": self.total}

    def load_state_dict(self, state_dict):
        self.total = state_dict["total"]


def run(folder: Path, *overrides: str) -> dict[str, torch.Tensor]:
    """Final weights."""
    return weights(train_tiny(folder, *SIGNAL, *SETTINGS, *overrides))


def rows(folder: Path) -> list[dict[str, str]]:
    """`metrics.csv` but for what depends on the clock."""
    return [without_clock(row) for row in read_metrics(folder)]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("uninterrupted")
    final = run(folder)
    assert all(float(row["train/grad_norm"]) > 0 for row in training_rows(folder))
    return final, folder


@pytest.fixture(autouse=True)
def engine_sleeps_in_every_update(monkeypatch):
    """On a GPU an engine that is awake holds tens of GiB, which the update needs."""
    gradient = apo_lightning.module.minibatch_gradient

    def watched(setup, *args):
        with pytest.raises(RuntimeError, match="asleep"):
            RolloutEngine.generate(setup.sample.__self__.engine, [])
        return gradient(setup, *args)

    monkeypatch.setattr(apo_lightning.module, "minibatch_gradient", watched)


def assert_is(uninterrupted, weights: dict[str, torch.Tensor], folder: Path) -> None:
    expected, expected_folder = uninterrupted
    assert all(torch.equal(weights[name], expected[name]) for name in expected)
    assert rows(folder) == rows(expected_folder)
    for file in ("step_000001.jsonl", "step_000003.jsonl"):
        assert (folder / "rollouts" / file).read_bytes() == (expected_folder / "rollouts" / file).read_bytes()
    summaries = [json.loads((path / "summary.json").read_bytes()) for path in (folder, expected_folder)]
    assert summaries[0]["held_out"] == summaries[1]["held_out"]
    assert summaries[0]["weights_sha256"] == summaries[1]["weights_sha256"]


# The held-out set is sampled before the first step and after the second and the third.
PLACES = {
    "while it samples the first step": (TransformersEngine, "generate", 2, "nothing"),
    "in the first update": (RLVRModule, "_optimizer_step", 1, "step_000001"),
    "while it samples": (TransformersEngine, "generate", 3, "step_000001"),
    "while it judges": (Collector, "score", 3, "step_000001"),
    "when it has sampled": (apo_lightning.module, "check_policy_version", 3, "step_000002"),
    "between two mini-batches": (RLVRModule, "_optimizer_step", 3, "step_000002"),
    "at the sync": (RLVRModule, "_publish", 3, "step_000002"),
    "while it validates": (TransformersEngine, "generate", 4, "step_000002"),
}


@pytest.mark.parametrize("place", PLACES)
def test_stopped_by_a_signal_it_goes_on_as_if_nothing_had_happened(uninterrupted, tmp_path, monkeypatch, place):
    owner, name, call, expected = PLACES[place]
    with monkeypatch.context() as patch:
        Stopper(patch, owner, name, call)
        with pytest.raises(Preempted, match=rf"SIGTERM.*kept: (checkpoint )?{expected}"):
            run(tmp_path, "checkpoint.save_every=null")
    found = [checkpoint.folder.name for checkpoint in complete_checkpoints(tmp_path / "checkpoints")[0]]
    assert found == [expected] * (expected != "nothing")
    assert_is(uninterrupted, run(tmp_path, "resume=auto"), tmp_path)


def test_a_reward_that_draws_lots_draws_those_of_the_step_again(tmp_path, monkeypatch):
    by_lot = "reward.function._target_=rewarding.by_lot"
    whole = run(tmp_path / "whole", by_lot)
    assert all(float(row["train/grad_norm"]) > 0 for row in training_rows(tmp_path / "whole"))
    with monkeypatch.context() as patch:
        Stopper(patch, Collector, "score", 3)
        with pytest.raises(Preempted, match="step_000001"):
            run(tmp_path / "stopped", by_lot, "checkpoint.save_every=null")
    resumed = run(tmp_path / "stopped", by_lot, "resume=auto")
    assert all(torch.equal(resumed[name], whole[name]) for name in whole)


@pytest.mark.parametrize(("is_signalled", "expected"), [(False, BrokenPipeError), (True, Preempted)])
def test_an_error_after_a_signal_is_taken_for_its_effect_and_no_other(
    uninterrupted, tmp_path, monkeypatch, is_signalled, expected
):
    score, calls = Collector.score, []

    def failing(*args, **kwargs):
        calls.append(None)
        if len(calls) == 3:
            if is_signalled:
                signal.raise_signal(signal.SIGTERM)
            raise BrokenPipeError("the judge has ended")
        return score(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(Collector, "score", failing)
        with pytest.raises(expected):
            run(tmp_path, "checkpoint.save_every=null")
    assert_is(uninterrupted, run(tmp_path, "resume=auto"), tmp_path)


def test_stopped_again_and_again_within_one_step(uninterrupted, tmp_path, monkeypatch):
    places = ((TransformersEngine, "generate", 3), (Collector, "score", 1))
    for place in (*places, (apo_lightning.module, "score_reference", 1)):
        with monkeypatch.context() as patch:
            Stopper(patch, *place, signal.SIGUSR1)
            with pytest.raises(Preempted, match="SIGUSR1"):
                run(tmp_path, "resume=auto")
    assert_is(uninterrupted, run(tmp_path, "resume=auto"), tmp_path)


def test_a_finished_run_that_is_started_again_stays_as_it_is(uninterrupted, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(uninterrupted[1], folder)
    assert_is(uninterrupted, run(folder, "resume=auto"), folder)


def test_a_finished_run_can_be_made_longer_elsewhere(uninterrupted, tmp_path):
    first, whole = tmp_path / "first", tmp_path / "whole"
    run(first, "scheduler.name=constant_with_warmup", "trainer.max_steps=2")
    weights = run(whole, "scheduler.name=constant_with_warmup", f"resume={first}", "trainer.max_steps=3")
    straight = run(tmp_path / "straight", "scheduler.name=constant_with_warmup", "trainer.max_steps=3")
    assert all(torch.equal(weights[name], straight[name]) for name in straight)
    assert rows(whole) == rows(tmp_path / "straight")


def test_a_run_that_was_planned_longer_goes_on_to_the_bit_and_one_that_was_not_says_so(uninterrupted, tmp_path, capsys):
    for folder, planned, is_said in (("planned", ("schedule_horizon=3",), False), ("unplanned", (), True)):
        run(tmp_path / folder, "trainer.max_steps=2", *planned)
        longer = run(tmp_path / folder, "resume=auto")
        assert ("schedule was made for 2 steps and is now made for 3" in capsys.readouterr().out) is is_said
        assert all(torch.equal(longer[name], uninterrupted[0][name]) for name in longer) is not is_said


def test_a_damaged_checkpoint_is_named_and_the_one_before_it_is_used(uninterrupted, tmp_path, capsys):
    folder = tmp_path / "run"
    shutil.copytree(uninterrupted[1], folder)
    [before, newest] = [found.folder for found in complete_checkpoints(folder / "checkpoints")[0]]
    shared = newest / "shared.pt"
    shared.write_bytes(shared.read_bytes()[:-1])
    weights = run(folder, "resume=auto")
    said = capsys.readouterr().out
    assert "ignored" in said
    assert "shared.pt has" in said
    assert f"resuming from {before}" in said.replace("\n", "")
    assert_is(uninterrupted, weights, folder)


def test_a_changed_byte_is_found_before_anything_is_read(uninterrupted, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(uninterrupted[1], folder)
    newest = complete_checkpoints(folder / "checkpoints")[0][-1].folder
    [tensors] = (newest / "tensors").glob("*.safetensors")
    content = bytearray(tensors.read_bytes())
    content[-1] ^= 1
    tensors.write_bytes(content)
    with pytest.raises(ConfigError, match=f"{newest.name} is damaged: tensors/{tensors.name}.*delete the folder"):
        run(folder, "resume=auto")
    shutil.rmtree(newest)
    assert_is(uninterrupted, run(folder, "resume=auto"), folder)


def test_what_cannot_be_gone_on_from_is_one_line(uninterrupted, tmp_path):
    folder = uninterrupted[1]
    newest = complete_checkpoints(folder / "checkpoints")[0][-1].folder
    with pytest.raises(ConfigError, match=r"holds checkpoints of an earlier run \(newest: step_000003\)"):
        run(folder)
    # Its last step is that of this run too: the export here would pass for the other's.
    other = shutil.copytree(folder, tmp_path / "other")
    with pytest.raises(ConfigError, match=r"holds checkpoints of an earlier run \(newest: step_000003\)"):
        run(folder, f"resume={other}")
    assert run(folder, f"resume={newest}").keys()
    with pytest.raises(ConfigError, match=r"other settings: algo.loss.pull_coef is 0.1 there and 0.05 here"):
        run(tmp_path, f"resume={newest}", "algo.loss.pull_coef=0.05")
    # What decides memory alone may differ: the next refusal is reached.
    with pytest.raises(ConfigError, match=r"other settings: algo.loss.pull_coef is 0.1 there and 0.05 here: resume it"):
        run(tmp_path, f"resume={newest}", "gpu_memory_utilization=0.4", "algo.loss.pull_coef=0.05")
    with pytest.raises(ConfigError, match="no such folder"):
        run(tmp_path, "resume=nowhere")
    with pytest.raises(ConfigError, match="no complete checkpoint"):
        run(tmp_path, f"resume={tmp_path}")
    with pytest.raises(ConfigError, match=r"checkpoint.best is val/sums/pass@1: choose one of val/arithmetic/pass@1"):
        run(tmp_path, "checkpoint.best=val/sums/pass@1")


def test_the_state_of_another_step_is_not_taken_for_this_one(uninterrupted, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(uninterrupted[1], folder)
    before, newest = [found.folder for found in complete_checkpoints(folder / "checkpoints")[0]]
    shutil.copy(before / "shared.pt", newest / "shared.pt")
    record = read_sealed(newest / "checkpoint.json")
    content = sealed({**record, "files": files_of(newest, record["files"])})
    (newest / "checkpoint.json").write_bytes(content)
    with pytest.raises(ConfigError, match=r"step_000003 is damaged: shared.pt is of step 2; delete the folder"):
        run(folder, "resume=auto")


def test_the_best_checkpoint_stays(tmp_path, monkeypatch):
    scores = iter([0.5, 0.2, 0.3])
    monkeypatch.setattr(apo_lightning.checkpoints.checkpointer.Checkpointer, "_score", lambda self, run: next(scores))
    run(tmp_path, "checkpoint.keep=1", "checkpoint.best=val/arithmetic/pass@1")
    assert sorted(path.name for path in (tmp_path / "checkpoints").glob("step_*")) == ["step_000001", "step_000003"]


def test_no_room_on_the_disk_costs_a_checkpoint_and_not_the_run(uninterrupted, tmp_path, monkeypatch, capsys):
    original = apo_lightning.checkpoints.checkpointer.save_tensors
    calls = []

    def full(tensors, folder):
        calls.append(folder)
        if len(calls) == 2:
            raise OSError(28, "No space left on device")
        original(tensors, folder)

    monkeypatch.setattr(apo_lightning.checkpoints.checkpointer, "save_tensors", full)
    weights = run(tmp_path)
    assert "checkpoint step_000002 could not be written ([Errno 28] No space left on device)" in capsys.readouterr().out
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["final", "step_000001", "step_000003"]
    assert_is(uninterrupted, weights, tmp_path)


def test_a_run_whose_last_checkpoint_has_no_room_writes_the_rest_and_fails(uninterrupted, tmp_path, monkeypatch):
    def full(tensors, folder):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(apo_lightning.checkpoints.checkpointer, "save_tensors", full)
        with pytest.raises(ConfigError, match=r"^checkpoint step_000003 could not be written; the rest is: make room"):
            run(tmp_path)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["final"]
    assert json.loads((tmp_path / "summary.json").read_bytes())["steps"] == 3
    assert_is(uninterrupted, run(tmp_path, "resume=auto"), tmp_path)


class Hindrance(StepCallback):
    """After the second step, lets the deletion of the first checkpoint fail, or does it."""

    def __init__(self, folder, deletes):
        self.folder, self.deletes = Path(folder) / "checkpoints", deletes

    def on_step(self, step):
        if step.step == 2 and self.deletes:
            shutil.rmtree(self.folder / "step_000001")
        elif step.step == 2:
            (self.folder / ".step_000001.partial" / "in use").mkdir(parents=True)


@pytest.mark.parametrize("deletes", [True, False])
def test_a_checkpoint_that_cannot_be_deleted_costs_no_new_one(uninterrupted, tmp_path, capsys, deletes):
    hindrance = f"+callbacks.stop={{_target_: {__name__}.Hindrance, folder: {tmp_path}, deletes: {deletes}}}"
    final = run(tmp_path, hindrance, "checkpoint.keep=1")
    said, checkpoints = capsys.readouterr().out, tmp_path / "checkpoints"
    assert "could not be written" not in said
    assert said.count("an older checkpoint could not be deleted ([Errno 39] Directory not empty") == 2 * (not deletes)
    found = {"step_000003", *(() if deletes else ("step_000001", "step_000002", ".step_000001.partial"))}
    assert {path.name for path in checkpoints.glob("*step*")} == found
    assert_is(uninterrupted, final, tmp_path)
    run(tmp_path, "resume=auto", "checkpoint.keep=1")
    assert not [*checkpoints.glob(".*")]

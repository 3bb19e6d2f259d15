"""Weights kept along a run, and measured one after the other with the same seeds."""

import os
import shutil
import signal
from pathlib import Path

import pytest
import torch
from hydra.errors import InstantiationException
from omegaconf import OmegaConf
from safetensors.torch import load_file

import apo_lightning.checkpoints.checkpointer
import apo_lightning.module
import apo_lightning.run.evaluating
from apo_lightning.checkpoints.folder import snapshots_of
from apo_lightning.common.identity import read_sealed, sealed
from apo_lightning.errors import ConfigError, Preempted
from apo_lightning.evaluation.samples_file import read_samples
from apo_lightning.model.fingerprint import weights_sha256
from apo_lightning.module import RLVRModule
from apo_lightning.rollout.transformers_engine import TransformersEngine
from apo_lightning.run import evaluate
from composing import composed
from running import RUN, SIGNAL, train_tiny, weights

KEPT = ("checkpoint.snapshot_every=2", "checkpoint.save_every=null", "optimizer.lr=1e-2", "trainer.max_steps=3")
MEASURED = ("engine=transformers", "limit=3", "num_samples=2", "samples_per_batch=2", "support_anchor_size=4", "seed=5")
STEPS = ("step_000000", "step_000002", "step_000003")


def train(folder: Path, *overrides: str) -> RLVRModule:
    """A run in the layout that `train.py` leaves."""
    arguments = (*SIGNAL, *KEPT, "data.num_validation=0", *overrides)
    hydra = folder / ".hydra"
    hydra.mkdir(exist_ok=True, parents=True)
    OmegaConf.save(composed(*RUN, *arguments), hydra / "config.yaml", resolve=True)
    OmegaConf.save(["algo=apo"], hydra / "overrides.yaml")
    OmegaConf.save({"hydra": {"runtime": {"choices": {"algo": "apo"}}}}, hydra / "hydra.yaml")
    return train_tiny(folder, *arguments)


def measure(run: Path, folder: Path, *overrides: str):
    return evaluate(composed(f"run={run}", f"output_dir={folder}", *MEASURED, *overrides, config_name="evaluate"))


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> tuple[Path, RLVRModule]:
    folder = tmp_path_factory.mktemp("run")
    return folder, train(folder)


@pytest.fixture(scope="module")
def measured(run, tmp_path_factory):
    folder = tmp_path_factory.mktemp("measured")
    return measure(run[0], folder, "checkpoint=all"), folder


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def kept(snapshot: Path) -> dict[str, torch.Tensor]:
    return {name: value for file in (snapshot / "tensors").iterdir() for name, value in load_file(file).items()}


def test_snapshots_hold_the_weights_alone_and_the_last_step_has_one(run):
    folder, module = run
    found, refused = snapshots_of(folder)
    assert [snapshot.folder.name for snapshot in found] == ["step_000002", "step_000003"]
    assert refused == []
    last = kept(found[-1].folder)
    final = {f"policy.{name.removeprefix('model.')}": value for name, value in weights(module).items()}
    assert last.keys() == final.keys()
    assert all(torch.equal(last[name], final[name]) for name in final)
    assert {path.name for path in found[-1].folder.iterdir()} == {"checkpoint.json", "tensors"}


def test_stopped_and_gone_on_a_run_leaves_the_same_snapshots(run, tmp_path, monkeypatch):
    plan_step, calls = apo_lightning.module.plan_step, []

    def stopped(*args):
        calls.append(None)
        if len(calls) == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return plan_step(*args)

    with monkeypatch.context() as patch:
        patch.setattr(apo_lightning.module, "plan_step", stopped)
        with pytest.raises(Preempted):
            train(tmp_path)
    train(tmp_path, "resume=auto")
    for there, here in zip(*(snapshots_of(folder)[0] for folder in (run[0], tmp_path)), strict=True):
        expected, found = kept(there.folder), kept(here.folder)
        assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_a_snapshot_that_cannot_be_written_is_said_and_the_run_goes_on(run, tmp_path, monkeypatch, capsys):
    original = apo_lightning.checkpoints.checkpointer.save_tensors

    def full_at_first(tensors, folder):
        if folder.parent.name == ".step_000002.partial":
            raise OSError(28, "No space left on device")
        original(tensors, folder)

    monkeypatch.setattr(apo_lightning.checkpoints.checkpointer, "save_tensors", full_at_first)
    final = weights(train(tmp_path))
    assert "snapshot step_000002 could not be written ([Errno 28] No space left on device)" in capsys.readouterr().out
    assert [path.name for path in (tmp_path / "checkpoints" / "snapshots").iterdir()] == ["step_000003"]
    assert all(torch.equal(final[name], value) for name, value in weights(run[1]).items())


def test_all_stages_are_measured_under_the_same_seeds_each_with_its_own_weights(run, measured):
    results, folder = measured
    assert [result.model.step for result in results] == [0, 2, 3]
    assert [result.model.algo for result in results] == [None, "apo", "apo"]
    seeds = [
        [(s.prompt_id, s.sample, s.seed) for s in read_samples(folder / step / "arithmetic" / "samples.jsonl")]
        for step in STEPS
    ]
    assert seeds[0] == seeds[1] == seeds[2]
    assert len(set(seeds[0])) == 6
    assert results[-1].model.weights_sha256 == weights_sha256(run[1].policy)
    assert len({result.model.weights_sha256 for result in results}) == 3
    # Under the evaluation's own seed a random model would be another than the run began as.
    spec_seed = composed(*RUN).seed
    assert (results[0].model.seed, results[0].settings.seed) == (spec_seed, 5)
    # At the start policy and reference are one: the mass is that of a model's own top 4, the most that 4 tokens hold.
    mass = [result.metrics["support_coverage"].value for result in results]
    assert mass[0] >= 4 / 97


def test_one_engine_serves_all_and_what_is_finished_is_not_measured_again(run, measured, tmp_path, monkeypatch, capsys):
    starts, drawn = [], []
    start, generate = apo_lightning.run.evaluating.start_engine, TransformersEngine.generate

    def counted(*args, **kwargs):
        starts.append(None)
        start(*args, **kwargs)

    def killed(self, requests):
        drawn.append(len(requests))
        if len(drawn) == stop_at:
            raise KeyboardInterrupt
        return generate(self, requests)

    monkeypatch.setattr(apo_lightning.run.evaluating, "start_engine", counted)
    monkeypatch.setattr(TransformersEngine, "generate", killed)
    # A stage is a check of the engine and three batches, of which two are on the disk when the third is drawn.
    stop_at = 8
    with pytest.raises(KeyboardInterrupt):
        measure(run[0], tmp_path, "checkpoint=all")
    assert not (tmp_path / STEPS[1] / "arithmetic" / "results.json").exists()
    stop_at, drawn = 0, []
    measure(run[0], tmp_path, "checkpoint=all")
    assert drawn == [3, 2, 3, 2, 2, 2]  # the second stage lacks one batch, and the third all
    assert contents(tmp_path).keys() == contents(measured[1]).keys()
    for name, content in contents(measured[1]).items():
        if not name.endswith(".log"):
            assert contents(tmp_path)[name] == content, name
    assert len(starts) == 2
    capsys.readouterr()
    again = measure(run[0], tmp_path, "checkpoint=all")
    assert len(starts) == 2, "nothing was left to do"
    assert capsys.readouterr().out.count("already measured") == 3
    assert again == measured[0]


def test_adapters_are_kept_alone_and_measured_as_the_merged_model(tmp_path):
    module = train(tmp_path / "run", "policy=lora", "checkpoint.snapshot_every=3")
    [found] = snapshots_of(tmp_path / "run")[0]
    assert all("lora" in name for name in kept(found.folder))
    [result] = measure(tmp_path / "run", tmp_path / "measured", "checkpoint=step_000003")
    assert result.model.weights_sha256 == weights_sha256(module.policy)


def test_other_weights_under_the_same_name_are_refused(run, measured, tmp_path):
    shutil.copytree(measured[1], tmp_path / "measured")
    path = tmp_path / "measured" / STEPS[1] / "arithmetic" / "evaluation.json"
    identity = read_sealed(path)
    identity["snapshot"] = {name: [size, sha256[::-1]] for name, (size, sha256) in identity["snapshot"].items()}
    path.write_bytes(sealed(identity))
    with pytest.raises(ConfigError, match="holds another evaluation: snapshot"):
        measure(run[0], tmp_path / "measured", "checkpoint=all")


def test_a_changed_byte_is_found_before_the_weights_are_used(run, tmp_path):
    shutil.copytree(run[0], tmp_path / "run")
    [file] = (tmp_path / "run" / "checkpoints" / "snapshots" / STEPS[1] / "tensors").iterdir()
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(ConfigError, match="step_000002 is damaged"):
        measure(tmp_path / "run", tmp_path / "measured", "checkpoint=step_000002")


def test_what_cannot_be_measured_is_one_line(run, tmp_path):
    folder = run[0]
    with pytest.raises(ConfigError, match="has final, all, base, step_000002, step_000003"):
        measure(folder, tmp_path, "checkpoint=step_7")
    with pytest.raises(ConfigError, match="no checkpoints/final"):
        measure(folder, tmp_path)
    with pytest.raises(ConfigError, match="there is no run="):
        evaluate(composed("checkpoint=all", "model=tiny", f"output_dir={tmp_path}", config_name="evaluate"))
    with pytest.raises(ConfigError, match="holds checkpoints of an earlier run"):
        train(folder)
    (tmp_path / ".hydra").mkdir()
    for file in (folder / ".hydra").iterdir():
        shutil.copy(file, tmp_path / ".hydra")
    with pytest.raises(ConfigError, match=r"has no snapshots: train with checkpoint.snapshot_every"):
        measure(tmp_path, tmp_path, "checkpoint=all")
    with pytest.raises(InstantiationException, match="snapshot_every is 0"):
        train(tmp_path, "checkpoint.snapshot_every=0")

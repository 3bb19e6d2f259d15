"""A resumed run finds the model and the data that its checkpoint began with, and a finished run is exported at last."""

import json
import shutil
from pathlib import Path

import pytest
from omegaconf import OmegaConf
from safetensors.torch import load_file, save_file

from apo_lightning.checkpoints.folder import MANIFEST
from apo_lightning.errors import ConfigError
from apo_lightning.model.policy import Policy
from apo_lightning.run import evaluate, train
from apo_lightning.run.exporting import export
from composing import composed
from running import RUN

ROWS = [{"problem": f"{a}+1=", "answer": str(a + 1)} for a in range(1, 9)]
SETTINGS = ("callbacks=export", "data.max_completion_tokens=4", "data.num_validation=0", "checkpoint.save_every=1")


def settings_of(place: Path) -> list[str]:
    sources = ("data=gsm8k", f"data.path={place / 'd.jsonl'}", f"model.path={place / 'model'}", "model.config=null")
    own = (*sources, *SETTINGS, "policy=lora", "checkpoint.snapshot_every=1", "trainer.max_steps=1")
    return [*(word for word in RUN if "max_operand" not in word and "num_validation" not in word), *own]


def write_rows(place: Path, rows: list[dict[str, str]]) -> None:
    (place / "d.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture
def place(trained, tmp_path_factory):
    """A copy of a run of one step, with the model and the data that it began with."""
    copy = tmp_path_factory.mktemp("place")
    shutil.copytree(trained, copy, dirs_exist_ok=True)
    for manifest in (copy / "run" / "checkpoints").rglob(MANIFEST):
        manifest.write_text(manifest.read_text().replace(str(trained), str(copy)))
    return copy


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    place = tmp_path_factory.mktemp("trained")
    write_rows(place, ROWS)
    train(composed(*RUN, *SETTINGS, "trainer.max_steps=1"), place / "base")
    shutil.move(place / "base" / "checkpoints" / "final", place / "model")
    train(composed(*settings_of(place)), place / "run")
    return place


def change_weights(place: Path) -> None:
    file = place / "model" / "model.safetensors"
    changed = {name: tensor * 1.001 for name, tensor in load_file(file).items()}
    file.unlink()  # mapped
    save_file(changed, file, metadata={"format": "pt"})


def change_answer(place: Path) -> None:
    write_rows(place, [*ROWS[:-1], {**ROWS[-1], "answer": "10"}])


def reorder(place: Path) -> None:
    write_rows(place, ROWS[::-1])


def change_both(place: Path) -> None:
    change_weights(place)
    reorder(place)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (change_weights, r"step_000001: the weights of model\.path changed after"),
        (change_answer, r"the training data changed after"),
        (reorder, r"the training data changed after"),
        (change_both, r"the weights of model\.path and the training data changed after"),
    ],
)
def test_another_model_or_other_data_under_the_same_path_are_refused(change, words, place):
    change(place)
    with pytest.raises(ConfigError, match=words):
        train(composed(*settings_of(place), "resume=auto", "trainer.max_steps=2"), place / "run")


def test_the_same_contents_in_another_layout_are_the_same(place):
    (place / "d.jsonl").write_text("\n".join(json.dumps(row, indent=None, separators=(",", ":")) for row in ROWS))
    train(composed(*settings_of(place), "resume=auto", "trainer.max_steps=2"), place / "run")


def test_a_checkpoint_without_fingerprints_is_resumed_and_that_is_said_once(place, capsys):
    change_weights(place)
    for manifest in (place / "run" / "checkpoints").rglob(MANIFEST):
        content = json.loads(manifest.read_text())
        del content["sources"]
        manifest.write_text(json.dumps(content))
    train(composed(*settings_of(place), "resume=auto", "trainer.max_steps=2"), place / "run")
    assert capsys.readouterr().out.count("has no fingerprints") == 1


def test_adapters_are_not_merged_into_another_model(place):
    run = place / "run"
    (run / ".hydra").mkdir()
    OmegaConf.save(composed(*settings_of(place)), run / ".hydra" / "config.yaml", resolve=True)
    OmegaConf.save([], run / ".hydra" / "overrides.yaml")
    OmegaConf.save({"hydra": {"runtime": {"choices": {"algo": "apo"}}}}, run / ".hydra" / "hydra.yaml")
    measured = ("checkpoint=all", "engine=transformers", "limit=2", "num_samples=1", f"output_dir={place / 'measured'}")
    change_weights(place)
    for merge in (
        lambda: export(composed(f"run={run}", config_name="export")),
        lambda: evaluate(composed(f"run={run}", *measured, config_name="evaluate")),
    ):
        with pytest.raises(ConfigError, match=r"the weights of model\.path changed after"):
            merge()


def test_an_export_that_fails_costs_no_checkpoint_and_resuming_makes_up_for_it(place, monkeypatch):
    def full(self, folder):
        (folder / "model.safetensors").write_bytes(b"half")
        raise OSError(28, "No space left on device")

    checkpoints = place / "run" / "checkpoints"
    expected = {path.name: path.read_bytes() for path in (checkpoints / "final").iterdir()}
    shutil.rmtree(place / "run")
    with monkeypatch.context() as patched:
        patched.setattr(Policy, "save_pretrained", full)
        with pytest.raises(OSError, match="No space left"):
            train(composed(*settings_of(place)), place / "run")
    assert sorted(path.name for path in checkpoints.iterdir()) == ["snapshots", "step_000001"]
    train(composed(*settings_of(place), "resume=auto"), place / "run")
    assert {path.name: path.read_bytes() for path in (checkpoints / "final").iterdir()} == expected
    assert (checkpoints / "adapter" / "adapter_model.safetensors").is_file()


def test_code_of_ones_own_may_change_and_is_said(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    code = tmp_path / "own_code_of_a_run.py"
    method = "def __call__(self, completions, **_):\n        return [float(bool(c)) for c in completions]"
    text = f"class Judge:\n    {method}\n\n\njudge = Judge()\n"  # an object, whose module has the file
    judge = ("reward=callable", "reward.function._target_=own_code_of_a_run.judge", "reward.format=text")
    own = (*judge, "checkpoint.save_every=1", "data.num_validation=0")
    for comment, steps in (("", 1), ("", 2), ("# mended\n", 3)):
        code.write_text(text + comment)
        train(composed(*RUN, *own, f"trainer.max_steps={steps}", "resume=auto"), tmp_path / "run")
        said = f"the code of {code.name} has changed since step_00000{steps - 1}" in capsys.readouterr().out
        assert said == bool(comment)

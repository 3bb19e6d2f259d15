"""A resumed run finds the model and the data that its checkpoint began with, and a finished run is exported at last."""

import json
import shutil
from pathlib import Path

import pytest
from omegaconf import OmegaConf
from safetensors.torch import load_file, save_file

from apo_lightning.checkpoints.folder import MANIFEST
from apo_lightning.checkpoints.origin import read_export
from apo_lightning.common.identity import read_sealed, sealed
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
        record = json.dumps(read_sealed(manifest)).replace(str(trained), str(copy))
        manifest.write_bytes(sealed(json.loads(record)))
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


def change_json(name: str, **changes: object):
    """Changes keys of a JSON file of the model's folder."""

    def change(place: Path) -> None:
        file = place / "model" / name
        file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))

    return change


def change_decoder(place: Path) -> None:
    """No token of a problem changes, and the text of completions does."""
    change_json("tokenizer.json", decoder={"type": "WordPiece", "prefix": "##", "cleanup": False})(place)


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
        (change_json("config.json", rms_norm_eps=0.5), r": the config of model\.path changed after"),
        (change_json("generation_config.json", eos_token_id=[2, 1]), r": the stop tokens of model\.path changed after"),
        (change_decoder, r": the tokenizer of model\.path changed after"),
    ],
)
def test_another_model_or_other_data_under_the_same_path_are_refused(change, words, place):
    change(place)
    with pytest.raises(ConfigError, match=words):
        train(composed(*settings_of(place), "resume=auto", "trainer.max_steps=2"), place / "run")


def test_the_same_contents_in_another_layout_are_the_same(place):
    change_json("config.json", transformers_version="4.57.3", dtype="bfloat16", _name_or_path="elsewhere")(place)
    (place / "d.jsonl").write_text("\n".join(json.dumps(row, indent=None, separators=(",", ":")) for row in ROWS))
    train(composed(*settings_of(place), "resume=auto", "trainer.max_steps=2"), place / "run")


def settings_recorded(place: Path) -> Path:
    """The run with what the command line leaves there too."""
    run = place / "run"
    (run / ".hydra").mkdir()
    OmegaConf.save(composed(*settings_of(place)), run / ".hydra" / "config.yaml", resolve=True)
    OmegaConf.save([], run / ".hydra" / "overrides.yaml")
    OmegaConf.save({"hydra": {"runtime": {"choices": {"algo": "apo"}}}}, run / ".hydra" / "hydra.yaml")
    return run


def measure(run: Path, *overrides: str):
    own = (f"run={run}", "engine=transformers", "limit=2", "num_samples=1", f"output_dir={run.parent / 'measured'}")
    return evaluate(composed(*own, *overrides, config_name="evaluate"))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (change_weights, r"the weights of model\.path changed after"),
        (change_json("config.json", hidden_act="relu"), r"the config of model\.path changed after"),
    ],
)
def test_adapters_are_not_merged_into_another_model(change, words, place):
    run = settings_recorded(place)
    change(place)
    for merge in (
        lambda: export(composed(f"run={run}", config_name="export")),
        lambda: measure(run, "checkpoint=all"),
        lambda: measure(run, "checkpoint=base"),
        lambda: measure(run, "support_anchor_size=4"),
    ):
        with pytest.raises(ConfigError, match=words):
            merge()


def train_without_room(monkeypatch, cfg, run: Path) -> None:
    """The disk is full when the policy is exported."""

    def full(self, folder):
        (folder / "model.safetensors").write_bytes(b"half")
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Policy, "save_pretrained", full)
        with pytest.raises(OSError, match="No space left"):
            train(cfg, run)


def exported(place: Path) -> dict[str, bytes]:
    """All files of the merged model, and the weights of the adapters: PEFT writes sets of names in any order."""
    root = place / "run" / "checkpoints"
    paths = (*(root / "final").iterdir(), root / "adapter" / "adapter_model.safetensors")
    return {str(path.relative_to(root)): path.read_bytes() for path in paths}


def test_an_export_that_fails_costs_no_checkpoint_and_resuming_makes_up_for_it(place, monkeypatch):
    checkpoints, expected = place / "run" / "checkpoints", exported(place)
    shutil.rmtree(place / "run")
    train_without_room(monkeypatch, composed(*settings_of(place)), place / "run")
    assert sorted(path.name for path in checkpoints.iterdir()) == ["snapshots", "step_000001"]
    train(composed(*settings_of(place), "resume=auto"), place / "run")
    assert exported(place) == expected


def test_the_export_of_a_shorter_run_does_not_pass_for_that_of_a_longer_one(place, monkeypatch):
    run, old = settings_recorded(place), place / "old"
    longer = composed(*settings_of(place), "resume=auto", "trainer.max_steps=2")
    shutil.copytree(run / "checkpoints" / "final", old)
    train_without_room(monkeypatch, longer, run)
    with pytest.raises(ConfigError, match=r"no checkpoints/final with an origin\.json"):
        measure(run)
    shutil.copytree(old, run / "checkpoints" / "final")  # as an earlier version left it
    with pytest.raises(ConfigError, match=r"checkpoints/final is of step 1, and the run was trained to 2: continue it"):
        measure(run)
    train(longer, run)
    assert [read_export(run / "checkpoints" / name).step for name in ("final", "adapter")] == [2, 2]


@pytest.mark.parametrize(
    "damage",
    [
        lambda root: [path.unlink() for path in (root / "final").iterdir()],
        lambda root: (root / "final" / "model.safetensors").unlink(),
        lambda root: (root / "final" / "generation_config.json").write_text("{}"),
        lambda root: shutil.rmtree(root / "adapter"),
    ],
)
def test_an_export_that_is_not_whole_is_written_again(place, damage):
    expected = exported(place)
    damage(place / "run" / "checkpoints")
    train(composed(*settings_of(place), "resume=auto"), place / "run")
    assert exported(place) == expected


def test_an_export_that_has_changed_is_not_measured(place):
    run = settings_recorded(place)
    file = run / "checkpoints" / "final" / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=r"final is damaged: model\.safetensors has changed since it was written"):
        measure(run)


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
        said = f"the code of {code.name} has changed since" in capsys.readouterr().out
        assert said == bool(comment)

"""The model card of exports."""

import json
import shutil

import pytest
import yaml
from huggingface_hub import ModelCard

from apo_lightning.run import evaluate, export
from apo_lightning.run.exporting import evaluations_of
from composing import composed
from processes import start_script
from running import RUN


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of two steps with held-out problems and a checkpoint after each step."""
    folder = tmp_path_factory.mktemp("run") / "run"
    command = (*RUN, "callbacks=quiet", "checkpoint.save_every=1", "seed=7", f"hydra.run.dir={folder}")
    start_script("train", *command).finish()
    return folder


def export_of(run, *overrides):
    return export(composed(f"run={run}", *overrides, config_name="export"))


def test_the_final_model_has_a_card_with_settings_and_the_held_out_result(run):
    card = ModelCard.load(run / "checkpoints" / "final" / "README.md")
    summary = json.loads((run / "summary.json").read_text())["held_out"]["arithmetic"]
    assert card.data.library_name == "transformers"
    assert card.data.tags == ["reinforcement-learning", "rlvr", "apo"]
    assert card.data.base_model is None  # random weights
    assert "| base model | tiny, with random weights |" in card.text
    assert "| `seed` | `7` |" in card.text
    assert "| `algo.loss.pull_coef` | `0.1` |" in card.text
    assert f"pass@1 {summary['pass@1_after']:.3f}" in card.text
    assert "paired 95% interval [" in card.text
    assert "## Known limits" in card.text


def test_an_earlier_checkpoint_is_said_not_to_be_evaluated(run):
    card = (export_of(run, "checkpoint=step_000001") / "README.md").read_text()
    assert "\n1 of 2 steps" in card
    assert "This model was not evaluated." in card


def test_a_card_has_the_evaluations_of_its_own_weights(run, tmp_path, capsys):
    evaluated = tmp_path / "run"
    shutil.copytree(run, evaluated)
    measure = (f"run={evaluated}", "engine=transformers", "num_samples=2", "limit=3")
    [result] = evaluate(composed(*measure, config_name="evaluate"))
    broken = evaluated / "evaluation" / "broken" / "results.json"
    broken.parent.mkdir()
    broken.write_text("{")
    card = (export_of(evaluated, f"to={tmp_path / 'export'}") / "README.md").read_text()
    value = result.metrics["pass@1"]
    line = "- arithmetic, 3 problems × 2 samples at temperature 1: pass@1 "
    numbers = f"{100 * value.value:.2f} % [{100 * value.low:.2f}, {100 * value.high:.2f}], pass@2 "
    assert line + numbers in card
    assert list(evaluations_of("0" * 64, evaluated / "evaluation", "float32")) == []
    assert f"not in the model card: {broken}: not JSON" in capsys.readouterr().out
    rounded = export_of(evaluated, "dtype=bfloat16", f"to={tmp_path / 'rounded'}")
    assert "measured before the weights were rounded to bfloat16" in (rounded / "README.md").read_text()


def test_a_card_names_base_and_data_of_the_hub_and_no_local_folder(run, tmp_path):
    from apo_lightning.callbacks.model_card import model_card

    (tmp_path / ".hydra").mkdir()
    (tmp_path / ".hydra" / "hydra.yaml").write_text((run / ".hydra" / "hydra.yaml").read_text())
    config = yaml.safe_load((run / ".hydra" / "config.yaml").read_text())
    config["model"]["path"], config["data"]["hub"] = "org/base", {"hub_id": "org/problems"}
    (tmp_path / ".hydra" / "config.yaml").write_text(yaml.safe_dump(config))
    card = ModelCard(model_card(tmp_path, step=2))
    assert (card.data.base_model, card.data.datasets) == ("org/base", ["org/problems"])
    config["model"]["path"] = str(tmp_path / "secret")
    (tmp_path / ".hydra" / "config.yaml").write_text(yaml.safe_dump(config))
    assert "secret" not in model_card(tmp_path, step=2)

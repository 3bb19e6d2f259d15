"""The upload of an export to a stand-in of the hub."""

import huggingface_hub.constants
import pytest
from stand_in_hub import stand_in_hub

from apo_lightning.errors import ConfigError
from apo_lightning.run import export
from composing import composed
from processes import start_script
from running import RUN


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of two steps with a checkpoint after each step."""
    folder = tmp_path_factory.mktemp("run") / "run"
    command = (*RUN, "callbacks=quiet", "checkpoint.save_every=1", "seed=7", f"hydra.run.dir={folder}")
    start_script("train", *command).finish()
    return folder


def export_of(run, *overrides):
    return export(composed(f"run={run}", *overrides, config_name="export"))


def test_an_export_is_uploaded_to_a_private_repository(run, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_token")
    with stand_in_hub() as hub:
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", hub.url)
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
        folder = export_of(run, f"to={tmp_path / 'export'}", "push_to_hub=lab/model")
    assert hub.created[0]["name"] == "model"
    assert hub.created[0].get("visibility") == "private" or hub.created[0].get("private")
    assert hub.tokens == {"Bearer hf_token"}
    assert hub.files == {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_refused_upload_says_why_and_how_to_try_again(run, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_token")
    with stand_in_hub() as hub:
        hub.refuses = True
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", hub.url)
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
        with pytest.raises(ConfigError, match=r"push_to_hub=lab/model: .*hf upload lab/model .*export tries again"):
            export_of(run, f"to={tmp_path / 'export'}", "push_to_hub=lab/model")
    assert (tmp_path / "export" / "config.json").is_file()


def test_a_name_or_token_that_cannot_work_is_refused_before_weights_are_loaded(run, tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match="push_to_hub=a/b/c: "):
        export_of(run, "push_to_hub=a/b/c")
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr(huggingface_hub.constants, "HF_TOKEN_PATH", str(tmp_path / "none"))
    with pytest.raises(ConfigError, match="there is no token for the hub: set HF_TOKEN"):
        export_of(run, "push_to_hub=lab/model")

import pytest

from apo_lightning.callbacks import ExportPolicy


def test_the_policy_is_written_when_training_ends(scripted_run):
    run = scripted_run([ExportPolicy()])
    assert [path.name for path in (run.folder / "checkpoints").iterdir()] == ["final"]
    assert (run.folder / "checkpoints" / "final" / "config.json").read_text() == "{}"


def test_an_older_export_is_replaced_as_a_whole(scripted_run, tmp_path):
    stale = tmp_path / "checkpoints" / "final" / "model-00002.safetensors"
    stale.parent.mkdir(parents=True)
    stale.write_text("of a larger model")
    scripted_run([ExportPolicy()])
    assert {path.name for path in stale.parent.iterdir()} == {"README.md", "config.json", "origin.json"}


def test_an_interrupted_run_exports_nothing(scripted_run, tmp_path):
    def fails(step, max_steps):
        raise RuntimeError("no more steps")

    with pytest.raises(RuntimeError, match="no more steps"):
        scripted_run([ExportPolicy()], step_output=fails)
    assert not (tmp_path / "checkpoints").exists()

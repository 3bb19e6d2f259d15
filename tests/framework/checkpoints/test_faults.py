"""Wherever a run is killed or finds the disk full, the folder can be continued, to the bytes of a run that was not."""

from pathlib import Path

import pytest

from processes import start_script
from running import HELPERS, RUN, SIGNAL, read_metrics, without_clock

SIZES = (
    *(*RUN, *SIGNAL, "callbacks=[summary,export,rollout_writer]", "data.max_completion_tokens=4"),
    *("data.num_validation=4", "trainer.max_steps=2", "checkpoint.save_every=1", "checkpoint.keep=1", "resume=auto"),
)


def start(folder: Path, counts: Path, *fault: str):
    fault_of = f"+callbacks.fault={{_target_: faulting.Fault, folder: {folder}, counts: {counts}, {', '.join(fault)}}}"
    given = [fault_of] if fault else []
    return start_script("train", *SIZES, *given, f"hydra.run.dir={folder}", PYTHONPATH=HELPERS, OMP_NUM_THREADS="1")


def content(folder: Path) -> tuple:
    weights = (folder / "checkpoints" / "final" / "model.safetensors").read_bytes()
    rollouts = {path.name: path.read_bytes() for path in (folder / "rollouts").iterdir()}
    return weights, [without_clock(row) for row in read_metrics(folder)], rollouts


@pytest.mark.slow(40)
def test_a_run_that_is_killed_or_refused_at_any_change_of_its_folder_goes_on_to_the_same_bytes(tmp_path):
    whole, counts = tmp_path / "whole", tmp_path / "counts"
    start(whole, counts, "at: 0").finish()
    num_changes = len(counts.read_text().splitlines())
    expected = content(whole)
    for index, number in enumerate(range(num_changes, num_changes // 8, -(num_changes // 5))):
        kills, folder = index % 2 == 0, tmp_path / f"{number}"
        first = start(folder, counts, f"at: {number}", f"kills: {str(kills).lower()}")
        assert first.wait() == [-9] if kills else first.wait() in ([0], [1]), first.said
        assert "Traceback" not in first.said
        start(folder, counts).finish()
        assert content(folder) == expected, (number, kills)
        assert not [path for path in folder.rglob(".*") if path.suffix in (".partial", ".superseded")]

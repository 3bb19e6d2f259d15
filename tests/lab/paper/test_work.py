"""The states of a cell, and that one process at a time works on it."""

from dataclasses import replace

import pytest

from apo_lab.paper.cells import PaperCell
from apo_lab.paper.work import RECORD, _lock, _record, owner_of, state_of, work_off
from apo_lightning.errors import ConfigError


@pytest.fixture
def run(tmp_path) -> PaperCell:
    return PaperCell(name="train/x", command="train", overrides=("model=tiny",), folder=tmp_path / "train" / "x")


@pytest.fixture
def measured(tmp_path, run) -> PaperCell:
    folder = tmp_path / "evaluate" / "x"
    return PaperCell(name="evaluate/x", command="evaluate", overrides=("model=tiny",), folder=folder, needs=run)


def finish(cell: PaperCell, *, is_finished: bool = True) -> None:
    cell.folder.mkdir(parents=True, exist_ok=True)
    _record(cell, is_finished=is_finished)


@pytest.fixture
def executed(monkeypatch) -> list[str]:
    """Names of cells that a stand-in for the child process has executed; it fails for those of a name with "bad"."""
    names = []

    def execute(cell, lock):
        names.append(cell.name)
        finish(cell, is_finished="bad" not in cell.name)
        return "bad" not in cell.name

    monkeypatch.setattr("apo_lab.paper.work._execute", execute)
    return names


def test_a_cell_is_missing_then_begun_then_running_then_done(run):
    assert state_of(run) == "missing"
    finish(run, is_finished=False)
    assert state_of(run) == "begun"
    with _lock(run) as lock:
        assert lock is not None
        lock.write("process 7")
        lock.flush()
        assert state_of(run) == "running"
        assert owner_of(run) == "process 7"
        with _lock(run) as second:
            assert second is None
    assert state_of(run) == "begun"
    finish(run)
    assert state_of(run) == "done"


@pytest.mark.parametrize("is_finished", [True, False])
def test_a_cell_of_another_configuration_and_what_reads_its_weights_are_stale_and_refused(run, measured, is_finished):
    finish(run, is_finished=is_finished)
    finish(measured)
    other = replace(run, overrides=("model=tiny", "seed=2"))
    assert state_of(other) == state_of(replace(measured, needs=other)) == "stale"
    with pytest.raises(ConfigError, match="1 of 1 cells were made with another configuration"):
        work_off([other], None)


def test_a_broken_record_names_the_folder_to_move(run):
    finish(run)
    (run.folder / RECORD).write_text("{")
    with pytest.raises(ConfigError, match="is no record of a cell"):
        state_of(run)


def test_a_cell_waits_for_its_run_a_failed_one_is_not_tried_again_and_the_limit_counts_what_is_finished(
    tmp_path, run, measured, executed
):
    bad = replace(run, name="bad", folder=tmp_path / "bad", overrides=("model=tiny", "seed=3"))
    waits = replace(measured, name="waits", folder=tmp_path / "waits", needs=bad)
    cells = [bad, waits, measured, run]
    with pytest.raises(ConfigError, match=f"1 of 4 cells failed: {bad.folder}/output.txt"):
        work_off(cells, 1)
    assert executed == ["bad", "train/x"]
    with pytest.raises(ConfigError, match="1 of 4 cells failed"):
        work_off(cells, None)
    assert executed == ["bad", "train/x", "bad", "evaluate/x"]


def test_a_cell_of_another_process_is_left_to_it(run, measured, executed):
    finish(run, is_finished=False)
    with _lock(run):
        work_off([run, measured], None)
    assert executed == []


def test_several_tasks_on_the_same_gpus_are_refused(monkeypatch):
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "8")
    with pytest.raises(ConfigError, match="srun started 8 tasks"):
        work_off([], None)

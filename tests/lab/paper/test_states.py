import os
from dataclasses import replace
from pathlib import Path

import pytest

from apo_lab.paper.cells import Cell
from apo_lab.paper.states import RECORD, current_record, is_ready, move_aside, state_of, write_record_of
from apo_lightning.errors import ConfigError


@pytest.fixture
def run(tmp_path) -> Cell:
    return Cell(name="train/x", command="train", overrides=("model=tiny",), folder=tmp_path / "train" / "x")


@pytest.fixture
def measured(tmp_path, run) -> Cell:
    folder = tmp_path / "evaluate" / "x"
    return Cell(name="evaluate/x", command="evaluate", overrides=("model=tiny",), folder=folder, needs=run)


def finish(cell: Cell) -> None:
    write_record_of(cell, current_record(cell, is_finished=True))


def train(run: Cell, weights: bytes = b"weights") -> Path:
    file = run.folder / "checkpoints" / "final" / "model.safetensors"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(weights)
    finish(run)
    return file


def test_a_cell_is_missing_then_begun_then_done(run):
    assert state_of(run) == "missing"
    write_record_of(run, current_record(run, is_finished=False))
    assert state_of(run) == "begun"
    finish(run)
    assert state_of(run) == "done"


@pytest.mark.parametrize("is_finished", [True, False])
def test_a_cell_of_another_configuration_is_stale_finished_or_not(run, is_finished):
    write_record_of(run, current_record(run, is_finished=is_finished))
    assert state_of(replace(run, overrides=("model=tiny", "seed=2"))) == "stale"


def test_an_evaluation_waits_for_its_run_and_is_stale_after_other_weights(run, measured):
    assert not is_ready(measured)
    file = train(run)
    assert is_ready(measured)
    finish(measured)
    assert state_of(measured) == "done"
    # The same bytes at another time, as after a copy, are the same weights.
    os.utime(file, (0, 0))
    assert state_of(measured) == "done"
    train(run, b"others")
    assert state_of(measured) == "stale"
    train(run, b"weights")
    assert state_of(measured) == "done"


def test_an_evaluation_of_a_run_that_is_not_done_is_stale(run, measured):
    train(run)
    finish(measured)
    write_record_of(run, current_record(run, is_finished=False))
    assert state_of(measured) == "stale"
    assert not is_ready(measured)


def test_stale_folders_are_kept_one_beside_the_other(tmp_path, run):
    for number in ("1", "2"):
        finish(run)
        assert move_aside(run, tmp_path) == tmp_path / "stale" / "train" / "x" / number
        assert (tmp_path / "stale" / "train" / "x" / number / RECORD).is_file()
        assert state_of(run) == "missing"


def test_a_broken_record_names_the_folder_to_move(run):
    finish(run)
    (run.folder / RECORD).write_text("{")
    with pytest.raises(ConfigError, match="is no record of a cell"):
        state_of(run)

"""`apo paper` in miniature: from the list of cells to the page, killed once on the way."""

import json
import os
import re
import shutil
import signal
import time
from pathlib import Path

import pytest

from apo_lab.commands.paper import paper
from apo_lab.paper.cells import PaperCell, list_cells
from apo_lab.paper.work import OUTPUT, owner_of, state_of
from composing import ROOT, composed
from processes import start_script

RUN = "train/paper/qwen_math7b_apo/seed_1"
TRAINING = ("bases=[]", "coverage_of=[]")
"""The run comes first."""
BASE = ROOT / "docs" / "lab" / "bases" / "locks_a" / "locks"


@pytest.fixture(autouse=True)
def base_model(tmp_path, monkeypatch):
    """Where `apo pretrain data=locks` in the working directory puts it."""
    shutil.copytree(BASE, tmp_path / "outputs" / "bases" / "locks")
    monkeypatch.chdir(tmp_path)


def miniature(folder: Path, *overrides: str) -> list[str]:
    """A small list, of training, evaluations and coverage; `overrides` are added to those of training."""
    own = ["trainer.max_steps=4", "checkpoint.save_every=1", "data.num_validation=16", *overrides]
    standard = composed("cells=miniature", config_name="paper")
    (folder / "solutions.jsonl").write_text('{"problem": "q407913:", "solution": "C73"}\n' * 3)
    return [
        "cells=miniature",
        "experiments=[paper/qwen_math7b_apo]",
        "distribution_of=[]",  # evaluations with other settings
        "seeds=[1]",
        listed("overrides", *standard.overrides, *own),
        listed(
            "evaluate_overrides",
            *standard.evaluate_overrides,
            "benchmark.locks.limit=16",
            "benchmark.locks.num_samples=8",
        ),
        "coverage_of=[lab_locks]",
        listed("coverage_overrides", *standard.coverage_overrides, f"coverage.path={folder}/solutions.jsonl"),
        f"output_dir={folder}/paper",
    ]


def listed(key: str, *overrides: str) -> str:
    return f"{key}={json.dumps(overrides, separators=(',', ':'))}"


def cells_of(words: list[str]) -> dict[str, PaperCell]:
    return {cell.name: cell for cell in list_cells(composed(*words, config_name="paper"))}


@pytest.mark.long
@pytest.mark.slow(90)
def test_a_miniature_is_killed_resumed_and_ends_in_the_page(tmp_path, capsys):
    words = miniature(tmp_path)
    cells, folder = cells_of(words), tmp_path / "paper"
    solutions = (tmp_path / "solutions.jsonl").rename(tmp_path / "elsewhere.jsonl")  # coverage fails, the others go on
    killed = start_script("paper", "run", *words, *TRAINING, cwd=tmp_path)
    (process,) = killed.processes
    while not list((folder / RUN / "checkpoints").glob("step_*")):
        assert process.is_alive(), killed.said
        time.sleep(0.05)
    assert f"process {process.pid} on " in owner_of(cells[RUN])
    child = int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text())
    process.kill()
    assert killed.wait() == [-signal.SIGKILL]
    # The child goes on, and nobody else may write into its folder.
    assert state_of(cells[RUN]) == "running"
    os.kill(child, signal.SIGKILL)
    while state_of(cells[RUN]) == "running":
        time.sleep(0.05)
    assert state_of(cells[RUN]) == "begun"

    resumed = start_script("paper", "run", *words, cwd=tmp_path)
    assert resumed.wait() == [1]
    lines = resumed.said.splitlines()
    assert f"resumed  {RUN}" in lines
    assert [line.split()[1] for line in lines if line.startswith("done")] == [
        "evaluate/base_lab_locks",
        RUN,
        "evaluate/paper/qwen_math7b_apo/seed_1",
    ]
    assert any(line.startswith("failed   coverage/lab_locks") for line in lines)
    assert re.search(r"1 of 4 cells failed: .*/coverage/lab_locks/output.txt says why", lines[-1])
    assert "solutions.jsonl" in (folder / "coverage" / "lab_locks" / OUTPUT).read_text()
    assert "resuming from" in (folder / RUN / OUTPUT).read_text()

    solutions.rename(tmp_path / "solutions.jsonl")
    assert start_script("paper", "run", *words, cwd=tmp_path).finish().splitlines()[-1] == "4 of 4 cells are done"
    paper(composed(*words, config_name="paper"))
    assert capsys.readouterr().out.splitlines()[-1] == "4 done of 4 cells"

    paper(composed(*words, "action=report", config_name="paper"))
    page = (folder / "report" / "report.html").read_text()
    assert "4 done of 4 cells" in page
    tables = {path.stem for path in (folder / "report" / "tables").glob("*.md")}
    assert tables >= {"main_results", "health", "comparisons", "coverage", "hyperparameters"}
    assert {path.stem for path in (folder / "report" / "figures").glob("*.png")} >= {"pareto", "pass_at_k", "entropy"}


@pytest.mark.slow
def test_a_stop_signal_reaches_the_run_which_saves_what_it_has(tmp_path):
    words = [*miniature(tmp_path, "trainer.max_steps=100000"), *TRAINING]
    stopped = start_script("paper", "run", *words, cwd=tmp_path)
    (process,) = stopped.processes
    checkpoints = tmp_path / "paper" / RUN / "checkpoints"
    while not list(checkpoints.glob("step_*")):
        assert process.is_alive(), stopped.said
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGTERM)
    assert stopped.wait() == [75]
    assert f"stopped  at {RUN}" in stopped.said
    assert "stopped by SIGTERM" in (tmp_path / "paper" / RUN / OUTPUT).read_text()
    assert state_of(cells_of(words)[RUN]) == "begun"

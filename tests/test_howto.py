"""The how-to pages do what they say: their files are written into a folder, and their runs are made there."""

import json
import re
import shlex
import sys

import pytest

from apo_lab.pretraining.base_models import pretrain
from apo_lightning.run import train
from apo_lightning.run.choices import composed, expand_glob
from apo_lightning.run.commands import find_command
from composing import ROOT
from running import RUN, training_rows

PAGES = sorted((ROOT / "docs" / "howto").glob("*.md"))
FILE = re.compile(r"^```(?:python|yaml)\n# ((?:my_package|configs)/\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
OWN_RUN = re.compile(r"^\$ apo train ((?!-m).*(?:model=tiny|model=small).*?)(?: +#.*)?$", re.MULTILINE)
COMMAND = re.compile(r"^\$ apo (\w+) (.+)$", re.MULTILINE)
DEBUGGING = ROOT / "docs" / "howto" / "debugging.md"
PUZZLE = ROOT / "docs" / "howto" / "puzzle.md"
LEGS = "".join(f'{{"problem": "How many legs have {n} cats?", "answer": "{4 * n}"}}\n' for n in range(1, 9))
RUNS = {page: OWN_RUN.findall(page.read_text()) for page in PAGES}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working directory from which Python imports, with the data set of the page about data."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "legs.jsonl").write_text(LEGS)
    yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0] == "my_package"]:
        del sys.modules[name]


def show_files(page, folder):
    """Write the files that a page shows."""
    for name, text in FILE.findall(page.read_text()):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


@pytest.mark.parametrize("page", [page for page in PAGES if RUNS[page]], ids=lambda page: page.stem)
def test_the_runs_of_a_page_train_with_the_files_that_it_shows(page, folder):
    show_files(page, folder)
    for number, line in enumerate(RUNS[page]):
        typed = line.split()
        small = [key for key in RUN if not (key.startswith("data.max_operand") and "data=legs" in typed)]
        train(composed("train", [*small, "trainer.max_steps=1", *typed]), folder / str(number))
        rows = training_rows(folder / str(number))
        assert rows
        logged = set(re.findall(r"mine/\w+", page.read_text()))
        assert all(rows[-1][key] for key in logged)


def test_the_puzzle_of_its_page_has_a_base_model_whose_run_measures_it_exactly(folder):
    show_files(PUZZLE, folder)
    few = ("data.num_train=8", "data.num_validation=4")
    short = ("num_steps=1", "scheduler.num_warmup_steps=0", "demonstrations_per_batch=4")
    pretrain(composed("pretrain", ["data=pairs", *few, *(f"pretraining.{each}" for each in short)]))
    small = ("prompts_per_step=2", "prompts_per_minibatch=2", "trainer.max_steps=1", "trainer.val_check_interval=1")
    train(composed("train", ["experiment=pairs", *few, *small]), folder / "run")
    first, last = map(json.loads, (folder / "run" / "exact" / "metrics.jsonl").read_text().splitlines())
    assert (first["step"], last["step"]) == (0, 1)
    # Twice as many samples find no less; "first" is the page's own kind of token.
    assert 0 < first["pass@1"] <= first["pass@64"] <= 1
    assert last["entropy/first"] > 0


def test_every_page_about_an_own_part_or_lightning_has_a_run():
    with_runs = {"algorithm", "callback", "data", "lightning", "model", "reward"}
    assert {page.stem for page in PAGES if RUNS[page]} == with_runs


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_command_of_a_page_composes(page, folder):
    show_files(page, folder)
    for name, line in COMMAND.findall(page.read_text()):
        command = find_command(name)
        typed = [expand_glob(word) for word in command.overrides(shlex.split(line, comments=True)) if word != "-m"]
        composed(command.config, [word if "[" in word else word.split(",")[0] for word in typed])


def test_every_metric_of_the_page_about_debugging_is_on_the_page_of_metrics():
    rows = (ROOT / "docs" / "metrics.md").read_text()
    named = re.findall(r"`((?:train|reward|sync|support|apo|val|time|perf)/[\w@/]+)`", DEBUGGING.read_text())
    assert len(named) > 20
    keys = [key.replace("@1", "@K") for key in named]
    assert [key for key in keys if f"| `{key}` |" not in rows] == []

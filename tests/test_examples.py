"""Each folder of `examples/` runs as its README says, in a copy, with few steps."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pandas
import pytest
from nbclient import NotebookClient

from composing import ROOT
from processes import start_script

EXAMPLES = ROOT / "examples"
NOTEBOOK = EXAMPLES / "locks_pareto" / "locks_pareto.ipynb"
COMMAND = re.compile(r"^\$ ((?:.*\\\n)*.*)$", re.MULTILINE)
LOCKS = ("data.num_validation=8", "trainer.max_steps=2", "trainer.val_check_interval=2")
FEW_STEPS = {
    "own_loss": LOCKS,
    "own_reward": ("trainer.max_steps=2",),
    "own_part": (),
    "own_callback": ("trainer.max_steps=5", "algo.dynamic_sampling.max_rounds=1"),
    "own_data_and_model": ("data.num_validation=8", "trainer.max_steps=2"),
    "own_diagnostic": (*LOCKS, "callbacks.distinct_answers.every_n_steps=1"),
    "plain_script": (),
    "code_reward": ("trainer.max_steps=1", "group_size=2", "data.max_completion_tokens=8"),
}


def copied(name: str, folder: Path) -> Path:
    """The example in a folder of its own, where `docs` is as far away as in the project."""
    (folder / "docs").symlink_to(ROOT / "docs")
    return Path(shutil.copytree(EXAMPLES / name, folder / "examples" / name))


def commands_of(page: Path) -> list[str]:
    """The commands of the page's first console block, but for the change of directory."""
    block = re.search(r"```console\n(.*?)```", page.read_text(), re.DOTALL)
    assert block is not None
    enter, *others = COMMAND.findall(block[1])
    assert enter == f"cd {page.parent.relative_to(ROOT)}"
    return [command.replace("\\\n", " ") for command in others]


def run_command(command: str, folder: Path, few_steps: tuple[str, ...]) -> str:
    """What the command says, started in the folder."""
    words = shlex.split(command)
    variables = [word.removeprefix("PYTHONPATH=") for word in words[:1] if word.startswith("PYTHONPATH=")]
    program, *arguments = words[len(variables) :]
    installed = str(folder / "installed")
    if program == "pip":
        return install(folder, installed)
    if program == "python" and arguments[0] == "-c":
        (folder / "command.py").write_text(arguments.pop(1))
        arguments[0] = "command.py"
    name = arguments.pop(0)
    given = few_steps if program == "apo" else ()
    paths = os.pathsep.join([installed, *variables])
    return start_script(name, *arguments, *given, cwd=folder, PYTHONPATH=paths).finish()


def install(folder: Path, target: str) -> str:
    """`pip install .` into a folder, with what is installed here and without an index."""
    offline = ("--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--target", target)
    return subprocess.run(
        [sys.executable, "-m", "pip", "install", *offline, "."], cwd=folder, check=True, capture_output=True, text=True
    ).stdout


def play(name: str, folder: Path) -> list[str]:
    """What each command of the example's README says."""
    example = copied(name, folder)
    commands = commands_of(EXAMPLES / name / "README.md")
    # A command that reads the completions of the last step.
    return [run_command(re.sub(r"step_\d+", "step_000002", line), example, FEW_STEPS[name]) for line in commands]


def metrics(folder: Path) -> pandas.DataFrame:
    """Of the only run below the folder."""
    [path] = folder.rglob("metrics.csv")
    return pandas.read_csv(path)


def test_every_folder_of_examples_is_run():
    assert {path.parent.name for path in EXAMPLES.glob("*/README.md")} == {*FEW_STEPS, NOTEBOOK.parent.name}
    assert {path.name for path in EXAMPLES.iterdir() if path.is_dir()} == {*FEW_STEPS, NOTEBOOK.parent.name}


def test_own_loss_trains_beside_grpo_and_its_table_has_both(tmp_path):
    *_, table = play("own_loss", tmp_path)
    assert re.findall(r"^(\w+) +2\.0 +0\.\d+ +0\.\d+$", table, re.MULTILINE) == ["grpo", "softer"]


def test_own_reward_pays_and_its_completions_are_read(tmp_path):
    *_, table = play("own_reward", tmp_path)
    assert table.splitlines()[0].split() == ["problem", "completion", "reward"]
    assert (metrics(tmp_path)["train/reward"] > 0).any()


def test_own_callback_logs_its_number(tmp_path):
    *_, table = play("own_callback", tmp_path)
    [logged] = re.findall(r"^\d+ +5 +([\d.]+)$", table, re.MULTILINE)
    [path] = tmp_path.rglob("step_000005.jsonl")
    wrong = pandas.read_json(path, lines=True).query("status != 'correct'")
    assert float(logged) == pytest.approx(wrong["num_tokens"].mean(), abs=1e-5)


def test_own_part_trains_and_goes_on_to_the_bit(tmp_path):
    whole, half, resumed = (re.findall(r"weights sha256 (\w+)", said) for said in play("own_part", tmp_path))
    assert whole == resumed != half


def test_own_model_trains_on_own_data(tmp_path):
    *_, said = play("own_data_and_model", tmp_path)
    assert "sorting: 721 of 729 problems to train on, 8 held out" in said
    # Half of the demonstrations were right; a model that had learnt nothing would get none.
    assert metrics(tmp_path)["train/pass@1"].max() > 0.3


def test_own_package_brings_its_callback_wherever_apo_is_started(tmp_path):
    *_, table = play("own_diagnostic", tmp_path)
    assert len(re.findall(r"^\d+ +[12] +0\.\d+ +[1-8]\.\d+$", table, re.MULTILINE)) == 2
    assert metrics(tmp_path)["distinct/correct_answers"].max() <= 8


def test_a_plain_script_trains_until_lightnings_early_stopping_ends_it(tmp_path):
    *_, table = play("plain_script", tmp_path)
    assert re.search(r"^1 +1 +0\.1\d+$", table, re.MULTILINE)
    rows = metrics(tmp_path)
    assert rows["step"].max() < 60
    assert rows["train/reward"].max() > 0.9
    assert rows["lr-AdamW"].nunique() == 6  # the warm-up
    assert not list(tmp_path.rglob("*.ckpt"))


def test_code_is_judged_in_the_sandbox(tmp_path):
    _, judged, _ = play("code_reward", tmp_path)
    assert '[[true, 3], [false, "TypeError"]]' in judged
    assert float(metrics(tmp_path)["reward/num_error"].iloc[0]) == 0
    [path] = tmp_path.rglob("step_000001.jsonl")
    assert {json.loads(line)["extra"]["ran"] for line in path.read_text().splitlines()} == {False}


@pytest.mark.long
@pytest.mark.slow
def test_the_notebook_ends_in_the_figure_and_the_table_of_both_methods(tmp_path, monkeypatch):
    monkeypatch.setenv("NUM_STEPS", "1")
    folder = copied(NOTEBOOK.parent.name, tmp_path)
    notebook = nbformat.read(folder / NOTEBOOK.name, as_version=4)
    for cell in notebook.cells:
        cell.pop("outputs", None)
    NotebookClient(notebook, timeout=None, resources={"metadata": {"path": str(folder)}}).execute()
    *_, figure, table = (cell.outputs[-1]["data"] for cell in notebook.cells if cell.get("outputs"))
    assert "image/png" in figure
    assert re.findall(r"^(grpo|apo) +0\.\d+ +0\.\d+ +0\.\d+$", table["text/plain"], re.MULTILINE) == ["grpo", "apo"]


def test_the_committed_notebook_was_run_and_is_small():
    code = [cell for cell in nbformat.read(NOTEBOOK, as_version=4).cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    kinds = {output.output_type for cell in code for output in cell.outputs}
    assert kinds == {"execute_result", "display_data"}  # neither an error nor a warning
    assert NOTEBOOK.stat().st_size < 100_000

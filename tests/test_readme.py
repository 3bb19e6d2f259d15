"""The README is one screen; commands of all pages are composed, and the modules that they run exist."""

import re
import runpy
import shlex
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from apo_lightning.losses import GRPO
from apo_lightning.run.choices import composed, expand_glob
from apo_lightning.run.commands import find_command
from apo_lightning.types import LossInputs
from composing import ROOT

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
PROMPT = re.compile(r"^\$ ((?:.*\\\n)*.*)$", re.MULTILINE)
INLINE = re.compile(r"`((?:apo|python -m apo_lightning|python \w+\.py) \w[^`<]+)`")
MODULE = re.compile(r"\bpython -m ([\w.]+)")
SCRIPT = re.compile(r"\bpython (\w+\.py)")


def command_of(line: str) -> tuple[str, tuple[str, ...]] | None:
    """Name and arguments of the `apo` command in a line of a shell, whatever starts it; None: the line has none."""
    words = shlex.split(line.replace("\\\n", " "), comments=True)
    for place, word in enumerate(words):
        if word in ("train.py", "evaluate.py"):
            return word.removesuffix(".py"), tuple(words[place + 1 :])
        is_apo = word == "apo" or words[max(0, place - 1) : place + 1] == ["-m", "apo_lightning"]
        if is_apo and "".join(words[place + 1 : place + 2]).isalpha():
            return words[place + 1], tuple(words[place + 2 :])
    return None


def commands_of(pages: list[Path]) -> list[tuple[str, str, tuple[str, ...]]]:
    """(page, command, arguments) of every command that the pages show, in a console or within a sentence."""
    found = {}
    for page in pages:
        text = page.read_text()
        for line in [*PROMPT.findall(text), *INLINE.findall(text)]:
            if (command := command_of(line)) is not None:
                found[page.name, *command] = None
    return list(found)


COMMANDS = commands_of(PAGES)


def test_the_readme_is_one_screen_with_a_picture_and_ci_runs_its_test_command_and_more():
    text = (ROOT / "README.md").read_text()
    runs = {"README.md": "$ make test ", ".ci/run": "\nmake test-all ", ".github/workflows/ci.yml": ": make test-all\n"}
    assert [name for name, command in runs.items() if command not in (ROOT / name).read_text()] == []
    decimals = [len(number) for number in re.findall(r"[+-]\d+\.(\d+) \[", text)]
    assert len(decimals) <= 6
    assert len(set(decimals)) == 1
    assert len(text) <= 4500
    assert len(text.splitlines()) <= 60
    assert len(re.findall(r"!\[[^]]+\]\(docs/\S+\.svg\)", text)) == 1


def test_the_loss_of_the_example_scales_the_push_and_leaves_the_rest():
    shown = runpy.run_path(str(ROOT / "examples" / "own_loss" / "softer.py"))
    inputs = LossInputs(
        token_ids=torch.tensor([0, 1]),
        sequence_ids=torch.tensor([0, 1]),
        logprobs=torch.tensor([-1.0, -1.0]),
        old_logprobs=torch.tensor([-1.0, -1.0]),
        advantages=torch.tensor([2.0, -2.0]),
        is_correct=torch.tensor([True, False]),
    )
    # At ratio 1 the loss is −A: −2 and, halved, 1 instead of 2.
    assert shown["SofterPush"](scale=0.5)(inputs).per_token.tolist() == [-2.0, 1.0]
    assert GRPO()(inputs).per_token.tolist() == [-2.0, 2.0]
    mask = shown["SofterPush"]().needs.gradient_mask(torch.tensor([2.0, 0.0]), torch.tensor([True, True]))
    assert mask.tolist() == [True, False]


@pytest.mark.parametrize(("page", "name", "arguments"), COMMANDS)
def test_every_command_composes(page, name, arguments):
    command = find_command(name)
    if command.config is None:
        return
    # Submitit is an extra.
    left_out = re.compile(r"hydra[/.]launcher|-|job$|.*(…|\{)")
    typed = [expand_glob(word) for word in command.overrides(arguments) if not left_out.match(word)]
    is_list = re.compile(r"=\[.*\]$", re.DOTALL)
    composed(command.config, [word if is_list.search(word) else word.split(",")[0] for word in typed])


def test_commands_are_found_on_the_pages_that_have_them():
    by_page = {page: {name for found, name, words in COMMANDS if found == page and words} for page, *_ in COMMANDS}
    assert by_page["README.md"] >= {"train"}
    assert by_page["commands.md"] >= {"train", "evaluate", "preflight", "report"}
    assert by_page["evaluating.md"] >= {"train", "evaluate", "report", "coverage"}
    assert by_page["distributed.md"] == {"train"}
    assert by_page["preflight.md"] == {"preflight"}


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_every_module_and_script_that_a_page_runs_exists(page):
    text = page.read_text()
    modules = {name for name in MODULE.findall(text) if name.startswith(("benchmarks", "apo_"))}
    missing = {name for name in modules if find_spec(name) is None}
    assert missing | {name for name in SCRIPT.findall(text) if not (ROOT / name).exists()} == set()

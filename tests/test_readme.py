"""Code of examples/ on a page is the file's own, and does what the page says; commands of all pages are composed."""

import re
import shlex
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
import yaml
from omegaconf import OmegaConf

from apo_lightning.losses import GRPO
from apo_lightning.rewards import CallableReward
from apo_lightning.run.choices import composed, expand_glob
from apo_lightning.run.commands import find_command
from apo_lightning.types import LossInputs
from composing import CONFIGS, ROOT
from factories import make_step

EXTENDING = ROOT / "docs" / "extending.md"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
SHOWN = re.compile(r"\]\(([^)\s]*examples/[^)\s]+)\)[^\n]*\n\n```\w+\n(.*?)```", re.DOTALL)
PROMPT = re.compile(r"^\$ ((?:.*\\\n)*.*)$", re.MULTILINE)
INLINE = re.compile(r"`((?:apo|python -m apo_lightning|python \w+\.py) \w[^`<]+)`")
MODULE = re.compile(r"\bpython -m ([\w.]+)")
SCRIPT = re.compile(r"\bpython (\w+\.py)")


def shown_files(page: Path) -> list[tuple[Path, str]]:
    """(file of examples/, code) where a paragraph that links to the file is followed by code."""
    return [((page.parent / link).resolve(), code) for link, code in SHOWN.findall(page.read_text())]


def blocks(suffix: str) -> list[str]:
    return [code for file, code in shown_files(EXTENDING) if file.suffix == suffix]


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


def test_the_readme_is_one_screen_with_a_picture():
    text = (ROOT / "README.md").read_text()
    assert len(text) <= 4500
    assert len(text.splitlines()) <= 60
    assert len(re.findall(r"!\[[^]]+\]\(docs/\S+\.svg\)", text)) == 1


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_code_of_an_example_on_a_page_is_the_file_byte_for_byte(page):
    assert [str(file) for file, code in shown_files(page) if file.read_bytes() != code.encode()] == []


def test_the_page_on_extending_shows_a_loss_its_algorithm_a_reward_and_a_callback():
    files = [file.name for file, _ in shown_files(EXTENDING)]
    assert files == ["softer.py", "softer.yaml", "rewards.py", "callbacks.py"]


@pytest.fixture(scope="module")
def shown() -> dict:
    names: dict = {"__name__": "shown"}
    for block in blocks(".py"):
        exec(block, names)
    return names


def test_the_algorithm_scales_the_push_and_leaves_the_rest(shown):
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


def test_the_yaml_names_the_class_and_its_fields():
    (algo,) = (yaml.safe_load(block) for block in blocks(".yaml"))
    assert algo["loss"] == {"_target_": "softer.SofterPush", "scale": 0.5}
    assert algo["defaults"] == ["grpo", "_self_"]
    assert set(algo) == {"defaults", "loss"}
    # As Hydra composes it: what an algorithm does not name is what train.yaml says.
    assert OmegaConf.merge(OmegaConf.load(CONFIGS / "train.yaml"), {"algo": algo}).aggregation == "token_mean"


def test_the_reward_takes_trls_signature(shown):
    verdicts = CallableReward(function=shown["short"]).score(["18", "18 " * 20, "17"], ["18", "18", "18"])
    assert [verdict.reward for verdict in verdicts] == [1.0, 0.0, 0.0]


def test_the_callback_reads_a_step(shown):
    step = make_step(("correct", "incorrect", "incorrect", "correct"), lengths=[1, 2, 5, 3])
    assert shown["WrongLength"]().on_step(step) == {"mine/wrong_tokens": 3.5}
    assert shown["WrongLength"]().on_step(make_step(("correct", "correct"))) is None


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


@pytest.mark.parametrize(
    ("line", "command"),
    [
        ("apo train -m algo=apo  # a sweep", ("train", ("-m", "algo=apo"))),
        ("torchrun --nnodes=2 -m apo_lightning evaluate run=x", ("evaluate", ("run=x",))),
        ("srun --nodes=2 python train.py \\\n    algo=apo", ("train", ("algo=apo",))),
        ("pip install -e '.[vllm]'", None),
        ("apo --help", None),
    ],
)
def test_a_command_is_read_whatever_starts_it(line, command):
    assert command_of(line) == command


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_every_module_and_script_that_a_page_runs_exists(page):
    text = page.read_text()
    modules = {name for name in MODULE.findall(text) if name.startswith(("benchmarks", "apo_"))}
    missing = {name for name in modules if find_spec(name) is None}
    assert missing | {name for name in SCRIPT.findall(text) if not (ROOT / name).exists()} == set()

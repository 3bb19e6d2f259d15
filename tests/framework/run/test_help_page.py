"""`apo --help` and the page of each command: what they name exists, and they fit a terminal."""

import re

import pytest
import yaml
from omegaconf import OmegaConf

from apo_lightning.errors import ConfigError
from apo_lightning.run import commands as records
from apo_lightning.run.choices import config_folders
from apo_lightning.run.commands import BUILT_IN, commands, find_command
from apo_lightning.run.help_page import command_page, find_settings, index_page
from composing import composed, names

CONFIGURED = [command for command in commands().values() if command.config is not None]
FOLDERS = config_folders()
configured = pytest.mark.parametrize("command", CONFIGURED, ids=lambda command: command.name)


def groups_of(config):
    """The groups that a primary configuration lets the command line choose from."""
    text = next(path for folder in FOLDERS if (path := folder / f"{config}.yaml").is_file()).read_text()
    entries = [entry for entry in yaml.safe_load(text)["defaults"] if isinstance(entry, dict)]
    keys = {key for entry in entries for key in entry}
    return {key for key in keys if not key.startswith(("override ", "optional ")) and "base/" not in key}


def test_the_index_is_one_line_a_command_on_80_columns():
    lines = index_page(commands()).splitlines()
    named = [line.split()[0] for line in lines if line.startswith("  ")]
    assert named == list(commands())
    assert [command.name for command in BUILT_IN] == ["train", "evaluate", "export", "average", "preflight", "doctor"]
    assert {"lab", "theory", "report", "pretrain", "coverage"} <= set(named)
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("name", list(commands()))
def test_a_page_fits_80_columns_and_its_commands_work_is_there(name):
    command = find_command(name)
    page = command_page(command)
    assert [line for line in page.splitlines() if len(line) > 80] == []
    assert command.details.split()[0] in page
    assert "Hydra" not in page
    assert all(example.startswith(f"apo {name}") and f"  {example}\n" in f"{page}\n" for example in command.examples)
    assert callable(command.load())
    assert all(f"\n  {word} " in page for word in command.actions)


def test_a_first_word_of_a_commands_actions_sets_the_action_and_overrides_are_left_alone():
    command = find_command("paper")
    assert command.overrides(["run", "limit=1"]) == ["action=run", "limit=1"]
    assert command.overrides(["limit=1", "action=run"]) == ["limit=1", "action=run"]
    assert command.overrides(["--cfg", "job"]) == ["--cfg", "job"]
    assert command.overrides([]) == []
    assert find_command("train").overrides(["typo"]) == ["typo"]
    with pytest.raises(ConfigError, match="apo paper limit: choose one of status, run, report"):
        command.overrides(["limit"])
    assert set(command.actions) == {"status", "run", "report"}


@configured
def test_a_page_names_groups_that_the_command_reads_and_all_their_options(command):
    page = command_page(command)
    named = re.findall(r"^  (\w+)= ", page, flags=re.MULTILINE)
    assert named == list(command.axes)
    assert set(named) <= groups_of(command.config)
    for group in named:
        for option in names(group):
            assert re.search(rf"(?<=[ \[]){re.escape(option.rpartition('/')[2])}(?=[ \]\n])", page), (group, option)
    # A group with only one sensible choice is left to --cfg job; rates serve the plan alone.
    assert groups_of("train") - {"rates"} <= set(find_command("train").axes)


@configured
def test_defaults_on_a_page_are_those_that_are_composed(command):
    cfg = composed(config_name=command.config)
    for key, setting in find_settings(command.config, command.settings).items():
        default = yaml.safe_load(setting.default)
        value = OmegaConf.select(cfg, key, throw_on_missing=True)
        assert default == (OmegaConf.to_container(value) if OmegaConf.is_config(value) else value), key


@configured
def test_every_setting_of_a_page_has_a_comment(command):
    settings = find_settings(command.config, command.settings)
    assert {key for key, setting in settings.items() if not setting.comment} <= {"seed", "title"}  # which need none


def test_a_comment_goes_on_in_its_column_and_ends_there(tmp_path, monkeypatch):
    (tmp_path / "configs").mkdir()
    text = "defaults: []\na: 1  # one,\n      # two\n# of b\nb: {c: '#'}\nd:  [1, 2]  # three\n"
    (tmp_path / "configs" / "own.yaml").write_text(text)
    monkeypatch.chdir(tmp_path)
    found = find_settings("own", ["a", "b.c", "d"])
    assert {key: (setting.default, setting.comment) for key, setting in found.items()} == {
        "a": ("1", "one, two"),
        "b.c": ("'#'", ""),
        "d": ("[1,2]", "three"),
    }
    with pytest.raises(KeyError, match="no nowhere"):
        find_settings("own", ["nowhere"])


def test_another_packages_command_of_a_name_that_is_taken_is_refused(monkeypatch):
    class Point:
        name, value = "train", "stranger:TRAIN"

    monkeypatch.setattr(records, "entry_points", lambda group: [Point])
    with pytest.raises(ConfigError, match="two packages bring a command 'train'; the second is stranger:TRAIN"):
        commands.__wrapped__()

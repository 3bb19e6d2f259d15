"""The registration's hash changes with everything that decides a verdict, and with nothing else."""

from functools import cache
from pathlib import Path

import pandas as pd
import pytest

from apo_lab.editions.protocol import World, load_protocol, protocol_text
from apo_lab.laboratory import registration as module
from apo_lab.laboratory.registration import registration, task_sha256
from miniature_edition import MINIATURE


@pytest.fixture
def edition(tmp_path):
    def write(text):
        path = tmp_path / "mine.yaml"
        path.write_text(text)
        return load_protocol(str(path))

    return write


def test_it_is_the_same_twice_and_changes_with_the_protocol_and_with_the_task(edition):
    found, again = registration(edition(MINIATURE)), registration(edition(MINIATURE))
    assert again == found != registration(edition(MINIATURE.replace("level: 0.2", "level: 0.21")))
    texts = (MINIATURE, MINIATURE.replace("run: [", "run: [data.puzzle.secret=1, "))
    assert len({task_sha256(edition(text).worlds["small"]) for text in texts}) == 2


def test_it_changes_with_the_version_of_the_decisions(edition, monkeypatch):
    before = registration(edition(MINIATURE))
    monkeypatch.setattr(module, "DECISION_VERSION", module.DECISION_VERSION + 1)
    assert registration(edition(MINIATURE)) != before


def test_published_editions_have_the_registration_of_their_rows(monkeypatch):
    monkeypatch.setattr(module, "task_sha256", lambda world: _task(world.run))
    published = {path.parent.name: path for path in Path("docs/lab").glob("*/runs.csv.gz")}
    assert set(module.BEFORE_VERSIONS.values()) <= {registration(load_protocol(name)) for name in published}
    for name, path in published.items():
        rows = pd.read_csv(path, usecols=["registration"], dtype=str)
        assert set(rows.registration) == {registration(load_protocol(name))}, name


@cache  # editions share their tasks
def _task(run):
    return task_sha256(World(name="", family="", level=0.5, run=run))


def test_another_word_in_a_published_protocol_is_another_registration(monkeypatch):
    monkeypatch.setattr(module, "task_sha256", lambda world: _task(world.run))
    text = protocol_text("cliff")
    monkeypatch.setattr(module, "protocol_text", lambda name: text.replace("margin: 0.02", "margin: 0.03"))
    assert registration(load_protocol("cliff")) not in module.BEFORE_VERSIONS.values()

"""The registration's hash changes with everything that decides a verdict, and with nothing else."""

import pytest

from apo_lab.editions.protocol import load_protocol
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


def test_docstrings_comments_and_formatting_of_code_do_not_count(tmp_path, monkeypatch):
    monkeypatch.setattr(module.resources, "files", lambda package: tmp_path)
    texts = {
        "one": '"""One."""\n\n\ndef f(x):\n    """Doc."""\n    return x + 1\n',
        "same": "def f(x):  # a comment\n    return (x +\n      1)\n",
        "other": "def f(x):\n    return x + 2\n",
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    assert module._code("one") == module._code("same") != module._code("other")


def test_the_passage_endpoint_is_in_the_hash_of_the_editions_that_ask_for_it_alone(edition, monkeypatch):
    area, passage = (
        edition(MINIATURE.replace("stage: main", f"stage: main, endpoint: {name}")) for name in ("area", "passage")
    )
    before = [registration(each) for each in (area, passage)]
    monkeypatch.setattr(module, "OF_ENDPOINT", {"passage": ("statistics/levels.py",)})
    assert registration(area) == before[0]
    assert registration(passage) != before[1]

"""Heads of a test's size are cut into tiles, as those of a run are."""

import pytest

from apo_lightning.logprobs import head


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    monkeypatch.setattr(head, "FEWEST_LOGITS_CPU", 16)

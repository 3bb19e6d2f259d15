"""Heads of a test's size are cut into tiles, as those of a run are, and tiles are worked on in both ways."""

import pytest

from apo_lightning.logprobs import head


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    monkeypatch.setattr(head, "FEWEST_LOGITS_CPU", 16)


@pytest.fixture(autouse=True, params=["as on a CPU", "as on a GPU"])
def tile_memory(request, monkeypatch):
    """In the tile's own memory, or from memory to memory by what a GPU has compiled."""
    monkeypatch.setattr(head, "overwrites_tiles", lambda device: request.param == "as on a CPU")

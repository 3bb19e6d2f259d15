"""The order of the tests, and what none of them may leave behind."""

import os

# First: what a shape-checked module of ours imports is cached under another name, and so would be compiled once more.
import lightning.pytorch  # noqa: F401
import peft  # noqa: F401
import pytest
from hypothesis import HealthCheck, settings

# A slow or busy machine fails no test.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")

RANK_VARIABLES = ("LOCAL_RANK", "RANK", "NODE_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with a slow test first: begun last, one of them would run alone at the end, on one core of several."""
    slow = {item.path for item in items if item.get_closest_marker("slow") is not None}
    items.sort(key=lambda item: item.path not in slow)


@pytest.fixture(autouse=True)
def no_rank_left_behind():
    """The scripts that later tests start would take themselves for a rank, and wait for ranks that nobody starts."""
    before = {name: os.environ.get(name) for name in RANK_VARIABLES}
    yield
    left = {name: os.environ.get(name) for name in RANK_VARIABLES}
    for name, value in before.items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value
    assert left == before

"""The order of the tests, and what none of them may leave behind."""

import atexit
import functools
import gc
import inspect
import os
import typing
from collections.abc import Callable
from pathlib import Path

import jaxtyping
import pytest
from hypothesis import HealthCheck, settings

# A slow or busy machine fails no test.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")

jaxtyped = jaxtyping.jaxtyped


def shapes_checked(fn: Callable, *, typechecker: Callable) -> Callable:
    """Check the signatures that state a shape. The import hook alone would check all of them, most of which pyright has
    checked: the tests of update, losses and diagnostics then take 157 CPU seconds in place of 115.
    """
    signature = fn.__init__ if inspect.isclass(fn) else fn
    states_shapes = any(map(states_shape, getattr(signature, "__annotations__", {}).values()))
    return jaxtyped(fn, typechecker=typechecker) if states_shapes else fn


def states_shape(annotation: object) -> bool:
    if inspect.isclass(annotation) and issubclass(annotation, jaxtyping.AbstractArray):
        return True
    parts = annotation if isinstance(annotation, list) else typing.get_args(annotation)
    return any(map(states_shape, parts))


# By this name the hook finds it, in each module that it imports.
jaxtyping.jaxtyped = functools.partial(functools.partial, shapes_checked)

RANK_VARIABLES = ("LOCAL_RANK", "RANK", "NODE_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID")


def pytest_collection_finish() -> None:
    """Searches for garbage, paused while files are imported, leave out what the files made."""
    gc.freeze()
    gc.enable()
    # Else libraries print at exit what of theirs was never freed. Not sooner: pytest ends with ten full searches.
    atexit.register(gc.unfreeze)


def pytest_collectstart() -> None:
    """Before the first file: what a shape-checked module of ours imports is cached under another name, and so would be
    compiled once more. The process that hands out tests to others collects none, and need not wait for it.
    """
    gc.disable()
    import lightning.pytorch  # noqa: F401
    import peft  # noqa: F401

    import parsed_once  # noqa: F401


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The slowest files first: begun last, one of them would run alone at the end, on one core of several."""
    seconds: dict[Path, int] = {}
    for item in items:
        slow = item.get_closest_marker("slow")
        if slow is not None:
            seconds[item.path] = max(seconds.get(item.path, 0), *slow.args, 10)
    items.sort(key=lambda item: -seconds.get(item.path, 0))


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

"""Settings that several diagnostics share: lower bounds, and the K of the anchors that are measured."""

from typing import TypeVar

from apo_lightning.errors import ConfigError
from apo_lightning.losses import PolicyLoss

PAPER_ANCHOR_SIZE = 8
"""The K that is measured under a loss without anchors."""

T = TypeVar("T")


def check_at_least(callback: str, least: int, **settings: int | None) -> None:
    """Raise `ConfigError` for the first setting of `callbacks.<callback>` below `least`; None is allowed."""
    for name, value in settings.items():
        if value is not None and value < least:
            raise ConfigError(f"callbacks.{callback}.{name} is {value}: give {least} or more, or ~callbacks.{callback}")


def measured_anchor_size(setting: int | None, loss: PolicyLoss | None) -> int:
    """K: the setting, else the loss's own, else the paper's."""
    return setting or (0 if loss is None else loss.support_size) or PAPER_ANCHOR_SIZE


def present(value: T | None) -> T:
    """A value that the callback's `needs` or its probe asked for."""
    assert value is not None
    return value

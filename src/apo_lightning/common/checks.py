"""Checks of a result by its reader: a content is made again and compared with what the author says of it."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rich.table import Table
from rich.text import Text

from apo_lightning.errors import ConfigError, in_brief

State = Literal["checked", "differs", "cannot be checked"]
STYLES: dict[State, str] = {"checked": "green", "differs": "bold red", "cannot be checked": "yellow"}
MALFORMED = (ValueError, KeyError, TypeError, AttributeError, IndexError, OSError, RecursionError)
"""What reading a file of another structure than was written raises."""


class DiffersError(Exception):
    """A file or number differs from what the author published; the message names the first difference."""


@dataclass(frozen=True, slots=True)
class Check:
    """What came of one check."""

    name: str
    state: State
    detail: str
    """What was compared, the first difference, or what was lacking."""


def check(name: str, compare: Callable[[], str]) -> Check:
    """Call `compare`: it returns what it has compared, or raises `DiffersError`, or `ConfigError` if it cannot."""
    try:
        return Check(name, "checked", compare())
    except DiffersError as found:
        return Check(name, "differs", str(found))
    except ConfigError as error:
        return Check(name, "cannot be checked", str(error))
    except MALFORMED as error:
        return Check(name, "differs", f"cannot be read: {type(error).__name__}: {in_brief(error)}")


def require_alike(there: Any, here: Any, where: str = "", *, tolerance: float = 0.0) -> int:
    """Compare all values of nested plain data, numbers within a relative and absolute tolerance; NaN is null.

    Returns the number of values.

    Example:
        >>> require_alike({"a": 1.0, "b": [2, None]}, {"a": 1.0, "b": [2, float("nan")]})
        3
        >>> require_alike({"a": {"b": 1}}, {"a": {"b": 2}}, "x: ")
        Traceback (most recent call last):
        apo_lightning.common.checks.DiffersError: x: a.b is 1 there and 2 here
    """
    saved, own = dict(_leaves(there)), dict(_leaves(here))
    keys = [*dict.fromkeys((*own, *saved))]
    different = [key for key in keys if not _alike(saved.get(key, "nothing"), own.get(key, "nothing"), tolerance)]
    if different:
        was, found = (f"{values.get(different[0], 'nothing')!r:.60}" for values in (saved, own))
        more = f" ({len(different) - 1} more)" if len(different) > 1 else ""
        raise DiffersError(f"{where}{different[0]} is {was} there and {found} here{more}")
    return len(keys)


def _leaves(node: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if not isinstance(node, Mapping | list | tuple):
        yield path, None if isinstance(node, float) and math.isnan(node) else node
        return
    for key, child in node.items() if isinstance(node, Mapping) else enumerate(node):
        yield from _leaves(child, f"{path}.{key}" if path else str(key))


def _alike(there: Any, here: Any, tolerance: float) -> bool:
    if isinstance(there, int | float) and isinstance(here, int | float):
        return math.isclose(there, here, rel_tol=tolerance, abs_tol=tolerance)
    return there == here


def check_table(checks: Sequence[Check]) -> Table:
    """A row for each check."""
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="dim")
    for title in ("content", "state", ""):
        table.add_column(title, no_wrap=bool(title))
    for found in checks:
        # Without line ends, by which a name could look like another row.
        name, detail = (Text(" ".join(text.split())) for text in (found.name, found.detail))
        table.add_row(name, Text(found.state, style=STYLES[found.state]), detail)
    return table


def require_none_differs(checks: Sequence[Check]) -> None:
    """Raise `ConfigError` that names what differs."""
    if names := [found.name for found in checks if found.state == "differs"]:
        raise ConfigError(f"{len(names)} of {len(checks)} contents differ: {', '.join(names)}")

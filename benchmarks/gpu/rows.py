"""One row of the table of `make gpu`: the result of a check, and its verdict. Imports the standard library alone."""

import json
import math
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

OK, MISSED, FAILED, NOT_RUN = "ok", "MISSED", "FAILED", "not run"
NOTHING = "–"
LONGEST_REASON = 200
COLUMNS = ("part", "check", "result", "target", "verdict")


@dataclass(frozen=True, kw_only=True)
class Row:
    """One check."""

    check: str
    result: str = NOTHING
    target: str = NOTHING
    verdict: str = OK
    part: str = ""
    figures: Mapping[str, Any] = field(default_factory=dict)
    """Every number of the result as it is, by name, for the JSON."""

    @property
    def is_bad(self) -> bool:
        """True where something is to be mended; what was not run is not."""
        return self.verdict.startswith((MISSED, FAILED))


def judged(
    check: str,
    value: float,
    said: str = "",
    *,
    at_most: float | None = None,
    at_least: float | None = None,
    **figures: Any,
) -> Row:
    """A row about one number, held against its bar where it has one; a number that is none misses every bar.

    Args:
        check: what was measured.
        value: the number.
        said: how the table says it; empty: in three digits.
        at_most: the largest that is well.
        at_least: the smallest that is well.
        figures: further numbers for the JSON.
    """
    holds = (at_most is None or value <= at_most) and (at_least is None or value >= at_least)
    bars = [f"{sign} {bar:g}" for sign, bar in (("≤", at_most), ("≥", at_least)) if bar is not None]
    return Row(
        check=check,
        result=said or f"{value:.3g}",
        target=", ".join(bars) or NOTHING,
        verdict=OK if holds else MISSED,
        figures={"value": value, **figures},
    )


def failed(check: str, reason: str) -> Row:
    """A check that came to no result."""
    return Row(check=check, verdict=f"{FAILED}: {one_line(reason)}")


def not_run(check: str, reason: str) -> Row:
    """A check that this machine cannot make."""
    return Row(check=check, verdict=f"{NOT_RUN}: {reason}")


def one_line(text: str) -> str:
    """Without line breaks, and no longer than a cell may be.

    Example:
        >>> one_line("two\\n  lines")
        'two lines'
    """
    line = " ".join(text.split())
    return line if len(line) <= LONGEST_REASON else line[: LONGEST_REASON - 1] + "…"


def attempt(name: str, rows: Iterable[Row]) -> Iterator[Row]:
    """These rows; where the next cannot be made, one that says why and behind which it stands, and no more of them."""
    last = None
    try:
        for row in rows:
            last = row.check
            yield row
    except Exception as error:
        traceback.print_exc()
        yield failed(name if last is None else f"behind “{last}”", f"{type(error).__name__}: {error}")


def to_line(row: Row) -> str:
    """As one line of JSON. A number that is none becomes null, which every reader of JSON takes."""
    return json.dumps(_finite(asdict(row)), ensure_ascii=False)


def from_line(line: str) -> Row:
    """The row of `to_line`."""
    return Row(**json.loads(line))


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def cells(row: Row) -> str:
    """As one line of a Markdown table."""
    return f"| {' | '.join(str(getattr(row, column)).replace('|', chr(92) + '|') for column in COLUMNS)} |"


def table(rows: Sequence[Row]) -> str:
    """As Markdown."""
    return "\n".join([f"| {' | '.join(COLUMNS)} |", "|" + ":--|" * len(COLUMNS), *map(cells, rows)])


def count_verdicts(rows: Sequence[Row]) -> str:
    """How many rows got each verdict, in one line."""
    kinds = [row.verdict.partition(":")[0] for row in rows]
    return ", ".join(f"{kinds.count(kind)} {kind}" for kind in (OK, MISSED, FAILED, NOT_RUN))

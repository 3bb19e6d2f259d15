"""Filtering of the training set before the first step; every dropped row is counted."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields

from apo_lightning.data.rows import Row

SHINGLE_LENGTH = 60
"""Letters and digits in one shingle."""
SHINGLE_FRACTION = 0.5
"""Fraction of a benchmark problem's shingles from which on a training problem contains it."""

_SPACE = re.compile(r"\\(?:[,;:! ]|quad\b|qquad\b)|~|\s")
_NOT_ALPHANUMERIC = re.compile(r"[\W_]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterReport:
    """Numbers of training rows read, dropped (each for the first reason that applies, in this order), and kept."""

    num_rows: int
    num_without_answer: int = 0
    """Worked solutions without a `\\boxed{…}`."""
    num_conflicting: int = 0
    """Rows of problems that occur with different answers; all copies are dropped."""
    num_duplicates: int = 0
    """Repeated copies of a problem that is kept."""
    num_in_benchmark: int = 0
    """Problems that contain one of an excluded benchmark, possibly reworded (see `Contamination`)."""
    num_too_long: int = 0
    """Prompts of more than `max_prompt_tokens`, template included; dropped by `PromptDataModule.prepare`."""
    num_held_out: int = 0
    """Rows kept for validation."""
    num_kept: int = 0
    """Rows that are trained on."""

    def __str__(self) -> str:
        dropped = [
            f"{getattr(self, item.name)} {item.name.removeprefix('num_').replace('_', ' ')}"
            for item in fields(self)
            if item.name not in ("num_rows", "num_held_out", "num_kept") and getattr(self, item.name)
        ]
        return (
            f"{self.num_kept} of {self.num_rows} problems to train on, {self.num_held_out} held out; "
            f"dropped: {', '.join(dropped) or 'none'}"
        )


def filter_rows(
    rows: Sequence[Row], benchmarks: Sequence[Row] = (), *, near_copies: bool = False
) -> tuple[list[Row], FilterReport]:
    """Drop rows that should not be trained on. The first copy of a problem stays, and rows keep their order.

    `benchmarks` are problems that must not be trained on. With `near_copies`, problems of one `normalised_problem` are
    copies too. Of the counts, `num_rows` is the sum of all the others.
    """
    answered = [row for row in rows if row.answer]
    groups: dict[tuple[str | None, str], list[Row]] = {}
    for row in answered:
        problem = normalised_problem(row.problem) if near_copies else row.problem
        groups.setdefault((row.system, problem), []).append(row)
    conflicting = {key for key, group in groups.items() if len({row.answer.strip() for row in group}) > 1}
    unique = {key: group[0] for key, group in groups.items() if key not in conflicting}

    contamination = Contamination(benchmarks)
    kept = [row for row in unique.values() if not (benchmarks and contamination.contains(row.problem))]
    num_conflicting = sum(len(groups[key]) for key in conflicting)
    return kept, FilterReport(
        num_rows=len(rows),
        num_without_answer=len(rows) - len(answered),
        num_conflicting=num_conflicting,
        num_duplicates=len(answered) - num_conflicting - len(unique),
        num_in_benchmark=len(unique) - len(kept),
        num_kept=len(kept),
    )


class Contamination:
    """Finds benchmark problems inside training problems.

    Compares all substrings of 60 letters and digits, in lower case (shingles): a training problem contains a benchmark
    problem when it has at least half of that problem's distinct shingles. So a changed name or an added "rounded to the
    nearest integer" does not hide it. A benchmark problem shorter than one shingle must be equal as a whole: as a
    substring it would match unrelated problems.
    """

    def __init__(self, benchmarks: Sequence[Row]) -> None:
        texts = [_alphanumeric(row.problem) for row in benchmarks]
        self.short = {text for text in texts if len(text) < SHINGLE_LENGTH}
        self.num_shingles = [len(_shingles(text)) for text in texts]
        self.index: dict[str, list[int]] = {}
        """Shingle → indices of the benchmark problems that contain it."""
        for i, text in enumerate(texts):
            for shingle in _shingles(text):
                self.index.setdefault(shingle, []).append(i)

    def contains(self, problem: str) -> bool:
        """Whether the problem contains a benchmark's."""
        text = _alphanumeric(problem)
        num_found = Counter(i for shingle in _shingles(text) for i in self.index.get(shingle, ()))
        return text in self.short or any(
            count >= SHINGLE_FRACTION * self.num_shingles[i] for i, count in num_found.items()
        )


def normalised_problem(problem: str) -> str:
    r"""The problem in lower case, without white space and LaTeX spacing commands.

    Example:
        >>> normalised_problem("Find  $x\\,y + 1$.\n")
        'find$xy+1$.'
    """
    return _SPACE.sub("", problem).lower()


def _alphanumeric(problem: str) -> str:
    return _NOT_ALPHANUMERIC.sub("", problem).lower()


def _shingles(text: str) -> set[str]:
    return {text[i : i + SHINGLE_LENGTH] for i in range(len(text) - SHINGLE_LENGTH + 1)}

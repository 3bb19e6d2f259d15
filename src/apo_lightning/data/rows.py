"""Rows of a data set, and the conversion of raw records in the usual layouts."""

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from apo_lightning.errors import ConfigError
from math_answers.extraction import last_boxed

PROBLEM_COLUMNS = ("problem", "question", "prompt")
ANSWER_COLUMNS = ("answer", "target", "reward_model.ground_truth")
ID_COLUMNS = ("id", "unique_id")
OWN_COLUMNS = ("prompt", "completion", "completion_ids")
"""Not handed on to rewards as columns of the data set, as in TRL: rewards get these from the run."""

HALF_CHARACTER = re.compile("[\ud800-\udfff]")
"""A surrogate without its other half, which JSON can escape and no file or tokenizer takes."""
_THOUSANDS = re.compile(r"(?<=[0-9]),(?=[0-9]{3}(?![0-9]))")
_LIST = re.compile(r"\[([^][]*)\]")
DAPO_PREFIX = (
    "Solve the following math problem step by step. The last line of your response should be of the form "
    "Answer: $Answer (without quotes) where $Answer is the answer to the problem.\n\n"
)
DAPO_SUFFIX = '\n\nRemember to put your answer on its own line after "Answer:".'


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A problem of a data set, before any template."""

    id: str
    """Name of the problem, unique within its data set."""
    problem: str
    """Text of the problem, never empty."""
    answer: str
    """The gold answer; empty only for a worked solution without a `\\boxed{…}`."""
    prefill: str = ""
    """The start of the assistant's turn, which is given and not sampled."""
    system: str | None = None
    """The system message of a conversation; None: that of the template, if it has one."""
    solution: str | None = None
    columns: Mapping[str, Any] = field(default_factory=dict, compare=False)
    """The record itself, without `OWN_COLUMNS`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordLayout:
    r"""The columns of a record. The default fits most math data sets.

    Attributes:
        problem_column: None: the first of `problem`, `question`, `prompt` that is present. Either text or a
            conversation of one user message, with or without a system message before it. DAPO's own instruction around
            the problem is removed.
        answer_column: None: the first of `answer`, `target`, `reward_model.ground_truth`. A dot goes into a nested
            record. In a worked solution in GSM8K's style the answer follows the last `####`.
        answer_is_boxed: the column has a worked solution in MATH's style: the answer is its last `\boxed{…}`.
        answer_is_list: an answer `[4, 2]` is the list `4, 2`, as in TheoremQA, and not an interval.
    """

    problem_column: str | None = None
    answer_column: str | None = None
    answer_is_boxed: bool = False
    answer_is_list: bool = False


def row_from_record(record: object, layout: RecordLayout, *, where: str, default_id: str) -> Row:
    r"""A row from one decoded JSON object or parquet record.

    `where` names file and line in errors; `default_id` is the id of a record without one.

    Raises:
        ConfigError: a column is missing, problem or answer is empty, or a value is neither text nor a finite number.

    Example:
        >>> record = {"question": "3 + 4?", "answer": "3 + 4 is 7.\n#### 7"}
        >>> row_from_record(record, RecordLayout(), where="gsm8k.jsonl:1", default_id="gsm8k-1").answer
        '7'
    """
    if not isinstance(record, Mapping):
        raise ConfigError(f"{where} holds {record!r:.60}: expected one object with a problem and an answer")
    problem_columns = (layout.problem_column,) if layout.problem_column else PROBLEM_COLUMNS
    answer_columns = (layout.answer_column,) if layout.answer_column else ANSWER_COLUMNS

    system, problem = _conversation(_first(record, problem_columns, "problem", where), where)
    value = _first(record, answer_columns, "answer", where)
    if layout.answer_is_list and isinstance(value, list):
        value = ", ".join(_text(part, "part of an answer", where) for part in value)
    answer = _text(value, "answer", where)
    if layout.answer_is_list and (match := _LIST.fullmatch(answer)):
        answer = match[1].strip()
    for what, text in (("problem", problem), ("answer", answer)):
        if not text:
            raise ConfigError(f"{where} has an empty {what}: fill it in or remove the row")

    solution = record.get("solution")
    if layout.answer_is_boxed:
        solution, answer = answer, (last_boxed(answer) or "").strip()
    elif "####" in answer:
        solution, answer = answer, _THOUSANDS.sub("", answer.rpartition("####")[2].strip())
        if not answer:
            raise ConfigError(f"{where} has nothing after its '####': fill in the answer or remove the row")
    row_id = next((record[column] for column in ID_COLUMNS if record.get(column) is not None), default_id)
    return Row(
        id=_text(row_id, "id", where),
        problem=problem,
        answer=answer,
        system=system,
        solution=solution if isinstance(solution, str) else None,
        columns={column: value for column, value in record.items() if column not in OWN_COLUMNS},
    )


def layout_of_file(record: object, own: RecordLayout | None) -> RecordLayout:
    """The layout of a local file, from its first record.

    The default columns if one of them has an answer, or `own`, that of the data set which the file may be a copy of,
    finds no problem in it; else `own`.
    """
    if own is None or not isinstance(record, Mapping):
        return RecordLayout()
    has_answer = any(_value(record, name) is not None for name in ANSWER_COLUMNS)
    is_copy = own.problem_column is None or _value(record, own.problem_column) is not None
    return own if is_copy and not has_answer else RecordLayout(answer_is_list=own.answer_is_list)


def require_unique_ids(rows: Sequence[Row], where: str) -> None:
    """Raise `ConfigError` for two rows with one id: seeds are derived from ids, so they would draw the same noise."""
    for row_id, count in Counter(row.id for row in rows).items():
        if count > 1:
            raise ConfigError(f"{where} has two rows with the id '{row_id}': make ids unique, or leave the column out")


def require_answers(rows: Sequence[Row], where: str) -> None:
    """Raise `ConfigError` for a row without an answer, which no completion could be measured by."""
    for row in rows:
        if not row.answer:
            raise ConfigError(f"{where}, problem '{row.id}' has no answer in a \\boxed{{…}}: correct the row")


def _first(record: Mapping[str, Any], columns: Sequence[str], what: str, where: str) -> object:
    for column in columns:
        if (value := _value(record, column)) is not None:
            return value
    *others, last = columns
    names = f"{', '.join(others)} or {last}" if others else last
    raise ConfigError(f"{where} has no {what} ({names}): its columns are {', '.join(map(str, record)) or 'none'}")


def _value(record: Mapping[str, Any], column: str) -> Any:
    value: Any = record
    for key in column.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _conversation(value: object, where: str) -> tuple[str | None, str]:
    """The system message, if there is one, and the problem."""
    system = None
    if isinstance(value, list):
        roles = [message.get("role") if isinstance(message, Mapping) else None for message in value]
        if roles not in (["user"], ["system", "user"]):
            raise ConfigError(
                f"{where} has a conversation as its problem ({value!r:.60}): expected one user message, with or "
                "without a system message before it"
            )
        *systems, value = (message.get("content") for message in value)
        system = next((_text(each, "system message", where) for each in systems), None)
    problem = _text(value, "problem", where).removeprefix(DAPO_PREFIX).removesuffix(DAPO_SUFFIX).strip()
    return system or None, problem


def _text(value: object, what: str, where: str) -> str:
    """Text as it is; the numbers 27 and 27.0 become "27"."""
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, float) and math.isfinite(value):
        return str(int(value)) if value.is_integer() else repr(value)
    raise ConfigError(f"{where} has {value!r:.60} as its {what}: expected text or a finite number")

"""What an answer is read as: a tree of named nodes."""

from dataclasses import dataclass
from fractions import Fraction
from typing import Any


class UnreadError(ValueError):
    """Something in an answer is on no closed list; the message says what."""


class TooLargeError(Exception):
    """To compute this value would take more work than an answer may cost."""


@dataclass(frozen=True, slots=True)
class Node:
    """An operation and its arguments.

    Expressions: `number` (a Fraction, and for a decimal of six digits or more one unit in its last place), `symbol`
    (name), `constant` (pi, e, i, infinity), `add`, `multiply`, `divide`, `power`, `call` (name, *arguments), `vector`
    (name), `dot`, `cross`, `plus_minus` (sign, argument).
    Answers of several parts: `list`, `tuple`, `interval` (brackets, low, high), `set`, `matrix` (columns, *cells),
    `union`, `intersection`, `difference`, `relation` (operators, *sides), `and`, `or`, `builder`,
    `case` (value, condition).
    Others: `words` (text), `ratio`, `clock`, `numeral` (digits, base), `congruence`, `quantity` (value, unit).
    """

    head: str
    args: tuple[Any, ...]

    def __repr__(self) -> str:
        parts = ("a large number" if isinstance(arg, Fraction) and _is_large(arg) else str(arg) for arg in self.args)
        return f"{self.head}({', '.join(parts)})"


def _is_large(value: Fraction) -> bool:
    return value.numerator.bit_length() + value.denominator.bit_length() > 1000


def number(value: Fraction | int, last_place: Fraction | None = None) -> Node:
    """A rational number, with one unit in the last place of a decimal."""
    return Node("number", (Fraction(value), last_place))

"""The tokens of an answer, one after the other, and numbers as they are written."""

from fractions import Fraction

from math_answers.lexer import Token
from math_answers.nodes import Node, UnreadError, number

MIN_SIGNIFICANT_DIGITS = 6
"""A decimal with at least so many digits is also what rounds to it."""
MOST_DEPTH = 40
"""The deepest nesting of brackets, roots and fractions that is read."""
END = Token("end", "")


def decimal(text: str) -> Node:
    """A number with the precision that it is written with."""
    value = Fraction(text)
    digits, _, exponent = text.partition("e")
    whole, _, places = digits.partition(".")
    significant = len((whole + places).lstrip("0"))
    if not places or significant < MIN_SIGNIFICANT_DIGITS:
        return number(value)
    return number(value, Fraction(10) ** (int(exponent or 0) - len(places)))


class Stream:
    """Tokens, and where the reader is."""

    def __init__(self, found: list[Token], units: frozenset[str] | None) -> None:
        self.tokens = found
        self.units = units
        self.at = 0
        self.depth = 0
        self.quantity_depth = 0
        self.bars = 0
        self.depth_of_values = 0
        self.depth_of_lists = 0
        self.colon_ends = False

    @property
    def next(self) -> Token:
        """The token that comes."""
        return self.tokens[self.at] if self.at < len(self.tokens) else END

    def peek(self, ahead: int = 1) -> Token:
        """The token that comes so many later."""
        return self.tokens[self.at + ahead] if self.at + ahead < len(self.tokens) else END

    def is_next(self, *texts: str) -> bool:
        """Whether a mark or command comes."""
        return self.next.kind in ("mark", "command") and self.next.text in texts

    def take(self) -> Token:
        """The token that comes, which is gone."""
        token = self.next
        self.at += 1
        return token

    def takes(self, *texts: str) -> Token | None:
        """The same if it is one of these marks or commands; else None."""
        return self.take() if self.is_next(*texts) else None

    def expect(self, text: str) -> None:
        """Take this mark or command, or raise."""
        if not self.takes(text):
            raise UnreadError(f"{self.next.text or 'the end'!r} where {text!r} is due")

"""What a statement is, and what its check hands back."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    """What becomes of a claim."""

    EXACT = "exact"
    """An identity, to rounding."""
    FIRST_ORDER = "first order"
    """True for small steps."""
    CONDITIONAL = "conditional"
    """True under the condition that the statement names."""
    FALSE = "false"
    """There is a counter-example; the formula says what is true instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A number that was measured, and what the formula says of it."""

    what: str
    """Of what it is a number, with its unit where it has one."""
    measured: float | int
    predicted: float | int
    """The formula's number, or a bound."""
    tolerance: float | int = 1e-12
    """Most that the two may differ by; past a bound, most that it may be broken by."""
    relation: str = "="
    """`=`, `<` or `>`: how the measured number stands to the predicted one."""

    @property
    def holds(self) -> bool:
        """True where the measured number is as predicted; NaN is not."""
        difference = self.measured - self.predicted
        if self.relation == "=":
            return abs(difference) <= self.tolerance
        return difference < self.tolerance if self.relation == "<" else difference > -self.tolerance


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """A claim, what is true of it, and the measurement that says so."""

    key: str
    """Short name, as in tables: `C2`."""
    title: str
    claim: str
    """What the paper says, in other words."""
    where: str
    """Where it says so; `this project` for what it does not say."""
    formula: str
    """What is asserted, with its conditions."""
    verdict: Verdict
    """Of the claim as it is printed."""
    check: Callable[[], Sequence[Reading]]
    """Measures, on the shipped losses."""
    figure: str = ""
    """Stem of the figure that shows it; empty: none does."""

"""What a statement is, and the readings that its check returns."""

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from torch import Tensor

Number = float | int | Tensor


class Truth(StrEnum):
    """Whether a claim is true as the paper prints it."""

    EXACT = "exact"
    """An identity, up to rounding."""
    CONDITIONAL = "conditional"
    """True under the condition that the statement names."""
    FALSE = "false"
    """There is a counter-example; the formula gives what is true instead."""


@dataclass(frozen=True, slots=True)
class Reading:
    """A measured number and what the formula predicts for it: a number, or a bound."""

    what: str
    """The quantity, with its unit where it has one."""
    measured: float | int
    predicted: float | int
    tolerance: float | int = 1e-12
    """The largest difference allowed; for a bound, by how much it may be exceeded."""
    relation: Literal["=", "<", ">"] = "="

    @property
    def holds(self) -> bool:
        """True if the measured number is as predicted; False for NaN."""
        difference = self.measured - self.predicted
        if self.relation == "=":
            return abs(difference) <= self.tolerance
        return difference < self.tolerance if self.relation == "<" else difference > -self.tolerance


def equal(what: str, measured: Number, predicted: Number = 0.0, tolerance: float = 1e-12) -> Reading:
    """A number that the formula predicts; tensors have one entry."""
    return Reading(what, float(measured), float(predicted), tolerance)


def below(what: str, measured: Number, bound: float | int) -> Reading:
    """A number with an upper bound."""
    return Reading(what, float(measured), bound, relation="<")


def above(what: str, measured: Number, bound: float | int = 0.0, tolerance: float = 1e-12) -> Reading:
    """A number with a lower bound."""
    return Reading(what, float(measured), bound, tolerance, ">")


def same(what: str, measured: Tensor, predicted: Tensor) -> Reading:
    """The largest difference between two tensors, predicted to be 0."""
    return equal(f"{what}: largest difference", (measured - predicted).abs().max())


@dataclass(frozen=True, slots=True)
class Statement:
    """A claim, what is true about it, and the measurement that shows it."""

    key: str
    title: str
    claim: str
    """What the paper says, paraphrased."""
    where: str
    """Where the paper says it; `this project` if it does not."""
    formula: str
    """What is true, with its conditions."""
    truth: Truth
    check: Callable[[], Iterator[Reading]]
    figure: str
    """File stem of the figure that shows it; empty: none."""


def statement(
    key: str, title: str, truth: Truth, *, where: str, figure: str = ""
) -> Callable[[Callable[[], Iterator[Reading]]], Statement]:
    """Make a generator of readings a `Statement`: its docstring is the claim, a blank line, and the formula."""

    def decorate(measure: Callable[[], Iterator[Reading]]) -> Statement:
        claim, formula = (" ".join(part.split()) for part in (inspect.getdoc(measure) or "").split("\n\n"))
        return Statement(key, title, claim, where, formula, truth, measure, figure)

    return decorate

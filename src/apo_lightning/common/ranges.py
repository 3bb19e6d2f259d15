"""The range of a setting, stated in the type of its field; other values are refused here."""

import math
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from numbers import Real
from typing import Annotated, Any, ClassVar, get_args, get_origin, get_type_hints

from apo_lightning.errors import ConfigError


class Within:
    """Numbers of an interval such as `(0, 1]`; NaN is in none, and infinity only in one that is closed there.

    Example:
        >>> Within("[0, 1)", "such as 0.5").remedy
        'give a number from 0 to below 1, such as 0.5'
        >>> Within("[1, inf)").allows(float("inf"))
        False
    """

    def __init__(self, interval: str, hint: str = "") -> None:
        self.low, self.high = (float(end) for end in interval[1:-1].split(","))
        self.has_low, self.has_high = interval[0] == "[", interval[-1] == "]"
        self.remedy = ", ".join(text for text in (f"give a number {self._described()}", hint) if text)

    def allows(self, value: Any) -> bool:
        """Whether the interval has the number."""
        number = float(value) if isinstance(value, Real) else math.nan
        own_ends = (self.low,) * self.has_low + (self.high,) * self.has_high
        return self.low < number < self.high or number in own_ends

    def _described(self) -> str:
        if self.low == -math.inf and self.high == math.inf:
            return "that is finite"
        below = f"from {self.low:g}" if self.has_low else f"above {self.low:g}"
        if self.high == math.inf:
            return f"of at least {self.low:g}" if self.has_low else below
        if self.has_low:
            return f"{below} to {'' if self.has_high else 'below '}{self.high:g}"
        return f"{below} and {'at most' if self.has_high else 'below'} {self.high:g}"


class OneOf:
    """Some names."""

    def __init__(self, names: Iterable[str], hint: str = "") -> None:
        self.names = tuple(names)
        self.remedy = "; ".join(text for text in (f"choose one of {', '.join(self.names)}", hint) if text)

    def allows(self, value: Any) -> bool:
        """Whether it is one of them."""
        return value in self.names


class Checked:
    """A dataclass that refuses values outside the ranges of its fields: `eps: Annotated[float, Within("(0, 1]")]`.

    The range of a field of type `float | None` does not exclude None.

    Raises:
        ConfigError: a value is outside its range.
    """

    section: ClassVar[str] = ""
    """What stands before a field's name in the message: `critic.`."""

    def __post_init__(self) -> None:
        check_ranges(type(self), lambda name: getattr(self, name), self.section)


def check_ranges(typed: Any, value_of: Callable[[str], Any], section: str = "") -> None:
    """Raise `ConfigError` for the first value outside the range that the annotations of a class state."""
    for name, (rule, may_be_none) in _rules(typed).items():
        value = value_of(name)
        if not (rule.allows(value) or (may_be_none and value is None)):
            null = ", or null" if may_be_none and "null" not in rule.remedy else ""
            raise ConfigError(f"{section}{name} is {value!r}: {rule.remedy}{null}")


@cache
def _rules(typed: Any) -> Mapping[str, tuple[Within | OneOf, bool]]:
    return {
        name: (rule, type(None) in (*get_args(hint), *get_args(get_args(kind)[0])))
        for name, hint in get_type_hints(typed, include_extras=True).items()
        for kind in (hint, *get_args(hint))
        if get_origin(kind) is Annotated
        for rule in get_args(kind)[1:]
        if isinstance(rule, Within | OneOf)
    }


Count = Annotated[int, Within("[1, inf)")]

"""A few columns of every parameter: enough to see whether an engine holds what it was sent."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

NUM_COLUMNS = 16
"""Columns sampled of each matrix. A training step at a learning rate of 1e-6 moves some 0.1 to 1 % of a model's
bfloat16 weights to another value; so many columns hold thousands of them."""
SMALLEST_NORMAL = torch.finfo(torch.float32).tiny
"""Matrix units take what lies below for 0, bfloat16's included."""


@dataclass(frozen=True, slots=True)
class WeightSample:
    """Evenly spread columns of a matrix as it was sent, or all of a vector.

    Attributes:
        num_rows: Of the whole parameter.
        num_columns: Of the whole parameter; 1 of a vector.
        columns: Which of them; other ones at the next version, so that in time each is looked at.
        values: Of all rows there.
    """

    num_rows: int
    num_columns: int
    columns: range
    values: Float[Tensor, "rows picked"]

    @classmethod
    def of(cls, weight: Float[Tensor, "..."], version: int) -> "WeightSample":
        """The sample of a whole parameter at a policy version.

        Example:
            >>> WeightSample.of(torch.zeros(5, 70), version=3).columns
            range(3, 70, 4)
            >>> WeightSample.of(torch.zeros(5), version=3).values.shape
            torch.Size([5, 1])
        """
        matrix = weight.detach().reshape(len(weight), -1)
        num_rows, num_columns = matrix.shape
        stride = max(1, num_columns // NUM_COLUMNS)
        columns = range(version % stride, num_columns, stride)
        picked = matrix[:, columns.start :: stride].clone()
        return cls(num_rows=num_rows, num_columns=num_columns, columns=columns, values=picked)

    def within(self, first: int, count: int) -> slice:
        """The place of the sampled columns that lie among `count` columns of the parameter from `first` on.

        Example:
            >>> sample = WeightSample.of(torch.zeros(5, 128), version=1)
            >>> list(sample.columns[sample.within(64, 16)])
            [65, 73]
        """
        inside = [i for i, column in enumerate(self.columns) if first <= column < first + count]
        return slice(inside[0], inside[-1] + 1) if inside else slice(0)


@dataclass(frozen=True, slots=True)
class HeldPart:
    """The part of a sample that an engine holds: all of it, or the slice of one tensor-parallel rank.

    Attributes:
        name: Of the parameter.
        first_row: Of the slice, in the whole parameter.
        columns: Of the sample.
        values: There.
    """

    name: str
    first_row: int
    columns: slice
    values: Float[Tensor, "rows picked"]

    def is_as_sent(self, sample: WeightSample) -> bool:
        """True where it equals the sample to the last bit, but for numbers too small for matrix units."""
        sent = sample.values[self.first_row : self.first_row + len(self.values), self.columns]
        if sent.shape != self.values.shape:
            return False
        values = self.values.to(sent.dtype)
        if torch.equal(values, sent):
            return True
        # A NaN that arrived is a NaN that was sent: a broken policy is not a stale engine.
        return bool(torch.isclose(values, sent, rtol=0, atol=SMALLEST_NORMAL, equal_nan=True).all())


def not_as_sent(samples: Mapping[str, WeightSample], held: Iterable[HeldPart]) -> list[str]:
    """Names of the parameters of which an engine holds something else.

    Args:
        samples: Of what was sent.
        held: What the engine shows; a parameter that it does not show is not judged.

    Example:
        >>> samples = {"norm": WeightSample.of(torch.ones(2), version=1)}
        >>> not_as_sent(samples, [HeldPart("norm", 0, slice(None), torch.tensor([[1.0], [1.0000001]]))])
        ['norm']
    """
    return list(dict.fromkeys(part.name for part in held if not part.is_as_sent(samples[part.name])))

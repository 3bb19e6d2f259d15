"""A few columns of every parameter, to check whether an engine holds the weights that it was sent."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

NUM_COLUMNS = 16
"""Columns sampled per matrix. A training step at a learning rate of 1e-6 changes some 0.1 to 1 % of a model's bfloat16
weights; 16 columns per matrix contain thousands of these."""
SMALLEST_NORMAL = torch.finfo(torch.float32).tiny
"""Matrix units flush smaller numbers to 0, in bfloat16 too."""


@dataclass(frozen=True, slots=True)
class WeightSample:
    """Evenly spaced columns of a matrix as it was sent, or a whole vector.

    Attributes:
        num_rows: of the whole parameter.
        num_columns: of the whole parameter; 1 for a vector.
        columns: the sampled columns. They change with the version, so that every column is checked over time.
        values: the values in these columns.
    """

    num_rows: int
    num_columns: int
    columns: range
    values: Float[Tensor, "rows picked"]

    @classmethod
    def of(cls, weight: Float[Tensor, "..."], version: int) -> "WeightSample":
        """Sample a whole parameter at a policy version.

        Example:
            >>> WeightSample.of(torch.zeros(5, 70), version=3).columns
            range(3, 70, 4)
        """
        matrix = weight.detach().reshape(len(weight), -1)
        num_rows, num_columns = matrix.shape
        stride = max(1, num_columns // NUM_COLUMNS)
        columns = range(version % stride, num_columns, stride)
        picked = matrix[:, columns.start :: stride].clone()
        return cls(num_rows=num_rows, num_columns=num_columns, columns=columns, values=picked)

    def within(self, first: int, count: int) -> slice:
        """The slice of `columns` that lies in [`first`, `first` + `count`)."""
        inside = [i for i, column in enumerate(self.columns) if first <= column < first + count]
        return slice(inside[0], inside[-1] + 1) if inside else slice(0)


@dataclass(frozen=True, slots=True)
class HeldPart:
    """The part of a sample that an engine holds: all of it, or the slice of one tensor-parallel rank.

    Attributes:
        name: of the parameter.
        first_row: of the slice, in the whole parameter.
        columns: the held part of the sample's columns.
        values: in the engine.
    """

    name: str
    first_row: int
    columns: slice
    values: Float[Tensor, "rows picked"]

    def is_as_sent(self, sample: WeightSample) -> bool:
        """True if it equals the sample to the last bit, except for numbers that matrix units flush to 0."""
        sent = sample.values[self.first_row : self.first_row + len(self.values), self.columns]
        if sent.shape != self.values.shape:
            return False
        values = self.values.to(sent.dtype)
        if torch.equal(values, sent):
            return True
        # equal_nan: a NaN that was sent comes from a broken policy, not from a stale engine.
        return bool(torch.isclose(values, sent, rtol=0, atol=SMALLEST_NORMAL, equal_nan=True).all())


def not_as_sent(samples: Mapping[str, WeightSample], held: Iterable[HeldPart]) -> list[str]:
    """Names of the parameters that differ in the engine from what was sent; those it does not show are not checked.

    Example:
        >>> samples = {"norm": WeightSample.of(torch.ones(2), version=1)}
        >>> not_as_sent(samples, [HeldPart("norm", 0, slice(None), torch.tensor([[1.0], [1.0000001]]))])
        ['norm']
    """
    return list(dict.fromkeys(part.name for part in held if not part.is_as_sent(samples[part.name])))

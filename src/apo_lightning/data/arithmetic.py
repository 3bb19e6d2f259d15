"""Generated arithmetic problems, which need no file and no download."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from apo_lightning.common.hashing import hash64
from apo_lightning.common.ranges import Checked, Count, Within
from apo_lightning.data.filtering import FilterReport
from apo_lightning.data.rows import Row
from apo_lightning.data.sources import Problems
from apo_lightning.errors import ConfigError

OPERATORS = ("+", "-", "*")
COMMUTATIVE = ("+", "*")


@dataclass(frozen=True, kw_only=True)
class ArithmeticSource(Checked):
    """All problems `a ∘ b` with both operands in [min_operand, max_operand]; a part is held out.

    Each problem is on one side of the split only. Where the operator commutes, `a ∘ b` and `b ∘ a` are on the same
    side, as one reveals the other. The split depends on `split_seed` and the fields here, not on the run's seed, so
    runs with different seeds are measured on the same problems.

    Attributes:
        operators: any of "+", "-", "*".
        num_validation: number of problems held out; `split_seed` selects them.

    The other attributes are those of `DatasetSource`.

    Raises:
        ConfigError: an unknown operator, an empty range, or too few problems to hold out that many.

    Example:
        >>> source = ArithmeticSource(operators=["-"], max_operand=3, num_validation=2)
        >>> problems = source.load()
        >>> len(problems.train), len(problems.validation["arithmetic"])
        (7, 2)
        >>> row = problems.train[0]
        >>> row.problem, row.prefill, row.answer
        ('What is 1 - 2?', '1 - 2 =', '-1')
    """

    name: str = "arithmetic"
    operators: Sequence[str] = ("+",)
    min_operand: int = 1
    max_operand: int = 50
    num_validation: Annotated[int, Within("[0, inf)")] = 256
    split_seed: int = 0
    instruction: str = "{problem}"
    system: str | None = None
    max_prompt_tokens: Count = 96
    max_completion_tokens: Count = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        for operator in self.operators:
            if operator not in OPERATORS:
                raise ConfigError(f"operators has '{operator}': choose from {', '.join(OPERATORS)}")
        if not self.operators or len(set(self.operators)) < len(self.operators):
            raise ConfigError(f"operators is {list(self.operators)}: give at least one, and each once")
        if self.min_operand > self.max_operand:
            raise ConfigError(f"min_operand {self.min_operand} is above max_operand {self.max_operand}: swap them")
        num_problems = len(self.operators) * (self.max_operand - self.min_operand + 1) ** 2
        # The mirror image of the last held-out problem leaves the training set too.
        if num_problems < self.num_validation + 2:
            raise ConfigError(
                f"operands {self.min_operand}..{self.max_operand} make {num_problems} problems, too few to hold out "
                f"num_validation={self.num_validation} and train on the rest: raise max_operand or lower num_validation"
            )

    def check(self) -> None:
        """Do nothing: no file can be missing."""

    def load(self) -> Problems:
        """Make the problems and split them."""
        groups: dict[tuple[str, int, int], list[Row]] = {}
        operands = range(self.min_operand, self.max_operand + 1)
        for operator, a, b in itertools.product(self.operators, operands, operands):
            groups.setdefault(_group(operator, a, b), []).append(_row(operator, a, b))
        held_out: list[Row] = []
        held_out_groups = set()
        for group in sorted(groups, key=lambda group: hash64(repr((self.split_seed, *group)))):
            if len(held_out) >= self.num_validation:
                break
            held_out += groups[group]
            held_out_groups.add(group)
        train = [row for group, rows in groups.items() if group not in held_out_groups for row in rows]
        held_out = held_out[: self.num_validation]
        report = FilterReport(num_rows=len(train) + len(held_out), num_held_out=len(held_out), num_kept=len(train))
        validation = {self.name: held_out} if held_out else {}
        return Problems(train=train, validation=validation, report=report)


def _group(operator: str, a: int, b: int) -> tuple[str, int, int]:
    """Key of problems that stay together in the split: the operands, unordered where the operator commutes."""
    return (operator, min(a, b), max(a, b)) if operator in COMMUTATIVE else (operator, a, b)


def _row(operator: str, a: int, b: int) -> Row:
    value = {"+": a + b, "-": a - b, "*": a * b}[operator]
    return Row(
        id=f"{a}{operator}{b}",
        problem=f"What is {a} {operator} {b}?",
        answer=str(value),
        prefill=f"{a} {operator} {b} =",
    )

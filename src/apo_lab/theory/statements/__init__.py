"""Every statement of the theory in one list, which the command, `docs/theory.md` and the tests read."""

from apo_lab.theory.statements import anchoring, dynamics, forces, long_run, squeezing
from apo_lab.theory.statements.statement import Reading, Statement, Truth


def _place(statement: Statement) -> tuple[int, int]:
    """Forces and expectations first, then the paper's claims in its order, then the long run."""
    return "FECPGT".index(statement.key[0]), int(statement.key[1:])


_MODULES = (forces, squeezing, dynamics, anchoring, long_run)
_FOUND = (value for module in _MODULES for value in vars(module).values() if isinstance(value, Statement))
STATEMENTS: tuple[Statement, ...] = tuple(sorted(_FOUND, key=_place))

__all__ = ["STATEMENTS", "Reading", "Statement", "Truth"]

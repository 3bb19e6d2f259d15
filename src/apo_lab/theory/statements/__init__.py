"""Every statement of the theory, in one list: the command, the page and the tests read it."""

from apo_lab.theory.statements import anchoring, dynamics, forces, long_run, squeezing
from apo_lab.theory.statements.record import Reading, Statement, Verdict


def _place(statement: Statement) -> tuple[int, int]:
    """Forces and expectations first, then the paper's claims in its order, then the long run."""
    return "FECPGT".index(statement.key[0]), int(statement.key[1:])


STATEMENTS: tuple[Statement, ...] = tuple(
    sorted(
        (
            *forces.STATEMENTS,
            *squeezing.STATEMENTS,
            *dynamics.STATEMENTS,
            *anchoring.STATEMENTS,
            *long_run.STATEMENTS,
        ),
        key=_place,
    )
)
"""All of them."""

__all__ = ["STATEMENTS", "Reading", "Statement", "Verdict"]

"""Every statement of the theory holds on the losses that train."""

import pytest

from apo_lab.theory.statements import STATEMENTS


@pytest.mark.parametrize("statement", STATEMENTS, ids=lambda statement: statement.key)
def test_what_is_measured_is_what_the_formula_says(statement):
    wrong = [reading for reading in statement.check() if not reading.holds]
    assert wrong == []


def test_every_claim_of_the_list_has_one_statement():
    keys = [statement.key for statement in STATEMENTS]
    assert keys == [
        *("F1", "F2", "E1", "E2", "E3", "E4"),
        *(f"C{number}" for number in range(1, 21)),
        *("P1", "G1", "G2", "T1", "T2"),
    ]

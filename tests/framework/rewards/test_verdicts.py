from typing import get_args

import pytest

from apo_lightning.contracts import check_error_rate
from apo_lightning.errors import VerifierError
from apo_lightning.types import Verdict, VerdictStatus

STATUSES: tuple[VerdictStatus, ...] = get_args(VerdictStatus)


def verdicts(**counts: int) -> list[Verdict]:
    return [Verdict(reward=0.0, status=status) for status in STATUSES for _ in range(counts.get(status, 0))]


def test_a_run_survives_one_per_cent_of_errors_and_not_more():
    check_error_rate([], of="a step")
    check_error_rate(verdicts(correct=99, error=1), of="a step")
    with pytest.raises(VerifierError, match="2 of 199 completions"):
        check_error_rate(verdicts(incorrect=197, error=2), of="a step")
    # A policy cannot stop the run with what hangs or says nothing.
    check_error_rate(verdicts(timeout=50, unparsed=50), of="a step")

"""The limit on verifier failures that stops a run."""

from collections.abc import Sequence

from apo_lightning.errors import VerifierError
from apo_lightning.types import Verdict, count_statuses

LIMIT = 0.01
"""Largest tolerated fraction of errors."""


def has_too_many_errors(verdicts: Sequence[Verdict], limit: float = LIMIT) -> bool:
    """Whether the verifier failed on more than `limit` of the completions."""
    return count_statuses(verdict.status for verdict in verdicts)["error"] > limit * len(verdicts)


def check_error_rate(verdicts: Sequence[Verdict], limit: float = LIMIT, *, of: str = "a step") -> None:
    """Raise where the verifier failed too often for the rewards or the scores to mean anything.

    Only `error` counts, a failure of the *verifier*: a worker died, a gold answer cannot be parsed, a reward function
    raised. A policy causes `unparsed` and `timeout` by itself, and could end its run if they counted.

    Args:
        verdicts: of one step, or of one validation pass over one held-out set, on all ranks: a rank that checked its
            own share alone would leave the others waiting.
        limit: largest tolerated fraction of errors, in [0, 1].
        of: what was scored, for the message.

    Raises:
        VerifierError: more than `limit` of the verdicts are errors.

    Example:
        >>> right, broken = Verdict(reward=1.0, status="correct"), Verdict(reward=0.0, status="error")
        >>> check_error_rate([right] * 99 + [broken])
        >>> check_error_rate([right] * 98 + [broken] * 2, of="step 3")
        Traceback (most recent call last):
        apo_lightning.errors.VerifierError: 2 of 100 completions of step 3 could not be judged (limit 1%): ...
    """
    if has_too_many_errors(verdicts, limit):
        errors = [verdict for verdict in verdicts if verdict.status == "error"]
        answers = f"see the verifier's warnings in the log. The first answers were {[v.extracted for v in errors[:3]]}"
        reason = next((verdict.reason for verdict in errors if verdict.reason is not None), answers)
        raise VerifierError(
            f"{len(errors)} of {len(verdicts)} completions of {of} could not be judged (limit {limit:.0%}): their "
            f"reward of 0 means nothing; {reason}"
        )

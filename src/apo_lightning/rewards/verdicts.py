"""A run stops where its verifier fails too often for the rewards to mean anything."""

from collections.abc import Sequence

from apo_lightning.errors import VerifierError
from apo_lightning.types import Verdict, count_statuses


def check_error_rate(verdicts: Sequence[Verdict], limit: float = 0.01, *, of: str = "a step") -> None:
    """Stop a run whose rewards, or whose held-out scores, have become meaningless.

    Only `error` counts, which says that the *verifier* failed: a worker died, a gold answer cannot be read, a reward
    function raised. `unparsed` and `timeout` are what a policy brings about by itself, and would let it end the run.

    Args:
        verdicts: those of one step, or of one validation pass over one held-out set, on all ranks: a rank that judged
            its own share alone would leave the others waiting for it.
        limit: the largest tolerated share of errors, in [0, 1].
        of: what was judged, for the message.

    Raises:
        VerifierError: more than `limit` of the verdicts are errors.

    Example:
        One error in a hundred is tolerated, two are not.

        >>> right, broken = Verdict(reward=1.0, status="correct"), Verdict(reward=0.0, status="error")
        >>> check_error_rate([right] * 99 + [broken])
        >>> check_error_rate([right] * 98 + [broken] * 2, of="step 3")
        Traceback (most recent call last):
        apo_lightning.errors.VerifierError: 2 of 100 completions of step 3 could not be judged (limit 1%): ...
    """
    counts = count_statuses(verdict.status for verdict in verdicts)
    if counts["error"] > limit * len(verdicts):
        examples = [verdict.extracted for verdict in verdicts if verdict.status == "error"][:3]
        raise VerifierError(
            f"{counts['error']} of {len(verdicts)} completions of {of} could not be judged (limit {limit:.0%}): their "
            f"reward of 0 says nothing; the verifier's warnings in the log say why, the first answers were {examples}"
        )

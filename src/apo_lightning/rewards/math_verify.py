"""Mathematical equality of a completion's answer and the gold answer, by `math_answers`."""

from collections.abc import Sequence

from apo_lightning.common.formatting import GIB
from apo_lightning.contracts import Reward
from apo_lightning.errors import ConfigError, VerifierError
from apo_lightning.types import Verdict, VerdictStatus
from math_answers import explain, extract
from math_answers.pool import WorkerPool, WorkersFailedError


class MathVerifyReward(Reward):
    r"""Reward 1 where the answer is mathematically equal to the gold answer; else 0.

    `math_answers` extracts the answer and compares it: docs/verifier.md says what is the same. A completion without a
    box and without an "Answer:" line is `unparsed`, as is an answer with anything on no closed list: prose is never
    searched for a number, which a policy learns to exploit. An answer that would take too much work is `timeout`.

    Answers are judged in worker processes that start on first use. A verdict depends on gold and answer alone; one
    that takes longer than the deadline all the same ends its process, and is `timeout` too.

    Args:
        num_workers: processes, about 30 MiB each.
        timeout_s: CPU time for one answer [s].
        memory_limit_gib: address space of a worker [GiB].

    Raises:
        ConfigError: an argument is out of its range.

    Example:
        >>> reward = MathVerifyReward()
        >>> reward.score([r"so it is \boxed{042}", "perhaps 42"], ["42", "42"])  # doctest: +NORMALIZE_WHITESPACE
        [Verdict(reward=1.0, status='correct', extracted='042'),
         Verdict(reward=0.0, status='unparsed', extracted=None)]
    """

    SCORES_WHILE_GENERATING = True

    def __init__(self, num_workers: int = 2, timeout_s: float = 5.0, memory_limit_gib: float = 2.0):
        if num_workers < 1:
            raise ConfigError(f"reward.num_workers is {num_workers}: give at least 1")
        if not 0 < timeout_s < float("inf"):
            raise ConfigError(f"reward.timeout_s is {timeout_s}: give a positive number of seconds")
        if memory_limit_gib < 0.25:
            raise ConfigError(f"reward.memory_limit_gib is {memory_limit_gib}: an interpreter alone needs 0.25")
        self.pool = WorkerPool(num_workers, timeout_s, int(memory_limit_gib * GIB))

    def score(self, completions: Sequence[str], answers: Sequence[str]) -> list[Verdict]:
        """One verdict per completion, in order."""
        stated = [extract(completion, gold) for completion, gold in zip(completions, answers, strict=True)]
        pairs = list(zip(answers, stated, strict=True))
        # The completions of a group often repeat an answer: judge it once.
        distinct = dict.fromkeys((gold, answer) for gold, answer in pairs if answer)
        # A worker's reply takes longer than to compare digits.
        found: dict[tuple[str, str], VerdictStatus] = {}
        found |= {pair: explain(*pair).status for pair in distinct if all(text.isdecimal() for text in pair)}
        asked = [pair for pair in distinct if pair not in found]
        try:
            found |= zip(asked, self.pool.judge(asked), strict=True)
        except WorkersFailedError as error:
            raise VerifierError(str(error)) from error
        return [_verdict(found[gold, answer] if answer else "unparsed", answer) for gold, answer in pairs]

    def check_answers(self, answers: Sequence[str]) -> None:
        """Raise ConfigError for the first gold answer that cannot be read."""
        for index, gold in enumerate(answers):
            # Another text, so that it is read.
            explanation = explain(gold, "no answer")
            if explanation.status == "error":
                raise ConfigError(
                    f"answer {index} of {len(answers)} is {gold[:200]!r}: {explanation.rule}; "
                    "correct or drop the row, or use reward=callable"
                )

    def close(self) -> None:
        """End the workers."""
        self.pool.close()


def _verdict(status: VerdictStatus, answer: str | None) -> Verdict:
    return Verdict(reward=float(status == "correct"), status=status, extracted=answer)

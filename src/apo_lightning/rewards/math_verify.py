"""Mathematical equality, decided by math-verify in processes that can be killed."""

import re
from collections.abc import Sequence

from apo_lightning.errors import ConfigError
from apo_lightning.rewards.extraction import MAX_ANSWER_CHARS, last_boxed, last_line_after, unwrap
from apo_lightning.rewards.worker_pool import WorkerPool
from apo_lightning.types import Verdict, VerdictStatus

_MARKER = re.compile(r"answer\s*:", re.IGNORECASE)
_INTEGER = re.compile(r"([-+]?)0*([0-9]+)")
_PERCENT = re.compile(r"\s*\\?%$")
_E_NOTATION = re.compile(r"(?<![\w.\\])([0-9]+(?:\.[0-9]+)?)[eE]([-+]?[0-9]+)(?![\w.])")


class MathVerifyReward:
    r"""1 where the stated answer is mathematically equal to the gold one; else 0.

    The answer is the content of the last `\boxed{…}`, else the line after the last "Answer:"; a completion with
    neither is `unparsed`: prose is never searched for a number, which a policy learns to exploit. Integers and
    identical strings are compared here and exactly; the rest goes to math-verify, in worker processes that start
    when first needed. A worker that takes too long, crashes or outgrows its memory is replaced and the answer's
    verdict is `timeout` or `error`; an answer that math-verify finds but cannot read is `unparsed`.

    Departure: before math-verify sees them, both sides lose a trailing full stop or percent sign (it rejects the one
    and fails to parse the other in a box) and 4.5e33, which it reads as 4.5·e·33, becomes 4.5 × 10³³.

    Source: math-verify (Hugging Face), `parse` and `verify` with their own time-outs off: those use SIGALRM handlers,
    which work in a main thread only and cannot interrupt a long computation in C.

    Args:
        num_workers: processes, about 60 MiB each.
        timeout_s: for one answer, from when a worker receives it [s].
        memory_limit_gib: address space of a worker [GiB].

    Raises:
        ConfigError: an argument is out of its range.

    Example:
        >>> reward = MathVerifyReward()
        >>> reward.score([r"so it is \boxed{042}", "perhaps 42"], ["42", "42"])  # doctest: +NORMALIZE_WHITESPACE
        [Verdict(reward=1.0, status='correct', extracted='042'),
         Verdict(reward=0.0, status='unparsed', extracted=None)]
    """

    def __init__(self, num_workers: int = 2, timeout_s: float = 5.0, memory_limit_gib: float = 2.0):
        if num_workers < 1:
            raise ConfigError(f"reward.num_workers is {num_workers}: give at least 1")
        if not 0 < timeout_s < float("inf"):
            raise ConfigError(f"reward.timeout_s is {timeout_s}: give a positive number of seconds")
        if memory_limit_gib < 0.25:
            raise ConfigError(f"reward.memory_limit_gib is {memory_limit_gib}: sympy alone needs 0.25")
        self.pool = WorkerPool(num_workers, timeout_s, int(memory_limit_gib * 2**30))

    def score(self, completions: Sequence[str], answers: Sequence[str]) -> list[Verdict]:
        """One verdict per completion, in order."""
        stated = [_stated_answer(completion) for completion in completions]
        pairs = [(_usable(gold), normalise(answer or "")) for gold, answer in zip(answers, stated, strict=True)]
        statuses: list[VerdictStatus | None] = [
            _compare_here(gold, answer) if answer else "unparsed" for gold, answer in pairs
        ]
        # A group often repeats one wrong answer: judge it once.
        open_pairs = dict.fromkeys(pair for pair, status in zip(pairs, statuses, strict=True) if status is None)
        judged = dict(zip(open_pairs, self.pool.judge(list(open_pairs)), strict=True))
        return [
            _verdict(status or judged[pair], answer)
            for status, pair, answer in zip(statuses, pairs, stated, strict=True)
        ]

    def check_answers(self, answers: Sequence[str]) -> None:
        """Raise ConfigError for the first gold answer that math-verify does not find equal to itself.

        Takes about a second per thousand distinct golds that are no integers.
        """
        normalised = [_usable(gold) for gold in answers]
        distinct = list(dict.fromkeys(gold for gold in normalised if gold and not _INTEGER.fullmatch(gold)))
        statuses = dict(zip(distinct, self.pool.judge([(gold, gold) for gold in distinct]), strict=True))
        for index, gold in enumerate(normalised):
            if not gold or statuses.get(gold, "correct") != "correct":
                raise ConfigError(
                    f"answer {index} of {len(answers)} is {answers[index][:200]!r}, which math-verify cannot read: "
                    "correct or drop the row, or use reward=callable"
                )

    def close(self) -> None:
        """End the workers."""
        self.pool.close()


def normalise(answer: str) -> str:
    r"""The answer in the form that math-verify reads.

    Example:
        >>> normalise("$4.5e33$."), normalise(r"50\%"), normalise(r"\boxed{7}")
        ('4.5 \\times 10^{33}', '50', '7')
    """
    boxed = last_boxed(answer)
    answer = _PERCENT.sub("", unwrap(answer if boxed is None else boxed))
    return _E_NOTATION.sub(r"\1 \\times 10^{\2}", answer)


def _usable(gold: str) -> str:
    """The gold answer, normalised; empty (which no worker can read) where it is too long to be one."""
    return normalise(gold) if len(gold) <= MAX_ANSWER_CHARS else ""


def _stated_answer(completion: str) -> str | None:
    # An unclosed box is a completion cut short, so that an earlier "Answer:" is not its answer.
    is_boxed = r"\boxed" in completion
    answer = last_boxed(completion) if is_boxed else last_line_after(completion, _MARKER)
    return None if answer is None or len(answer) > MAX_ANSWER_CHARS else answer


def _compare_here(gold: str, answer: str) -> VerdictStatus | None:
    """The verdict where text alone decides it exactly; None where mathematics is needed."""
    integers = _INTEGER.fullmatch(gold), _INTEGER.fullmatch(answer)
    if integers[0] and integers[1]:
        # Digits without leading zeros decide, so no length limit of int() is met.
        (gold_sign, gold_digits), (sign, digits) = integers[0].groups(), integers[1].groups()
        is_equal = gold_digits == digits and (digits == "0" or (gold_sign == "-") == (sign == "-"))
        return "correct" if is_equal else "incorrect"
    # In mathematics mode blanks mean nothing.
    return "correct" if "".join(gold.split()) == "".join(answer.split()) else None


def _verdict(status: VerdictStatus, answer: str | None) -> Verdict:
    return Verdict(reward=float(status == "correct"), status=status, extracted=answer)

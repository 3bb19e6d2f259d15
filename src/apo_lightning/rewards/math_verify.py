"""Mathematical equality, decided by math-verify in processes that can be killed."""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

from apo_lightning.common.formatting import GIB
from apo_lightning.errors import ConfigError
from apo_lightning.rewards.comparison import compare_answers, expressions, num_parts
from apo_lightning.rewards.extraction import MAX_ANSWER_CHARS, final_boxes, last_boxed, last_line_after, unwrap
from apo_lightning.rewards.normalise import normalise
from apo_lightning.rewards.worker_pool import WorkerPool
from apo_lightning.types import Verdict, VerdictStatus

_MARKER = re.compile(r"(?:answer|答案)\s*[:：]", re.IGNORECASE)


class MathVerifyReward:
    r"""Reward 1 where the answer is mathematically equal to the gold answer; else 0.

    The answer is the content of the last `\boxed{…}`, else the line after the last "Answer:". Where the gold answer is
    a list or set of n parts and exactly n boxes end the completion together (`final_boxes`), each with one part, they
    are one answer. A completion with neither is `unparsed`: prose is never searched for a number, which a policy learns
    to exploit.

    Numbers, words and parts of lists are compared here, other expressions in worker processes that start on first use.
    One that takes too long, needs too much memory or crashes is replaced. The verdict is `timeout`, for a crash
    `error`; an answer that cannot be parsed is `unparsed`.

    Departure: math-verify alone refuses right answers and accepts wrong ones; docs/decisions/
    0011-what-counts-as-the-same-answer.md lists what is decided otherwise here, and why.

    Source: math-verify (Hugging Face), `verify` and its LaTeX parser, with their own time-outs off: those use SIGALRM
    handlers, which work in a main thread only and cannot interrupt a long computation in C.

    Args:
        num_workers: processes, about 60 MiB each.
        timeout_s: CPU time for one answer; a twentieth while many hang [s].
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
            raise ConfigError(f"reward.memory_limit_gib is {memory_limit_gib}: sympy alone needs 0.25")
        self.pool = WorkerPool(num_workers, timeout_s, int(memory_limit_gib * GIB))

    def score(self, completions: Sequence[str], answers: Sequence[str]) -> list[Verdict]:
        """One verdict per completion, in order."""
        golds = [_usable(gold) for gold in answers]
        stated = [_stated_answer(completion, gold) for completion, gold in zip(completions, golds, strict=True)]
        pairs = [(gold, _normalise(answer or "")) for gold, answer in zip(golds, stated, strict=True)]
        # The completions of a group often repeat a wrong answer: judge it once.
        statuses = self._judge(dict.fromkeys(pairs))
        return [
            Verdict(reward=float(statuses[pair] == "correct"), status=statuses[pair], extracted=answer)
            for pair, answer in zip(pairs, stated, strict=True)
        ]

    def check_answers(self, answers: Sequence[str]) -> None:
        """Raise ConfigError for the first gold answer with a part that math-verify does not find equal to itself.

        Takes about ten seconds per thousand distinct golds that are not numbers.
        """
        normalised = [_usable(gold) for gold in answers]
        parts = {gold: expressions(gold) for gold in dict.fromkeys(normalised)}
        distinct = list(dict.fromkeys(part for gold_parts in parts.values() for part in gold_parts))
        statuses = dict(zip(distinct, self.pool.judge([(part, part) for part in distinct]), strict=True))
        for index, gold in enumerate(normalised):
            if not gold or any(statuses[part] != "correct" for part in parts[gold]):
                raise ConfigError(
                    f"answer {index} of {len(answers)} is {answers[index][:200]!r}, which math-verify cannot read: "
                    "correct or drop the row, or use reward=callable"
                )

    def close(self) -> None:
        """End the workers."""
        self.pool.close()

    def _judge(self, pairs: Iterable[tuple[str, str]]) -> dict[tuple[str, str], VerdictStatus]:
        """The status of each pair of normalised gold and answer."""
        statuses: dict[tuple[str, str], VerdictStatus] = {}
        known: dict[tuple[str, str], VerdictStatus] = {}
        waiting = list(pairs)
        while waiting:
            # One question per answer at a time: an answer whose question hangs asks no more, so it costs one worker.
            questions: dict[tuple[str, str], tuple[str, str]] = {}
            for pair in waiting:
                unknown: list[tuple[str, str]] = []
                status = _decide(*pair, known, unknown)
                if status is None:
                    questions[pair] = unknown[0]
                else:
                    statuses[pair] = status
            asked = list(dict.fromkeys(questions.values()))
            known.update(zip(asked, self.pool.judge(asked), strict=True))
            waiting = list(questions)
        return statuses


def _usable(gold: str) -> str:
    """The normalised gold answer; empty where it is too long."""
    return _normalise(gold) if len(gold) <= MAX_ANSWER_CHARS else ""


_normalise = lru_cache(maxsize=4096)(normalise)  # the completions of a group share their gold and often their answer


def _stated_answer(completion: str, gold: str) -> str | None:
    # An unclosed box means a truncated completion: an earlier "Answer:" does not count.
    is_boxed = r"\boxed" in completion
    answer = last_boxed(completion) if is_boxed else last_line_after(completion, _MARKER)
    if is_boxed and (size := num_parts(gold)) > 1:
        answer = _joined(final_boxes(completion, most=size + 1), size) or answer
    return None if answer is None or len(answer) > MAX_ANSWER_CHARS else answer


def _joined(boxes: Sequence[str], size: int) -> str | None:
    """`size` boxes with one part each as one list; None where the number differs or a box holds a list."""
    if len(boxes) != size or sum(map(len, boxes)) > MAX_ANSWER_CHARS:
        return None
    parts = [unwrap(box) for box in boxes]
    is_list = all(parts) and all(num_parts(_normalise(part)) == 1 for part in parts)
    return ", ".join(parts) if is_list else None


def _decide(
    gold: str, answer: str, known: Mapping[tuple[str, str], VerdictStatus], unknown: list[tuple[str, str]]
) -> VerdictStatus | None:
    """The verdict; None where it depends on questions, which are added to `unknown`."""
    if not gold or not answer:
        return "unparsed" if not answer else "error"

    def ask(one: str, other: str) -> VerdictStatus | None:
        if (one, other) not in known:
            unknown.append((one, other))
        return known.get((one, other))

    return compare_answers(gold, answer, ask)

"""The interface of a reward."""

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from apo_lightning.types import Prompt, Verdict


@runtime_checkable
class Reward(Protocol):
    """Scores completions against gold answers. An instance may keep processes open between calls.

    A subclass inherits a `check_answers` that accepts all answers and a `close` that does nothing.

    A class may set `SCORES_WHILE_GENERATING = True`. Its `score` is then called several times a step, from another
    thread, with the completions that are finished, in any order; so a verdict must depend on its own completion and
    answer alone. All others are called once a step.

    A reward that reads more than texts and answers is a `SampleReward` as well.
    """

    def score(self, completions: Sequence[str], answers: Sequence[str]) -> list[Verdict]:
        """One verdict per completion, in order. Never raises for the content of a completion."""
        ...

    def check_answers(self, answers: Sequence[str]) -> None:
        """Check the gold answers; called once, before any model is loaded.

        Raises:
            ConfigError: this reward cannot judge a gold answer; the message names the first one and the remedy.
        """

    def close(self) -> None:
        """End the processes that the reward has started. May be called twice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerState:
    """How far the run is when completions are scored, in TRL's names.

    Held-out problems are always scored as at the end of the run, so that passes can be compared; evaluations, which
    belong to no run, with zeros.
    """

    global_step: int = 0
    """Optimizer steps so far."""
    max_steps: int = 0
    """Optimizer steps of the run, or of its `schedule_horizon`."""
    epoch: float = 0.0
    """Prompts drawn so far, in passes over the training set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """The completions of one call, one entry each; those of a prompt are adjacent."""

    prompts: Sequence[Prompt]
    texts: Sequence[str]
    """With special tokens, without the stop token; see `Rollouts.texts`."""
    plain_texts: Sequence[str]
    """Without special tokens, as TRL decodes them."""
    token_ids: Sequence[Sequence[int]]
    """Sampled tokens, the stop token included."""
    state: TrainerState = TrainerState()
    metrics: dict[str, list[float]] = field(default_factory=dict)
    """Filled by the reward: numbers to log, by name."""

    @property
    def answers(self) -> list[str]:
        """The gold answers."""
        return [prompt.answer for prompt in self.prompts]


@runtime_checkable
class SampleReward(Protocol):
    """A reward that reads prompts, columns of the data set, token ids or the state of the run; called once a step."""

    def score_samples(self, samples: Samples) -> list[Verdict]:
        """One verdict per completion, in order, used instead of `score`."""
        ...

    def check_prompts(self, prompts: Sequence[Prompt]) -> None:
        """Raise `ConfigError`, before any model is loaded, where the prompts lack what the reward reads."""
        ...


def is_scored_while_generating(reward: Reward) -> bool:
    """True for a reward that may be called while completions are still being sampled (see `Reward`)."""
    return getattr(reward, "SCORES_WHILE_GENERATING", False)


class ReadsSamples(Reward):
    """A reward whose `score` is its `score_samples` without a data set; subclasses change the latter.

    Raises:
        TypeError: when a subclass is defined that changes `score` alone, which no run would call.
    """

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "score" in cls.__dict__ and "score_samples" not in cls.__dict__:
            raise TypeError(f"{cls.__name__} defines score, and a run calls score_samples: define that one")


def score_samples(reward: Reward, samples: Samples) -> list[Verdict]:
    """The verdicts of any reward, from as much of the samples as it reads."""
    with forks_ended():
        if isinstance(reward, SampleReward):
            return reward.score_samples(samples)
        return reward.score(samples.texts, samples.answers)


@contextlib.contextmanager
def forks_ended() -> Iterator[None]:
    """End a process that the block has forked, as its own exit says: it would go on as a second run in the folder."""
    own = os.getpid()
    try:
        yield
    finally:
        if os.getpid() != own:
            ended = sys.exc_info()[1]
            status = ended.code if isinstance(ended, SystemExit) else ended and 1
            os._exit(status if isinstance(status, int) else int(status is not None))


def check_prompts(reward: Reward, prompts: Sequence[Prompt]) -> None:
    """Raise `ConfigError` where a reward cannot judge the completions of a prompt."""
    reward.check_answers([prompt.answer for prompt in prompts])
    if isinstance(reward, SampleReward):
        reward.check_prompts(prompts)

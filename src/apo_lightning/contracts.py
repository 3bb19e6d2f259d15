"""What the trunk takes of a reward, an advantage estimator and a loss, and how it calls them.

The packages `rewards`, `advantages` and `losses` hold those that come with the framework; a step knows none of them.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from apo_lightning.errors import ConfigError, VerifierError
from apo_lightning.types import (
    AdvantageInputs,
    Advantages,
    LossInputs,
    LossOutput,
    Needs,
    Prompt,
    Verdict,
    count_statuses,
)


@runtime_checkable
class Recipe(Protocol):
    """What a run is made of, before any weights are loaded; `run.recipe` makes it.

    A loss, reward, callback or option of the step that cannot work in every run has `check(recipe)`, which raises
    `ConfigError`.
    """

    settings: Any
    """`StepSettings`."""
    loss: Any
    advantage: Any
    callbacks: Any
    """Callbacks by key."""
    options: Any
    """Options of the step by key, such as `algo.critic`."""
    needs: Any
    """`Needs`: what loss, callbacks and options read."""
    max_steps: Any
    model: Any
    """`PolicySpec`."""
    tokenizer: Any
    lora: Any
    is_sharded: Any
    data: Any
    """`PromptDataModule`; reading it loads all problems."""


# ------------------------------------------------------------------ rewards


@runtime_checkable
class Reward(Protocol):
    """Scores completions against gold answers. An instance may keep processes open between calls.

    A subclass inherits a `check_answers` that accepts all answers and a `close` that does nothing.

    A class may set `SCORES_WHILE_GENERATING = True`. Its `score` is then called several times a step, from another
    thread, with the completions that are finished, in any order; so a verdict must depend on its own completion and
    answer alone. All others are called once a step. One with `states_answers = False` gives no `Verdict.extracted`, and
    is refused with what counts answers.

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


def score_samples(reward: Reward, samples: Samples) -> list[Verdict]:
    """The verdicts of any reward, from as much of the samples as it reads."""
    if isinstance(reward, SampleReward):
        return reward.score_samples(samples)
    return reward.score(samples.texts, samples.answers)


def check_prompts(reward: Reward, prompts: Sequence[Prompt]) -> None:
    """Raise `ConfigError` where a reward cannot judge the completions of a prompt."""
    reward.check_answers([prompt.answer for prompt in prompts])
    if isinstance(reward, SampleReward):
        reward.check_prompts(prompts)


ERROR_LIMIT = 0.01
"""Largest tolerated fraction of errors."""


def check_error_rate(verdicts: Sequence[Verdict], *, of: str) -> None:
    """Raise where the verifier failed too often for the rewards or the scores to mean anything.

    Only `error` counts, a failure of the *verifier*: a worker died, a gold answer cannot be parsed, a reward function
    raised. A policy causes `unparsed` and `timeout` by itself, and could end its run if they counted.

    Args:
        verdicts: of one step, or of one validation pass over one held-out set, on all ranks: a rank that checked its
            own share alone would leave the others waiting.
        of: what was scored, for the message.

    Raises:
        VerifierError: more than `ERROR_LIMIT` of the verdicts are errors.

    Example:
        >>> right, broken = Verdict(reward=1.0, status="correct"), Verdict(reward=0.0, status="error")
        >>> check_error_rate([right] * 99 + [broken], of="step 3")
        >>> check_error_rate([right] * 98 + [broken] * 2, of="step 3")
        Traceback (most recent call last):
        apo_lightning.errors.VerifierError: 2 of 100 completions of step 3 could not be judged (limit 1%): ...
    """
    if count_statuses(verdict.status for verdict in verdicts)["error"] > ERROR_LIMIT * len(verdicts):
        errors = [verdict for verdict in verdicts if verdict.status == "error"]
        answers = f"see the verifier's warnings in the log. The first answers were {[v.extracted for v in errors[:3]]}"
        reason = next((verdict.reason for verdict in errors if verdict.reason is not None), answers)
        raise VerifierError(
            f"{len(errors)} of {len(verdicts)} completions of {of} could not be judged (limit {ERROR_LIMIT:.0%}): "
            f"their reward of 0 means nothing; {reason}"
        )


# ------------------------------------------------------------------ advantages


@runtime_checkable
class AdvantageEstimator(Protocol):
    """Turns the rewards of a step's completions into advantages.

    It is called once a step, with whole groups. `keep` False removes a completion from the update and from every
    denominator; an advantage of 0 does not.

    An estimator that is defined for rewards of 0 and 1 only says so in `needs`. One that cannot work with groups of any
    size has `check(group_size)`, which raises `ConfigError` before the run. One whose advantages are of tokens, from a
    critic's values, has `per_token = True`.
    """

    def __call__(self, inputs: AdvantageInputs) -> Advantages:
        """Advantages of a step's completions."""
        ...


def estimators_in(estimator: Any) -> Iterator[AdvantageEstimator]:
    """An estimator and those that it wraps, from the outside in."""
    yield estimator
    if hasattr(estimator, "estimator"):
        yield from estimators_in(estimator.estimator)


def check_group_size(part: object, group_size: int) -> None:
    """Raise `ConfigError` where an estimator, or a part of one, cannot work with groups of this size."""
    getattr(part, "check", lambda group_size: None)(group_size)


def advantages_of(estimator: AdvantageEstimator, inputs: AdvantageInputs) -> Advantages:
    """The advantages of a step; completions that no reward applies to are left out of their groups.

    With a critic, which has no groups, they leave the update: their return is unknown.
    """
    if inputs.unscored is None:
        return estimator(inputs)
    if not any(getattr(part, "per_token", False) for part in estimators_in(estimator)):
        return without(estimator, inputs, inputs.unscored)
    given = estimator(inputs)
    return replace(given, keep=given.keep & ~inputs.unscored)


def without(estimator: AdvantageEstimator, inputs: AdvantageInputs, left_out: Tensor) -> Advantages:
    """Advantages in groups from which some completions are left out.

    The estimator is called with the rest of each group. Completions that are left out have A = 0, and so have all of a
    group whose rest is a single completion, or too small for the estimator. `left_out` is [P, G].
    """
    if not left_out.any():
        return estimator(inputs)
    values, keep = torch.zeros_like(inputs.rewards), torch.ones_like(left_out)
    for prompt, absent in enumerate(left_out):
        members = (~absent).nonzero().flatten().tolist()
        try:
            check_group_size(estimator, len(members))
        except ConfigError:
            continue
        if len(members) >= 2:
            part = estimator(inputs.part(prompt, members))
            values[prompt, members] = part.values[0]
            keep[prompt, members] = part.keep[0]
    return Advantages(values=values, keep=keep)


# ------------------------------------------------------------------ losses


class Loss(ABC):
    """A loss per token: `loss(inputs)` is minimised, after one weight per token and a sum."""

    @property
    @abstractmethod
    def needs(self) -> Needs:
        """What the loss reads beyond the log-probs of the sampled tokens, and where it can have a gradient."""

    @abstractmethod
    def __call__(self, inputs: LossInputs) -> LossOutput:
        """Loss and metrics of some tokens; no token's loss depends on another token."""

    def completion_columns(self, inputs: LossInputs) -> Mapping[str, Float[Tensor, "tokens"]]:
        """Values of tokens that depend on their whole completion; they come back as `LossInputs.columns`.

        Called with every micro-batch where `needs.completions`: with all tokens of its completions, at the current
        policy, and without a gradient.
        """
        return {}

    @property
    def metric_defaults(self) -> Mapping[str, float]:
        """Metric name → its value on tokens that the update does not run, for a mean over all response tokens.

        A metric that is not named here is a mean over the tokens of the update to which it applies.
        """
        return {}

    @property
    def medians(self) -> frozenset[str]:
        """Names of metrics that are logged as a median over tokens, since few large values would make up a mean."""
        return frozenset()

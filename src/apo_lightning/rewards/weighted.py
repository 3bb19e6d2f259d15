"""Several rewards and their weighted sum."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from apo_lightning.contracts import Recipe, Reward, Samples, check_prompts, score_samples
from apo_lightning.errors import ConfigError
from apo_lightning.rewards.callable import CallableReward, ReadsSamples
from apo_lightning.types import Needs, Prompt, Verdict


class WeightedRewards(ReadsSamples):
    """The weighted sum of several rewards, each of which is logged apart.

        R = Σ_j ω_j·R_j   over the j that are not None;   all None: *unscored*

    The completion is correct where the function `correct` says so, whatever the others give. Where one of the functions
    fails, the verdict is an `error`.

    Source: TRL 1.16, `reward_funcs` and `reward_weights`, `multi_objective_aggregation="sum_then_normalize"`.

    Args:
        functions: by name, each a function in TRL's signature or a `Reward`; its None is a completion that is not
            scored.
        weights: ω by name; 1 where none is given.
        correct: the name of the function that decides which completions are correct; None: the first.
        correct_threshold, format: of the functions, as in `CallableReward`.

    Raises:
        ConfigError: there is no function, a name is unknown, or a weight is not a finite number.

    Example:
        >>> def right(completions, answer, **kwargs):
        ...     return [float(text == gold) for text, gold in zip(completions, answer)]
        >>> def short(completions, **kwargs):
        ...     return [None if len(text) > 3 else 1.0 / len(text) for text in completions]
        >>> reward = WeightedRewards({"right": right, "short": short}, weights={"short": 0.2})
        >>> [verdict.reward for verdict in reward.score(["4", "12", "four"], ["4", "4", "4"])]
        [1.2, 0.1, 0.0]
    """

    def __init__(
        self,
        functions: Mapping[str, Any],
        weights: Mapping[str, float | int] | None = None,
        correct: str | None = None,
        correct_threshold: float = 1.0,
        format: str = "auto",
    ) -> None:
        if not functions:
            raise ConfigError("reward.functions is empty: give at least one function by name")
        self.functions: dict[str, Reward] = {
            name: f if isinstance(f, Reward) else CallableReward(f, correct_threshold, format)
            for name, f in functions.items()
        }
        self.weights = dict.fromkeys(functions, 1.0) | dict(weights or {})
        self.correct = next(iter(functions)) if correct is None else correct
        for setting, names in (("weights", self.weights), ("correct", (self.correct,))):
            if unknown := set(names) - set(functions):
                raise ConfigError(f"reward.{setting} names {min(unknown)!r}: the functions are {', '.join(functions)}")
        for name, weight in self.weights.items():
            if not math.isfinite(weight):
                raise ConfigError(f"reward.weights.{name} is {weight}: give a finite number")

    def score(self, completions: Sequence[str], answers: Sequence[str]) -> list[Verdict]:
        """One verdict per completion, in order, for functions that read no prompts, columns or token ids."""
        return self.combined({name: reward.score(completions, answers) for name, reward in self.functions.items()})

    def score_samples(self, samples: Samples) -> list[Verdict]:
        """One verdict per completion, in order."""
        return self.combined({name: score_samples(reward, samples) for name, reward in self.functions.items()})

    def check_answers(self, answers: Sequence[str]) -> None:
        """Refuse what one of the functions refuses."""
        for reward in self.functions.values():
            reward.check_answers(answers)

    def check_prompts(self, prompts: Sequence[Prompt]) -> None:
        """Refuse what one of the functions refuses."""
        for reward in self.functions.values():
            check_prompts(reward, prompts)

    def check(self, recipe: Recipe) -> None:
        """Raise `ConfigError` unless the sum is the reward of one function, for an estimator of rewards 0 and 1."""
        if not getattr(recipe.advantage, "needs", Needs()).binary_rewards:
            return
        weights = {name: weight for name, weight in self.weights.items() if weight != 0}
        if list(weights.values()) != [1]:
            given = ", ".join(f"{name}={weight}" for name, weight in weights.items())
            estimator = type(recipe.advantage).__name__
            raise ConfigError(
                f"reward.weights are {given}: {estimator} is defined for rewards of 0 and 1 only; give one function "
                "the weight 1 and the others 0, or choose another algo"
            )

    @property
    def states_answers(self) -> bool:
        """Whether the function that decides which completions are correct states their answers."""
        return getattr(self.functions[self.correct], "states_answers", True)

    def close(self) -> None:
        """Close all functions."""
        for reward in self.functions.values():
            reward.close()

    def combined(self, verdicts: Mapping[str, Sequence[Verdict]]) -> list[Verdict]:
        """The verdicts of all functions, by name, as one per completion."""
        columns = [verdicts[name] for name in self.functions]
        return [self._sum(dict(zip(self.functions, row, strict=True))) for row in zip(*columns, strict=True)]

    def _sum(self, verdicts: Mapping[str, Verdict]) -> Verdict:
        judge = verdicts[self.correct]
        rewards = {name: verdict.reward if verdict.is_scored else None for name, verdict in verdicts.items()}
        extra = {column: value for verdict in verdicts.values() for column, value in verdict.extra.items()}
        if any(verdict.status == "error" for verdict in verdicts.values()):
            reason = next((verdict.reason for verdict in verdicts.values() if verdict.reason is not None), None)
            return Verdict(reward=0.0, status="error", extracted=judge.extracted, extra=extra, reason=reason)
        terms = [self.weights[name] * reward for name, reward in rewards.items() if reward is not None]
        return Verdict(
            reward=math.fsum(terms),
            status=judge.status,
            extracted=judge.extracted,
            rewards=rewards,
            extra=extra,
            is_scored=bool(terms),
        )

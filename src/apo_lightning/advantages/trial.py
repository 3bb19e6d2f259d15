"""An estimator is tried on verdicts of the run's reward: in the run a wrong one would fail in the first step."""

from collections.abc import Sequence

import torch

from apo_lightning.advantages.estimator import needs_of
from apo_lightning.contracts import AdvantageEstimator, Reward, advantages_of, estimators_in
from apo_lightning.errors import ConfigError, Preempted, failure
from apo_lightning.types import AdvantageInputs, Advantages, Verdict


def try_advantage(estimator: AdvantageEstimator, reward: Reward, verdicts: Sequence[Verdict], group_size: int) -> None:
    """Call an estimator as a step does, on a group of these verdicts in turn and one of the first alone.

    An estimator that reads the values of a critic is not called.

    Raises:
        ConfigError: it fails, or returns anything but one finite number and one `keep` per completion; or it reads the
            answers that completions state, and the reward states none.
    """
    name = f"algo.advantage is {type(estimator).__qualname__}"
    if needs_of(estimator).answers and not getattr(reward, "states_answers", True):
        raise ConfigError(
            f"{name}, which counts equal answers, and {getattr(reward, 'name', 'the reward')} states none, so that it "
            "would change nothing: let the reward return (reward, answer) for each completion, or choose another algo"
        )
    if any(getattr(part, "per_token", False) for part in estimators_in(estimator)):
        return
    groups = [[verdicts[place % len(verdicts)] for place in range(group_size)], [verdicts[0]] * group_size]
    shape = (len(groups), group_size)
    unscored = torch.tensor([[not verdict.is_scored for verdict in group] for group in groups])
    inputs = AdvantageInputs(
        rewards=torch.tensor([[verdict.reward for verdict in group] for group in groups]),
        is_correct=torch.tensor([[verdict.status == "correct" for verdict in group] for group in groups]),
        lengths=torch.arange(1, 1 + len(groups) * group_size).view(shape),
        truncated=torch.zeros(shape, dtype=torch.bool),
        mean_logprobs=torch.full(shape, -1.0),
        answers=tuple(tuple(verdict.extracted for verdict in group) for group in groups),
        max_completion_tokens=len(groups) * group_size,
        unscored=unscored if unscored.any() else None,
    )
    try:
        found = advantages_of(estimator, inputs)
    except (ConfigError, KeyboardInterrupt, Preempted):
        raise
    except BaseException as error:  # a user's sys.exit too
        raise ConfigError(f"{name}, which fails on made-up rewards: {failure(error, estimator)}") from error
    if not isinstance(found, Advantages):
        raise ConfigError(f"{name}, which returns a {type(found).__name__}: return Advantages(values=…, keep=…)")
    for key, values in (("values", found.values), ("keep", found.keep)):
        if not isinstance(values, torch.Tensor) or values.shape != shape:
            given = list(values.shape) if isinstance(values, torch.Tensor) else f"{values!r:.100}"
            raise ConfigError(f"{name}, whose {key} are {given} for {list(shape)} rewards: give one per completion")
    if not found.values.isfinite().all():
        raise ConfigError(f"{name}, whose values are not finite on the rewards {inputs.rewards.tolist()}")
    if found.keep.dtype != torch.bool:
        raise ConfigError(f"{name}, whose keep is {found.keep.dtype}: give True or False per completion")

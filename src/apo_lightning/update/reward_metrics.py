"""What reward functions log: each one's rewards apart, and numbers of their own."""

import math
from collections import defaultdict
from collections.abc import Sequence

from apo_lightning.distributed.gathering import from_all_ranks
from apo_lightning.types import Rollouts


def reward_metrics(rollouts: Rollouts) -> dict[str, float]:
    """Mean, std and number of None of each function over the completions of all ranks, by log name; collective.

    Ranks may log different names, and the sums are exact: the numbers do not depend on how completions are divided.
    """
    rewards: dict[str, list[float | None]] = defaultdict(list)
    logged: dict[str, list[float]] = defaultdict(list)
    own = [verdict.rewards for verdict in rollouts.verdicts if verdict.rewards]
    for rows, metrics in from_all_ranks((own, rollouts.reward_metrics)):
        for row in rows:
            for name, reward in row.items():
                rewards[name].append(reward)
        for name, values in metrics.items():
            logged[name] += values
    result = {f"reward/metric/{name}": mean(values) for name, values in logged.items()}
    for name, of_function in rewards.items():
        given = [reward for reward in of_function if reward is not None]
        result[f"reward/{name}/mean"] = mean(given)
        result[f"reward/{name}/std"] = std(given)
        result[f"reward/{name}/num_none"] = float(len(of_function) - len(given))
    return result


def mean(values: Sequence[float]) -> float:
    """The mean; NaN where there is no value."""
    return math.fsum(values) / len(values) if values else math.nan


def std(values: Sequence[float]) -> float:
    """The standard deviation over n − 1; NaN for fewer than two values."""
    if len(values) < 2:
        return math.nan
    centre = mean(values)
    return math.sqrt(math.fsum((value - centre) ** 2 for value in values) / (len(values) - 1))

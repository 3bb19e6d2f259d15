"""What reward functions log: each one's rewards apart, and numbers of their own."""

import math
import statistics
from collections import defaultdict

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
    result = {f"reward/metric/{name}": statistics.fmean(values) for name, values in logged.items()}
    for name, of_function in rewards.items():
        given = [reward for reward in of_function if reward is not None]
        result[f"reward/{name}/mean"] = statistics.fmean(given) if given else math.nan
        result[f"reward/{name}/std"] = statistics.stdev(given) if len(given) > 1 else math.nan
        result[f"reward/{name}/num_none"] = float(len(of_function) - len(given))
    return result

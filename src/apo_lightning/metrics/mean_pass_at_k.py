"""pass@k of sampled completions over all ranks."""

import torch

from apo_lightning.metrics.functional import pass_at_k
from apo_lightning.metrics.token_mean import TokenMean
from apo_lightning.types import Rollouts


def pass_at_one_and_all(rollouts: Rollouts, device: torch.device) -> dict[int, float]:
    """Mean pass@1 and pass@G over the problems of all ranks, by k; collective."""
    num_correct = rollouts.is_correct.sum(1).to(device)
    num_samples = torch.full_like(num_correct, rollouts.group_size)
    result = {}
    for k in sorted({1, rollouts.group_size}):
        mean = TokenMean().to(device)
        mean.update(pass_at_k(num_samples, num_correct, k))
        result[k] = float(mean.compute().mean)
    return result

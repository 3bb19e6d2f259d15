"""Two completions, of three and two tokens, to try losses on that read whole completions."""

from dataclasses import replace

import torch

from apo_lightning.step.plan import token_weights
from apo_lightning.types import LossInputs, detached

IDS = torch.tensor([0, 0, 0, 1, 1])
A = torch.tensor([1.0, 1, 1, -1, -1], dtype=torch.float64)
OLD = torch.tensor([0.5, 0.4, 0.8, 0.5, 0.25], dtype=torch.float64).log()
NEW = torch.tensor([0.6, 0.3, 0.9, 0.4, 0.375], dtype=torch.float64).log()


def run(loss, new=NEW, old=OLD, aggregation="sequence_mean_token_mean"):
    """Σ w·loss and its gradient by log π."""
    logprobs = new.clone().requires_grad_()
    inputs = LossInputs(
        token_ids=torch.zeros_like(IDS),
        sequence_ids=IDS,
        logprobs=logprobs,
        old_logprobs=old,
        advantages=A,
        is_correct=A > 0,
    )
    output = loss(replace(inputs, columns=loss.completion_columns(detached(inputs))))
    weights = token_weights(torch.tensor([3, 2]), torch.ones(2).bool(), aggregation, max_completion_tokens=3).double()
    total = (weights * output.per_token).sum()
    total.backward()
    assert logprobs.grad is not None
    return total.item(), logprobs.grad, output.metrics


def near(values, expected):
    torch.testing.assert_close(values, torch.tensor(expected, dtype=torch.float64), atol=5e-5, rtol=0)

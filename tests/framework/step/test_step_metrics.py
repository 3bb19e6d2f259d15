"""Means over the completions of a step."""

from dataclasses import replace

import torch

from apo_lightning.step.step_metrics import _completion_means
from factories import make_step


def test_a_completion_is_without_advantage_if_none_of_its_tokens_has_one():
    step = make_step(lengths=[1, 3])
    # One token with an advantage, then three without: 1 is no count that stands for none.
    tokens = replace(step.tokens, advantages=torch.tensor([1.0, 0.0, 0.0, 0.0]))
    assert _completion_means(step.rollouts, tokens)["train/zero_advantage_fraction"].tolist() == [0.0, 1.0]

"""Shaped rewards and truncation, by hand."""

from math import sqrt

import pytest
import torch

from advantage_cases import check_apo, inputs
from apo_lightning.advantages import GroupNormalized, OverlongPenalty, Shaped, SignedReward, Truncated
from apo_lightning.errors import ConfigError


def test_overlong_penalty():
    # The paper's shares, L = 20 and C = 4: a quarter for each token after 16.
    step = inputs([[1.0] * 4], lengths=torch.tensor([[16, 17, 18, 20]]), max_completion_tokens=20)
    assert OverlongPenalty()(step).tolist() == [[1.0, 0.75, 0.5, 0.0]]
    # L = 8, C = 4: nothing to 4 tokens, then a quarter for each.
    step = inputs([[1.0] * 5], lengths=torch.tensor([[1, 4, 5, 7, 8]]), max_completion_tokens=8)
    assert OverlongPenalty(cache_share=0.5)(step).tolist() == [[1.0, 1.0, 0.75, 0.25, 0.0]]


def test_truncated_completions():
    cut = torch.tensor([[False, False, True, True], [False, True, True, True]])
    step = inputs([[1.0, 0.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]], truncated=cut)
    whole = GroupNormalized()(step)
    dropped = Truncated(GroupNormalized(), "drop")(step)
    assert torch.equal(dropped.values, whole.values)
    assert torch.equal(dropped.keep, ~cut)
    # Of the first group (1, 0) remain: ±1/√2; of the second one alone, which is its own mean.
    excluded = Truncated(GroupNormalized(), "exclude")(step)
    torch.testing.assert_close(excluded.values[0], torch.tensor([1, -1, 0, 0]).double() * sqrt(0.5), atol=1e-5, rtol=0)
    assert excluded.values[1].tolist() == [0.0] * 4
    assert torch.equal(excluded.keep, ~cut)


def test_apo_refuses_advantages_without_errors_and_those_that_punish_right_answers():
    advantage = Shaped(GroupNormalized(), OverlongPenalty())
    for refused, match in (
        (SignedReward(1.0, 0.0), "gives no error A < 0"),
        (advantage, "trigger=incorrect"),
        (Truncated(advantage), "trigger=incorrect"),
    ):
        with pytest.raises(ConfigError, match=match):
            check_apo(refused)
    check_apo(advantage, "incorrect")
    check_apo(GroupNormalized())

"""Completions that run on another rank than the one that sampled them, between two real processes."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from apo_lightning.losses import APO
from apo_lightning.model.packing import padding_microbatch
from apo_lightning.parts.engine_check import _largest_gap
from apo_lightning.step.assignment import assign, assign_at_home
from apo_lightning.step.table import StepTable
from apo_lightning.types import Advantages, TokenStatistics
from factories import Alone, make_rollouts
from processes import in_a_group

CPU = torch.device("cpu")
LENGTHS = [[3, 1], [2, 4]]
"""Of a group of two on each rank."""


class Two(Alone):
    """One of two processes, without a trainer to ask."""

    def __init__(self, rank):
        self.rank, self.world_size = rank, 2
        self.trainer = SimpleNamespace(strategy=SimpleNamespace(root_device=CPU))  # pyright: ignore[reportAttributeAccessIssue]


def sampled(rank):
    """Only rank 0's group has a signal; rank 1's engine reports other log-probs than rank 0's."""
    rollouts = make_rollouts(["correct", "incorrect"], 2, lengths=LENGTHS[rank], first_prompt=rank)
    completions = tuple(
        replace(one, logprobs=tuple(-1.0 - 0.5 * rank - 0.01 * t for t in range(len(one.token_ids))))
        for one in rollouts.completions
    )
    values = torch.tensor([[1.0, -1.0]]) * (1 - rank)
    advantages = Advantages(values=values, keep=torch.ones(1, 2, dtype=torch.bool))
    return replace(rollouts, completions=completions), advantages


def on_each_rank(rank, folder):
    ranks = Two(rank)
    rollouts, advantages = sampled(rank)
    assignment = assign(rollouts, advantages, APO().needs, 1, ranks, CPU)
    # Of rank 0's two completions, which alone have a gradient, each rank runs one; rank 1's stay where they are.
    assert assignment.sampled_by.tolist() == [[0], [0, 1, 1]][rank]
    # Behind 3 tokens of the prompt: 6 and 4.
    assert assignment.balance == pytest.approx(5 / 6)
    table = StepTable(rollouts, advantages, CPU, assignment)
    assert table.of_minibatch(0, 1) == list(range(len(table.lengths)))
    home = StepTable(rollouts, advantages, CPU, assign_at_home(rollouts, CPU))

    table.prepare_reference(2)
    values = torch.arange(len(table.token_ids)).float() + 100 * rank
    anchor_values = torch.stack([values, values + 0.5], dim=1)
    everything = table.some_microbatch(range(len(table.lengths)), 100)
    values = values[everything.token_index]
    table.record_policy(
        everything,
        TokenStatistics(
            logprobs=table.rollout_logprobs[everything.token_index],
            entropy=values,
            max_prob=values,
            anchor_logprobs=anchor_values[everything.token_index],
        ),
    )
    frozen = table.freeze()
    for name in ("token_ids", "sequence_ids", "advantages", "is_correct", "rollout_logprobs"):
        assert torch.equal(getattr(frozen, name), getattr(home.freeze(), name)), name
    assert torch.equal(frozen.old_logprobs, home.rollout_logprobs)
    # Rank 0 keeps the completion on which APO reads the reference, the second; the first leads rank 1's table.
    expected = [[100.0, 101.0, 102.0, 0.0], [103.0, 104.0, 105.0, 106.0, 107.0, 108.0]][rank]
    assert frozen.entropy.tolist() == expected
    assert frozen.anchor is not None
    assert frozen.anchor.logprobs.tolist() == [[value, value + 0.5] for value in expected]

    # The engine of rank 1 is half a nat off; rank 1 also runs a completion of rank 0's, whose engine is right.
    table.old_logprobs = table.rollout_logprobs + 0.5 * table.assignment.sampled_by[table.sequence_ids]
    assert _largest_gap(table, ranks) == (pytest.approx(0.5), 4)
    table.old_logprobs[:] = torch.nan
    assert all(part.token_index.numel() == 0 for part in [padding_microbatch(CPU), table.some_microbatch([], 8)])


def test_what_is_found_elsewhere_comes_back_and_each_engine_is_judged_by_its_own_samples(tmp_path):
    in_a_group(on_each_rank, tmp_path)

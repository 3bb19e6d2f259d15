"""What the update runs, and what it weighs: the one may shrink, the other may not."""

import pytest
import torch

from apo_lightning.losses import GRPO
from apo_lightning.step.plan import equalize_microbatches, plan_minibatches, updated_tokens
from apo_lightning.step.table import StepTable
from apo_lightning.types import Advantages
from factories import SETTINGS, Alone, make_rollouts

CPU = torch.device("cpu")


def make_table(values, keep):
    rollouts = make_rollouts(["correct", "incorrect", "correct", "correct"], 2, lengths=[1, 3, 2, 4])
    return StepTable(rollouts, Advantages(values=torch.tensor(values), keep=torch.tensor(keep)), torch.device("cpu"))


def run_tokens(minibatch):
    return [index for part in minibatch.active_microbatches for index in part.token_index.tolist()]


def test_completions_without_a_gradient_are_not_run_and_stay_in_the_denominator():
    table = make_table([[1.0, 0.0], [0.0, 0.0]], [[True, True], [True, True]])
    first, second = plan_minibatches(table, updated_tokens(table, GRPO().needs), SETTINGS, Alone())
    assert run_tokens(first) == [0]
    assert first.weights.tolist() == pytest.approx([1 / 4] * 4 + [0] * 6)
    # 2 + 4 kept tokens, and none that could move: a step with a gradient of zero, not no step.
    assert (list(second.microbatches), second.num_tokens) == ([], 6)
    assert second.weights.tolist() == pytest.approx([0] * 4 + [1 / 6] * 6)


def test_dropped_completions_are_in_neither():
    table = make_table([[1.0, -1.0], [-1.0, 1.0]], [[False, True], [False, False]])
    first, second = plan_minibatches(table, updated_tokens(table, GRPO().needs), SETTINGS, Alone())
    assert (run_tokens(first), first.num_tokens) == ([1, 2, 3], 3)
    assert (list(second.microbatches), second.num_tokens) == ([], 0)


def test_a_completion_runs_whole_when_one_of_its_tokens_can_move():
    rollouts = make_rollouts(["correct", "incorrect"], 2, lengths=[3, 2])
    advantages = Advantages(values=torch.zeros(1, 2), keep=torch.ones(1, 2, dtype=torch.bool))
    table = StepTable(rollouts, advantages, CPU)
    table.advantages[1] = 1.0
    assert updated_tokens(table, GRPO().needs).tolist() == [True, True, True, False, False]


class BusyOthers(Alone):
    """Another rank has five micro-batches."""

    def max(self, value):
        return max(value, 5.0)


def test_a_rank_with_fewer_micro_batches_cuts_its_own_smaller_before_it_runs_empty_ones():
    table = make_table([[1.0, -1.0], [1.0, -1.0]], [[True, True], [True, True]])
    microbatches, num_padding = equalize_microbatches(table.sequences, range(4), 100, BusyOthers(), CPU)
    # Four completions make four micro-batches of one; the fifth is an empty one.
    assert (len(microbatches), num_padding) == (5, 1)
    assert [index for part in microbatches[:4] for index in part.token_index.tolist()] == list(range(10))
    alone, num_padding = equalize_microbatches(table.sequences, range(4), 100, Alone(), CPU)
    assert (len(alone), num_padding) == (1, 0)


def test_a_rank_without_work_runs_as_many_as_the_others():
    table = make_table([[0.0, 0.0], [0.0, 0.0]], [[True, True], [True, True]])
    microbatches, num_padding = equalize_microbatches(table.sequences, [], 100, BusyOthers(), CPU)
    assert (len(microbatches), num_padding) == (5, 5)

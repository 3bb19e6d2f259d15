"""Micro-batches hold whole completions, keep the budget and point at the right hidden states."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from apo_lightning.packing import PackedSequences, minibatches, split_by_token_budget

LENGTHS = st.lists(st.integers(1, 40), min_size=1, max_size=30)


@given(lengths=LENGTHS, budget=st.integers(1, 120))
def test_every_sequence_stands_in_exactly_one_group(lengths, budget):
    groups = split_by_token_budget(range(len(lengths)), lengths, budget)
    assert sorted(index for group in groups for index in group) == list(range(len(lengths)))


@given(lengths=LENGTHS, budget=st.integers(1, 120))
def test_a_padded_group_keeps_the_budget_unless_one_sequence_alone_exceeds_it(lengths, budget):
    for group in split_by_token_budget(range(len(lengths)), lengths, budget):
        padded = max(lengths[index] for index in group) * len(group)
        assert padded <= budget or len(group) == 1


def test_minibatches_go_by_prompt_in_sampling_order_and_the_last_may_be_short():
    assert minibatches(num_prompts=5, group_size=3, prompts_per_minibatch=2) == [
        range(6),
        range(6, 12),
        range(12, 15),
    ]


def test_rows_point_at_the_position_before_each_response_token():
    packed = PackedSequences(prompts=[(7, 8), (9,)], completions=[(1, 2), (3, 4, 5)])
    (microbatch,) = packed.microbatches([0, 1], tokens_per_microbatch=100, device=torch.device("cpu"))
    # Both are 4 tokens long, so the lower index stands first. Row 0: [7 8 1 2], row 1: [9 3 4 5].
    assert microbatch.input_ids.tolist() == [[7, 8, 1, 2], [9, 3, 4, 5]]
    assert microbatch.rows.tolist() == [1, 2, 4, 5, 6]
    assert microbatch.targets.tolist() == [1, 2, 3, 4, 5]
    assert microbatch.token_index.tolist() == [0, 1, 2, 3, 4]


def test_token_index_is_the_place_among_all_tokens_of_the_step_whatever_the_grouping():
    packed = PackedSequences(prompts=[(7,), (7,), (7,)], completions=[(1,), (2, 3, 4), (5, 6)])
    microbatches = packed.microbatches([2, 1], tokens_per_microbatch=4, device=torch.device("cpu"))
    assert [m.token_index.tolist() for m in microbatches] == [[1, 2, 3], [4, 5]]
    assert [m.attention_mask.sum().item() for m in microbatches] == [4, 3]


def test_reading_off_fewer_tokens_keeps_the_forward():
    packed = PackedSequences(prompts=[(7, 8)], completions=[(1, 2, 3)])
    (microbatch,) = packed.microbatches([0], tokens_per_microbatch=9, device=torch.device("cpu"))
    part = microbatch.only(torch.tensor([False, True, True]))
    assert part.targets.tolist() == [2, 3]
    assert part.token_index.tolist() == [1, 2]
    assert part.input_ids is microbatch.input_ids

"""Micro-batches hold whole completions, keep the budget and point at the right hidden states."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from apo_lightning.packing import PackedSequences, minibatches, split_by_shared_budget, split_by_token_budget

CPU = torch.device("cpu")
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
    packed = PackedSequences(prompts=[(7, 8), (9,)], completions=[(1, 2), (3, 4, 5)], owners=[0, 1])
    (microbatch,) = packed.microbatches([0, 1], 100, CPU, share_prompts=False)
    # Both are 4 tokens long, so the lower index stands first. Row 0: [7 8 1 2], row 1: [9 3 4 5].
    assert microbatch.input_ids.tolist() == [[7, 8, 1, 2], [9, 3, 4, 5]]
    assert microbatch.rows.tolist() == [1, 2, 4, 5, 6]
    assert microbatch.targets.tolist() == [1, 2, 3, 4, 5]
    assert microbatch.token_index.tolist() == [0, 1, 2, 3, 4]


def test_token_index_is_the_place_among_all_tokens_of_the_step_whatever_the_grouping():
    packed = PackedSequences(prompts=[(7,)], completions=[(1,), (2, 3, 4), (5, 6)], owners=[0, 0, 0])
    microbatches = packed.microbatches([2, 1], 4, CPU, share_prompts=False)
    assert [m.token_index.tolist() for m in microbatches] == [[1, 2, 3], [4, 5]]
    assert [m.attention_mask.sum().item() for m in microbatches] == [4, 3]


def test_reading_off_fewer_tokens_keeps_the_forward():
    packed = PackedSequences(prompts=[(7, 8)], completions=[(1, 2, 3)], owners=[0])
    (microbatch,) = packed.microbatches([0], 9, CPU, share_prompts=False)
    part = microbatch.only(torch.tensor([False, True, True]))
    assert part.targets.tolist() == [2, 3]
    assert part.token_index.tolist() == [1, 2]
    assert part.input_ids is microbatch.input_ids


def test_a_shared_prompt_stands_once_and_predicts_the_first_token_of_each_of_its_completions():
    packed = PackedSequences(prompts=[(7, 8), (9,)], completions=[(1, 2), (3,), (4, 5, 6)], owners=[0, 0, 1])
    (microbatch,) = packed.microbatches([0, 1, 2], 100, CPU, share_prompts=True)
    assert microbatch.prompts is not None
    assert microbatch.prompts.input_ids.tolist() == [[7, 8], [9, 0]]
    assert microbatch.prompts.owner.tolist() == [0, 0, 1]
    # A completion's last token predicts nothing that is asked for, so it is not run.
    assert microbatch.input_ids.tolist() == [[1, 0], [0, 0], [4, 5]]
    # 4 prompt positions come first: rows 1 (of 7 8) and 2 (of 9); then two positions a completion.
    assert microbatch.rows.tolist() == [1, 4, 1, 2, 8, 9]
    assert microbatch.targets.tolist() == [1, 2, 3, 4, 5, 6]


@given(lengths=LENGTHS, group=st.integers(1, 4), budget=st.integers(1, 120))
def test_shared_prompts_keep_the_budget_and_place_every_completion_once(lengths, group, budget):
    owners = [i // group for i in range(len(lengths))]
    groups = split_by_shared_budget(range(len(lengths)), owners, [5] * len(lengths), lengths, budget)
    assert [index for group in groups for index in group] == list(range(len(lengths)))
    for members in groups:
        padded = 5 * len({owners[i] for i in members}) + len(members) * max(lengths[i] for i in members)
        assert padded <= budget or len(members) == 1

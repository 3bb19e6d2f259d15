"""Micro-batches hold whole completions without padding, keep the budget and point at the right hidden states."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from apo_lightning.model.packing import Group, PackedSequences, pack_evenly

CPU = torch.device("cpu")
COSTS = st.lists(st.integers(0, 40), min_size=1, max_size=30)
GROUPS = st.lists(
    st.tuples(st.integers(1, 20), st.lists(st.integers(1, 12), min_size=1, max_size=6)), min_size=1, max_size=6
)


def packed_from(groups) -> PackedSequences:
    """Groups given as (prompt length, completion lengths); every token differs from every other."""
    ids = iter(range(10**6))
    prompts, completions, owners = [], [], []
    for owner, (prompt_length, lengths) in enumerate(groups):
        prompts.append(tuple(next(ids) for _ in range(prompt_length)))
        for length in lengths:
            completions.append(tuple(next(ids) for _ in range(length)))
            owners.append(owner)
    return PackedSequences(prompts=prompts, completions=completions, owners=owners)


@given(costs=COSTS, capacity=st.integers(1, 120), at_least=st.integers(1, 8))
def test_every_item_stands_in_one_bin_and_only_a_lone_item_exceeds_the_capacity(costs, capacity, at_least):
    bins = pack_evenly(costs, capacity, at_least)
    assert sorted(item for items in bins for item in items) == list(range(len(costs)))
    assert all(items for items in bins)
    assert all(sum(costs[i] for i in items) <= capacity or len(items) == 1 for items in bins)


@given(costs=COSTS, at_least=st.integers(1, 8))
def test_as_many_bins_as_are_wanted_and_nearly_equal(costs, at_least):
    bins = pack_evenly(costs, sum(costs) + 1, at_least)
    assert len(bins) == min(at_least, len(costs))
    totals = [sum(costs[i] for i in items) for items in bins]
    # The fullest bin was the lightest before its last item came, and that item is its cheapest.
    fullest = max(range(len(bins)), key=lambda i: totals[i])
    assert totals[fullest] - min(costs[i] for i in bins[fullest]) <= min(totals)


def test_the_number_of_bins_is_within_a_fiftieth_of_the_fewest():
    # 100 pairs of 60 + 40 fill 100 bins of 100 exactly.
    assert len(pack_evenly([60, 40] * 100, capacity=100)) <= 102


def test_a_prompt_stands_once_and_predicts_the_first_token_of_each_of_its_completions():
    packed = PackedSequences(prompts=[(7, 8), (9,)], completions=[(1, 2), (3,), (4, 5, 6)], owners=[0, 0, 1])
    (microbatch,) = packed.microbatches([0, 1, 2], 100, CPU)
    # A completion's last token predicts nothing that is asked for, so it is not run: [7 8][1][] and [9][4 5].
    assert microbatch.input_ids.tolist() == [7, 8, 1, 9, 4, 5]
    assert microbatch.position_ids.tolist() == [0, 1, 2, 0, 1, 2]
    assert microbatch.groups == (
        Group(start=0, prompt_length=2, completion_lengths=(1, 0)),
        Group(start=3, prompt_length=1, completion_lengths=(2,)),
    )
    assert microbatch.rows.tolist() == [1, 2, 1, 3, 4, 5]
    assert microbatch.targets.tolist() == [1, 2, 3, 4, 5, 6]
    assert microbatch.token_index.tolist() == [0, 1, 2, 3, 4, 5]


def test_a_common_beginning_stands_once_before_all_prompts():
    packed = PackedSequences(prompts=[(5, 6, 7), (5, 6, 8)], completions=[(1, 2), (3,)], owners=[0, 1], beginning=2)
    (microbatch,) = packed.microbatches([0, 1], 100, CPU)
    assert microbatch.input_ids.tolist() == [5, 6, 7, 1, 8]
    assert microbatch.position_ids.tolist() == [0, 1, 2, 3, 2]
    assert microbatch.groups == (
        Group(start=2, prompt_length=1, completion_lengths=(1,), beginning=2),
        Group(start=4, prompt_length=1, completion_lengths=(0,), beginning=2),
    )
    assert microbatch.rows.tolist() == [2, 3, 4]
    assert microbatch.targets.tolist() == [1, 2, 3]
    # Seven tokens with both ends of sequences: two for both prompts, and 1 + 2 and 1 + 1.
    assert [packed.split([0, 1], budget) for budget in (7, 6)] == [[[0, 1]], [[0], [1]]]


def test_where_more_micro_batches_are_wanted_the_dearest_prompt_is_divided():
    packed = PackedSequences(prompts=[(1,), (2,)], completions=[(3,) * 2] * 2 + [(4,) * 9] * 2, owners=[0, 0, 1, 1])
    assert packed.split(range(4), 100, at_least=3) == [[0, 1], [2], [3]]


def test_token_index_is_the_place_among_all_tokens_of_the_step_whatever_the_grouping():
    packed = PackedSequences(prompts=[(7,)], completions=[(1,), (2, 3, 4), (5, 6)], owners=[0, 0, 0])
    microbatches = packed.microbatches([2, 1], 4, CPU)
    assert [m.token_index.tolist() for m in microbatches] == [[1, 2, 3], [4, 5]]
    assert [m.targets.tolist() for m in microbatches] == [[2, 3, 4], [5, 6]]


def test_reading_off_fewer_tokens_keeps_the_forward():
    packed = PackedSequences(prompts=[(7, 8)], completions=[(1, 2, 3)], owners=[0])
    (microbatch,) = packed.microbatches([0], 9, CPU)
    part = microbatch.part(torch.tensor([False, True, True]))
    assert part.targets.tolist() == [2, 3]
    assert part.token_index.tolist() == [1, 2]
    assert part.input_ids is microbatch.input_ids


@given(groups=GROUPS, budget=st.integers(1, 120), at_least=st.integers(1, 9))
def test_every_row_is_followed_by_its_target_and_nothing_is_run_that_need_not_be(groups, budget, at_least):
    packed = packed_from(groups)
    sequences = range(len(packed.completions))
    seen = []
    for members, microbatch in zip(
        packed.split(sequences, budget, at_least=at_least),
        packed.microbatches(sequences, budget, CPU, at_least=at_least),
        strict=True,
    ):
        owners = {packed.owners[b] for b in members}
        tokens = sum(len(packed.prompts[o]) for o in owners) + sum(len(packed.completions[b]) for b in members)
        assert tokens <= budget or len(members) == 1
        # Each prompt once, each completion but for its last token; and not a position more.
        assert len(microbatch.input_ids) == tokens - len(members)
        assert len(microbatch.groups) == len(owners)
        before = {
            token: text[i - 1]
            for b in members
            for text in [packed.prompts[packed.owners[b]] + packed.completions[b]]
            for i, token in enumerate(text)
        }
        assert microbatch.input_ids[microbatch.rows].tolist() == [before[t] for t in microbatch.targets.tolist()]
        seen += microbatch.token_index.tolist()
    assert sorted(seen) == list(range(sum(map(len, packed.completions))))


@given(groups=GROUPS)
def test_completions_of_one_prompt_stay_together_where_they_fit(groups):
    packed = packed_from(groups)
    largest = max(prompt + sum(lengths) for prompt, lengths in groups)
    parts = packed.split(range(len(packed.completions)), largest)
    assert sum(len({packed.owners[b] for b in part}) for part in parts) == len(groups)


def test_micro_batches_are_of_nearly_equal_cost():
    # Eight groups of 10 + 4·5 = 30 tokens under a budget of 200: two of 120, not 180 and 60.
    packed = packed_from([(10, [5, 5, 5, 5])] * 8)
    parts = packed.split(range(32), 200)
    assert [len(part) for part in parts] == [16, 16]

"""Ranks that run equally many tokens of every mini-batch: who runs what, and how even that is."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apo_lightning.step.assignment import PIECES_PER_RANK, RankCosts, balanced


def costs(lengths, runs, *, prompt_lengths=None, reads_reference=None, group_size=1):
    return RankCosts(
        prompt_lengths=prompt_lengths or [1] * (len(lengths) // group_size),
        lengths=lengths,
        runs=runs,
        reads_reference=reads_reference or [False] * len(lengths),
    )


def loads(ranks, destinations, minibatch, num_minibatches):
    """Tokens of each rank, counted from where the completions went: a prompt once a rank and group."""
    tokens = [0] * len(ranks)
    for rank, one in enumerate(ranks):
        num_prompts = len(one.prompt_lengths)
        group_size = len(one.lengths) // num_prompts
        in_minibatch = num_prompts // num_minibatches
        for p in range(minibatch * in_minibatch, (minibatch + 1) * in_minibatch):
            for receiver in range(len(ranks)):
                here = [
                    b
                    for b in range(p * group_size, (p + 1) * group_size)
                    if one.runs[b] and destinations[rank][b] == receiver
                ]
                tokens[receiver] += bool(here) * one.prompt_lengths[p] + sum(one.lengths[b] for b in here)
    return tokens


def test_the_largest_group_goes_first_to_the_rank_with_the_fewest_tokens():
    # With a prompt of 1: 10, 6, 5 and 3. On 2 ranks 10 + 3 and 6 + 5, by position 16 and 8; parts would be whole
    # completions again.
    first, second = costs([9, 5], [True, True]), costs([4, 2], [True, True])
    balance = balanced([first, second], 1)
    assert loads([first, second], balance.destinations, 0, 1) in ([13, 11], [11, 13])
    assert balance.ratio == pytest.approx(12 / 13)


def test_what_does_not_run_stays_and_costs_nothing():
    idle, busy = costs([5, 50], [False, False]), costs([5, 5], [True, True])
    balance = balanced([idle, busy], 1)
    assert balance.destinations[0] == [0, 0]
    assert sorted(balance.destinations[1]) == [0, 1]
    assert balance.ratio == 1.0


def test_a_step_in_which_nothing_runs_has_no_ratio():
    nothing = costs([5, 5], [False, False])
    balance = balanced([nothing, nothing], 1)
    assert balance.ratio != balance.ratio
    assert balance.destinations == [[0, 0], [1, 1]]


def test_one_group_is_divided_over_the_ranks_and_its_prompt_runs_with_each_part():
    # 4 completions of 10 behind a prompt of 2: 22 tokens on each of two ranks instead of 42 on one.
    one = costs([10] * 4, [True] * 4, prompt_lengths=[2], group_size=4)
    other = costs([1] * 4, [False] * 4, prompt_lengths=[2], group_size=4)
    balance = balanced([one, other], 1)
    assert sorted(balance.destinations[0]) == [0, 0, 1, 1]
    assert balance.ratio == 1.0
    # Behind a prompt of 100, two parts of 120 are less than one of 140, and than two times two of 110.
    long = costs([10] * 4, [True] * 4, prompt_lengths=[100], group_size=4)
    assert loads([long, other], balanced([long, other], 1).destinations, 0, 1) == [120, 120]


def test_groups_stay_whole_where_enough_of_them_run():
    group_size = 4
    ranks = [
        costs([7] * PIECES_PER_RANK * group_size, [True] * PIECES_PER_RANK * group_size, group_size=group_size)
        for _ in range(2)
    ]
    destinations = balanced(ranks, 1).destinations
    for one in destinations:
        groups = [one[i : i + group_size] for i in range(0, len(one), group_size)]
        assert all(len(set(group)) == 1 for group in groups)


@st.composite
def steps(draw):
    """Arguments of `costs` for each rank, and the number of mini-batches."""
    num_minibatches, group_size = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    num_prompts = num_minibatches * draw(st.integers(1, 3))

    def many(values, size):
        return draw(st.lists(values, min_size=size, max_size=size))

    size = num_prompts * group_size
    ranks = [
        {
            "lengths": many(st.integers(1, 60), size),
            "runs": many(st.booleans(), size),
            "prompt_lengths": many(st.integers(1, 30), num_prompts),
            "group_size": group_size,
        }
        for _ in range(draw(st.integers(1, 5)))
    ]
    return ranks, num_minibatches


@given(steps())
def test_every_running_completion_runs_once_and_no_rank_has_more_than_a_part_above_the_mean(step):
    ranks, num_minibatches = [costs(**one) for one in step[0]], step[1]
    balance = balanced(ranks, num_minibatches)
    mean = fullest = 0.0
    for rank, destinations in enumerate(balance.destinations):
        assert len(destinations) == len(ranks[rank].lengths)
        assert all(0 <= one < len(ranks) for one in destinations)
        assert all(one == rank for one, runs in zip(destinations, ranks[rank].runs, strict=True) if not runs)
    for minibatch in range(num_minibatches):
        tokens = loads(ranks, balance.destinations, minibatch, num_minibatches)
        groups = [
            one.prompt_lengths[p] + sum(one.lengths[p * g : (p + 1) * g])
            for one in ranks
            for g in [len(one.lengths) // len(one.prompt_lengths)]
            for p in range(len(one.prompt_lengths))
        ]
        assert max(tokens) <= sum(tokens) / len(ranks) + max(groups)
        mean, fullest = mean + sum(tokens) / len(ranks), fullest + max(tokens)
    # Parts of one group that meet again on a rank share the prompt there: counted twice, it can only overstate.
    if fullest:
        assert balance.ratio <= 1.0 + 1e-9
        assert 1 / len(ranks) - 1e-9 <= balance.ratio


def simulated(num_minibatches, prompts_per_minibatch, *, num_ranks=8, group_size=8, seed=0):
    """60 % of the groups run; lognormal lengths, which differ between problems and between samples."""
    draws = random.Random(seed)
    ranks = []
    for _ in range(num_ranks):
        lengths, runs, wrong = [], [], []
        for _ in range(num_minibatches * prompts_per_minibatch // num_ranks):
            level, does_run, error_rate = draws.gauss(7.3, 0.5), draws.random() < 0.6, draws.random()
            lengths += [min(4096, int(draws.lognormvariate(level, 0.7)) + 1) for _ in range(group_size)]
            runs += [does_run] * group_size
            wrong += [does_run and draws.random() < error_rate for _ in range(group_size)]
        num_prompts = len(lengths) // group_size
        ranks.append(
            costs(lengths, runs, prompt_lengths=[150] * num_prompts, reads_reference=wrong, group_size=group_size)
        )
    return ranks


@pytest.mark.parametrize(("prompts", "ratio", "by_position"), [(16, 0.93, 0.55), (32, 0.94, 0.65)])
def test_lognormal_lengths_leave_ranks_even(prompts, ratio, by_position):
    ranks = simulated(16, prompts)
    assert balanced(ranks, 16).ratio >= ratio
    home = [[rank] * len(one.lengths) for rank, one in enumerate(ranks)]
    tokens = [loads(ranks, home, minibatch, 16) for minibatch in range(16)]
    assert sum(sum(one) / 8 for one in tokens) / sum(max(one) for one in tokens) < by_position


def test_over_several_mini_batches_the_reference_is_even_too():
    ranks = simulated(16, 32)
    read = [0] * 8
    for one, destinations in zip(ranks, balanced(ranks, 16).destinations, strict=True):
        for length, reads, receiver in zip(one.lengths, one.reads_reference, destinations, strict=True):
            read[receiver] += length * reads
    assert sum(read) / 8 / max(read) > 0.95

"""A tree of three tokens a node, two levels of which are enumerated."""

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from apo_methods.statistics.reachability import NEVER, first_exits, is_outside_support, survival

DEPTH, VOCAB = 3, 3


def support(prefix, k):
    """The K likeliest tokens behind a prefix; which ones depends on it."""
    return [(sum(prefix) + place) % VOCAB for place in range(k)]


@pytest.mark.parametrize("k", [1, 2, 3])
def test_exits_and_survival_of_every_leaf_of_a_tree(k):
    leaves = list(itertools.product(range(VOCAB), repeat=DEPTH))
    anchors = torch.tensor([support(leaf[:t], k) for leaf in leaves for t in range(DEPTH)])
    tokens = torch.tensor([token for leaf in leaves for token in leaf])
    owners = torch.arange(len(leaves)).repeat_interleave(DEPTH)
    exits = first_exits(is_outside_support(tokens, anchors), owners, len(leaves))
    expected = [next((t + 1 for t in range(DEPTH) if leaf[t] not in support(leaf[:t], k)), NEVER) for leaf in leaves]
    assert exits.tolist() == expected
    # Each level keeps k of its three branches.
    assert survival(exits, [1, 2, 3, 9]) == pytest.approx([(k / 3) ** min(length, 3) for length in (1, 2, 3, 9)])


@given(st.lists(st.lists(st.integers(0, 5), max_size=6), min_size=1, max_size=5))
def test_a_larger_support_holds_no_less_and_longer_beginnings_no_more(ranks):
    flat = torch.tensor([rank for of_one in ranks for rank in of_one], dtype=torch.long)
    owners = torch.tensor([i for i, of_one in enumerate(ranks) for _ in of_one], dtype=torch.long)
    last = None
    for k in range(7):
        exits = first_exits(flat >= k, owners, len(ranks))
        curve = survival(exits, range(8))
        assert curve == sorted(curve, reverse=True)
        assert curve[0] == 1
        # The curve ends at the share without any exit.
        assert curve[-1] == sum(all(rank < k for rank in of_one) for of_one in ranks) / len(ranks)
        assert last is None or all(now >= before for now, before in zip(curve, last, strict=True))
        last = curve


def test_nothing_has_no_curve():
    assert all(math.isnan(value) for value in survival(torch.tensor([], dtype=torch.long), [1, 2]))
    assert first_exits(torch.tensor([], dtype=torch.bool), torch.tensor([], dtype=torch.long), 1).tolist() == [NEVER]

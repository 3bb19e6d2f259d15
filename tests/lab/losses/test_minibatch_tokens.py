"""The statistics of a mini-batch over all ranks."""

from dataclasses import replace

import torch
from hypothesis import given
from hypothesis import strategies as st

from apo_lab.losses.covariance import MinibatchTokens


@given(st.lists(st.tuples(st.sampled_from([-1.0, 0.0, 0.5, 1.0]), st.floats(-9, 0, width=32)), min_size=2, max_size=12))
def test_the_choice_does_not_depend_on_the_ranks(tokens):
    advantages, logprobs = (torch.tensor(column) for column in zip(*tokens, strict=True))
    keys = torch.arange(len(tokens)).flip(0)

    def part(here):
        return MinibatchTokens(
            advantages=advantages[here], is_correct=advantages[here] > 0, logprobs=logprobs[here], keys=keys[here]
        )

    values, among = torch.round(logprobs), advantages != 0
    whole = part(slice(None)).smallest(values, 3, among)
    halves = [slice(0, len(tokens) // 2), slice(len(tokens) // 2, None)]
    sent = []
    for here in halves:  # what each rank would send
        replace(part(here), from_all_ranks=lambda mine: sent.append(mine) or [mine]).smallest(
            values[here], 3, among[here]
        )
    both = [
        replace(part(here), from_all_ranks=lambda mine: sent).smallest(values[here], 3, among[here]) for here in halves
    ]
    assert torch.equal(torch.cat(both), whole)

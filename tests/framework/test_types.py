"""What the records say of themselves."""

from dataclasses import replace

from apo_lightning.types import SamplingRounds, concatenate
from factories import make_rollouts


def test_rollouts_of_several_calls_keep_the_number_of_preemptions():
    one, two = (replace(make_rollouts(["correct"], 1), num_preempted=count) for count in (2, 3))
    assert concatenate([one, two]).num_preempted == 5


def test_rollouts_know_what_they_were_selected_from():
    first = make_rollouts(["correct", "error"], 1)
    assert first.first_round is first
    rounds = SamplingRounds(first=first, num_rounds=2, num_prompts=3, num_mixed=1, num_tokens=9, num_trained_tokens=4)
    selected = replace(make_rollouts(["incorrect"], 1), rounds=rounds)
    assert selected.first_round == first


def test_rollouts_are_the_groups_of_their_prompts():
    rollouts = make_rollouts(["correct", "timeout", "correct", "error"], 2)
    assert [group.verdict_counts["correct"] for group in rollouts.groups] == [1, 1]
    assert concatenate(rollouts.groups) == rollouts

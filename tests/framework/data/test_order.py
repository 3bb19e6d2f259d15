"""Which prompts a step gets."""

from itertools import islice

from hypothesis import given
from hypothesis import strategies as st

from apo_lightning.data.datamodule import PromptOrder


@st.composite
def sizes(draw):
    num_prompts = draw(st.integers(1, 12))
    return num_prompts, draw(st.integers(1, num_prompts)), draw(st.integers(0, 5))


def order_of(num_prompts, prompts_per_step, seed):
    return PromptOrder(ids=[f"id{i}" for i in range(num_prompts)], prompts_per_step=prompts_per_step, seed=seed)


@given(sizes())
def test_every_epoch_has_every_prompt_once_across_step_boundaries_and_no_step_has_one_twice(sizes):
    num_prompts, prompts_per_step, _ = sizes
    steps = list(islice(order_of(*sizes).steps(), 5 * num_prompts))
    assert all(len(step) == len(set(step)) == prompts_per_step for step in steps)
    stream = [i for step in steps for i in step]
    for start in range(0, len(stream) - num_prompts + 1, num_prompts):
        assert sorted(stream[start : start + num_prompts]) == list(range(num_prompts))


@given(sizes(), st.integers(0, 20))
def test_a_later_start_gives_the_rest_of_the_same_stream(sizes, start):
    order = order_of(*sizes)
    assert list(islice(order.steps(start), 5)) == list(islice(order.steps(), start, start + 5))


def test_epochs_are_shuffled_differently_and_so_are_seeds():
    def epochs(seed):
        return list(islice(PromptOrder(ids=list("abcdefgh"), prompts_per_step=8, seed=seed).steps(), 2))

    first, second = epochs(0)
    assert first != second
    assert epochs(1)[0] != first


def test_the_order_does_not_depend_on_the_order_of_the_file():
    def named_steps(ids):
        return [[ids[i] for i in step] for step in islice(PromptOrder(ids=ids, prompts_per_step=3, seed=0).steps(), 6)]

    assert named_steps(list("abcdefg")) == named_steps(list("gfedcba"))

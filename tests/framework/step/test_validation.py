"""Ranks divide a held-out batch, and have it whole again: each problem once, in its order."""

import lightning.pytorch as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from apo_lightning.errors import VerifierError
from apo_lightning.step.validation import ValidationPass, restore_prompt_order
from apo_lightning.types import concatenate
from factories import make_rollouts


def trainer(**settings):
    return pl.Trainer(accelerator="cpu", logger=False, check_val_every_n_epoch=None, **settings)


@given(num_prompts=st.integers(1, 9), world_size=st.integers(1, 5), group_size=st.integers(1, 3))
def test_shares_put_together_are_the_batch_whatever_the_number_of_ranks(num_prompts, world_size, group_size):
    num = num_prompts * group_size
    whole = make_rollouts(
        [("correct", "incorrect", "unparsed")[b % 3] for b in range(num)], group_size, lengths=list(range(1, num + 1))
    )
    held_out = ValidationPass(["sums"])
    shares = [held_out.share(whole.prompts, rank, world_size) for rank in range(world_size)]
    assert all(shares), "a rank without a problem would not check its engine"
    groups = dict(zip(whole.prompts, whole.groups, strict=True))
    sampled = [concatenate([groups[prompt] for prompt in share]) for share in shares]
    assert restore_prompt_order(sampled, num_prompts) == whole
    assert sum(map(len, shares)) == max(num_prompts, world_size), "work is divided, not done over"


@pytest.mark.parametrize(("last", "steps", "due"), [(None, 4, False), (4, 4, False), (0, 4, True), (0, 3, False)])
def test_a_validation_pass_is_due_at_its_interval_if_there_was_one_before(last, steps, due):
    held_out = ValidationPass(["sums"])
    held_out.last_step = last
    assert held_out.is_due(trainer(max_steps=9, val_check_interval=2), steps) is due
    # Without an interval, after the last step alone.
    assert held_out.is_due(trainer(max_steps=steps, val_check_interval=None), steps) is (last == 0)
    assert not held_out.is_due(trainer(max_steps=9, val_check_interval=None), steps)


def looked_at(statuses):
    """A set of which each problem was sampled once, in two batches."""
    held_out = ValidationPass(["sums"])
    for part in (statuses[:60], statuses[60:]):
        rollouts = make_rollouts(part, 1)
        held_out.add("sums", rollouts.prompts, rollouts)
    return held_out


def test_how_the_completions_of_a_validation_pass_were_judged_is_logged():
    held_out = looked_at(["correct"] * 20 + ["incorrect"] * 69 + ["unparsed"] * 7 + ["timeout"] * 3 + ["error"])
    [output] = held_out.finish(4)
    counts = {"correct": 20, "incorrect": 69, "unparsed": 7, "timeout": 3, "error": 1}
    logged = {name: value for name, value in output.metrics.items() if "/num_" in name}
    assert logged == {f"val/sums/num_{status}": count for status, count in counts.items()}
    assert held_out.last_step == 4


def test_a_validation_pass_of_which_too_much_could_not_be_judged_ends_the_run_and_is_none():
    # None in the first batch, 2 of 40 in the second: 2 % of the whole.
    held_out = looked_at(["incorrect"] * 98 + ["error"] * 2)
    with pytest.raises(VerifierError, match="2 of 100 completions of held-out sums at step 0 could not be judged"):
        held_out.finish(0)
    assert held_out.last_step is None

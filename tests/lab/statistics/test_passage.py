import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from apo_lab.statistics.exact import exact_pass_at_k
from apo_lab.statistics.passage import passage_leave_one_block_out
from apo_lab.statistics.paths import first_passage, last_leave_one_block_out
from apo_lightning.errors import ConfigError


def without_block(success, block, num_blocks):
    """The problems outside one block, taken one by one."""
    return success[:, [i for i in range(success.shape[1]) if i % num_blocks != block]]


def passage_of(success, k, level):
    ones, many = success.mean(1), exact_pass_at_k(success, k).mean(1)
    return first_passage(ones, many, torch.tensor([min(level, ones.max().item())], dtype=torch.float64)).item()


@given(st.integers(0, 10_000), st.integers(2, 5), st.sampled_from([1, 8, 64]))
def test_every_value_is_the_first_passage_of_the_problems_that_are_left(seed, num_blocks, k):
    success = torch.rand(6, 11, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    level = success.mean(1).max().item() - 0.01
    found = passage_leave_one_block_out(success, k, level, num_blocks)
    assert found.value == pytest.approx(passage_of(success, k, level))
    expected = [passage_of(without_block(success, b, num_blocks), k, level) for b in range(num_blocks)]
    assert found.without.tolist() == pytest.approx(expected)


def test_the_blocks_are_those_of_the_other_endpoints():
    success = torch.rand(1, 37, dtype=torch.float64)
    found = passage_leave_one_block_out(success, 8, success.mean().item())
    assert found.without.tolist() == pytest.approx(last_leave_one_block_out(success, 8).without.tolist())


def test_a_run_that_does_not_reach_the_level_has_no_value_and_is_not_taken_for_0():
    success = torch.tensor([[0.1, 0.2], [0.3, 0.4]])
    assert passage_leave_one_block_out(success, 64, 0.36, num_blocks=2) is None
    assert passage_leave_one_block_out(success, 64, 0.34, num_blocks=2) is not None


def test_a_run_that_reaches_the_level_with_all_problems_only_has_a_value_without_each_block():
    # 0.4 on average; without the second problem it reaches 0.2 alone: its value there is at its highest pass@1.
    found = passage_leave_one_block_out(torch.tensor([[0.1, 0.1], [0.2, 0.6]]), 1, 0.4, num_blocks=2)
    assert (found.value, *found.without.tolist()) == pytest.approx((0.4, 0.4, 0.2))


@pytest.mark.parametrize("num_blocks", [1, 4])
def test_too_few_problems_for_the_blocks_are_refused(num_blocks):
    with pytest.raises(ConfigError, match=f"3 problems in {num_blocks} blocks"):
        passage_leave_one_block_out(torch.full((2, 3), 0.5), 64, 0.3, num_blocks)

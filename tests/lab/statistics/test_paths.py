"""pass@k along a run: at first passage, its area, at its end, and each without a block of problems."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from apo_lab.statistics.exact import exact_pass_at_k
from apo_lab.statistics.paths import area, first_passage, last_leave_one_block_out, leave_one_block_out, passage
from apo_lightning.errors import ConfigError

UNIT = st.floats(0, 1)
POINTS = st.lists(st.tuples(UNIT, UNIT), min_size=1, max_size=8)


def doubles(values):
    return torch.tensor(values, dtype=torch.float64)


def path_of(points):
    return doubles([x for x, _ in points]), doubles([y for _, y in points])


def passage_by_loop(ones, values, level):
    """From the definition: the first point at or above the level, and the line to the point before it."""
    for t, x in enumerate(ones):
        if x >= level:
            if t == 0:
                return values[0]
            before = ones[t - 1]
            return values[t - 1] + (level - before) / (x - before) * (values[t] - values[t - 1])
    return 0.0


def area_by_loop(ones, many, level, num_levels=64):
    width = (level - ones[0]) / num_levels
    return sum(passage_by_loop(ones, many, ones[0] + (j + 0.5) * width) for j in range(num_levels)) / num_levels


@given(POINTS, st.lists(UNIT, min_size=1, max_size=5))
def test_first_passage_is_that_of_the_definition(points, levels):
    ones, many = path_of(points)
    expected = [passage_by_loop(ones.tolist(), many.tolist(), level) for level in levels]
    assert first_passage(ones, many, doubles(levels)).tolist() == pytest.approx(expected, abs=1e-9)


@given(POINTS, st.floats(0.01, 1))
def test_the_area_is_that_of_the_definition(points, above):
    ones, many = path_of(points)
    level = ones[0].item() + above
    assert area(ones, many, level).item() == pytest.approx(area_by_loop(ones.tolist(), many.tolist(), level), abs=1e-9)


def test_each_of_several_runs_has_the_area_it_would_have_alone():
    ones, many = torch.rand(2, 6, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).unbind(0)
    alone = [area(ones[:, run], many[:, run], 1.5).item() for run in range(3)]
    assert area(ones, many, 1.5).tolist() == pytest.approx(alone)


def test_a_level_that_the_base_model_has_is_refused():
    with pytest.raises(ConfigError, match=r"level 0.2 is not above the base model's pass@1 0.2000"):
        area(doubles([0.2, 0.3]), doubles([1, 1]), 0.2)


def random_run(num_points=6, num_problems=11):
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(num_problems, dtype=torch.float64, generator=generator) - 2
    steps = torch.randn(num_points - 1, num_problems, dtype=torch.float64, generator=generator) + 0.5
    return torch.sigmoid(logits + torch.cat([torch.zeros(1, num_problems), steps.cumsum(0)]))


def without(success, block, num_blocks):
    return success[:, [i for i in range(success.shape[1]) if i % num_blocks != block]]


@pytest.mark.parametrize(("k", "level"), [(8, 0.3), (64, 0.45), (2, 0.9)])
def test_leaving_a_block_out_is_measuring_the_other_problems(k, level):
    """Blocks of different sizes: 11 problems in 4."""
    success = random_run()

    def by_loop(kept):
        rows = kept.tolist()
        ones = [math.fsum(row) / len(row) for row in rows]
        many = [math.fsum(1 - (1 - p) ** k for p in row) / len(row) for row in rows]
        return area_by_loop(ones, many, level), many[-1]

    expected = [by_loop(without(success, block, 4)) for block in range(4)]
    found, last = leave_one_block_out(success, k, level, 4), last_leave_one_block_out(success, k, 4)
    assert (found[0].item(), last[0].item()) == pytest.approx(by_loop(success), abs=1e-12)
    assert found[1:].tolist() == pytest.approx([value for value, _ in expected], abs=1e-12)
    assert last[1:].tolist() == pytest.approx([value for _, value in expected], abs=1e-12)


def passage_of(success, k, level):
    ones, many = success.mean(1), exact_pass_at_k(success, k).mean(1)
    return first_passage(ones, many, torch.tensor([min(level, ones.max().item())], dtype=torch.float64)).item()


@given(st.integers(0, 10_000), st.integers(2, 5), st.sampled_from([1, 8, 64]))
def test_every_value_is_the_first_passage_of_the_problems_that_are_left(seed, num_blocks, k):
    success = torch.rand(6, 11, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    level = success.mean(1).max().item() - 0.01
    found = passage(success, k, level, num_blocks)
    assert found[0].item() == pytest.approx(passage_of(success, k, level))
    expected = [passage_of(without(success, b, num_blocks), k, level) for b in range(num_blocks)]
    assert found[1:].tolist() == pytest.approx(expected)


def test_a_run_that_reaches_the_level_with_all_problems_only_has_a_value_without_each_block_and_others_have_none():
    success = torch.tensor([[0.1, 0.2], [0.3, 0.4]])
    found = [passage(success, 64, level, num_blocks=2) for level in (0.36, 0.34)]
    assert [each is None for each in found] == [True, False]
    # 0.4 on average; without the second problem it reaches 0.2 alone: its value there is at its highest pass@1.
    found = passage(torch.tensor([[0.1, 0.1], [0.2, 0.6]]), 1, 0.4, num_blocks=2)
    assert found.tolist() == pytest.approx((0.4, 0.4, 0.2))


@pytest.mark.parametrize("num_blocks", [1, 4])
@pytest.mark.parametrize("endpoint", [leave_one_block_out, passage])
def test_too_few_problems_for_the_blocks_are_refused(endpoint, num_blocks):
    with pytest.raises(ConfigError, match=f"3 problems in {num_blocks} blocks"):
        endpoint(torch.full((2, 3), 0.5), 64, 0.6, num_blocks)

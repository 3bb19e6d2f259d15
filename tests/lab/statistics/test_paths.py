import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from apo_lab.statistics.paths import area, first_passage, last_leave_one_block_out, leave_one_block_out
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


def test_a_value_at_first_passage_is_on_the_line_between_two_points():
    # 0.2 is half-way from 0.1 to 0.3: (0.9 + 0.5)/2. The fall to 0.15 and the second passage do not matter.
    ones, many = doubles([0.1, 0.3, 0.15, 0.35]), doubles([0.9, 0.5, 0.1, 0.2])
    # 0.325 is reached on the way from 0.15 to 0.35, at 7/8 of it: 0.1 + 0.1·7/8.
    found = first_passage(ones, many, doubles([0.2, 0.325]))
    assert found.tolist() == pytest.approx([0.7, 0.1875])


def test_a_level_at_or_below_the_first_point_has_its_value_and_one_never_reached_has_0():
    ones, many = doubles([0.1, 0.3]), doubles([0.9, 0.5])
    assert first_passage(ones, many, doubles([0.05, 0.1, 0.3, 0.31])).tolist() == pytest.approx([0.9, 0.9, 0.5, 0])


@given(POINTS, st.lists(UNIT, min_size=1, max_size=5))
def test_first_passage_is_that_of_the_definition(points, levels):
    ones, many = path_of(points)
    expected = [passage_by_loop(ones.tolist(), many.tolist(), level) for level in levels]
    assert first_passage(ones, many, doubles(levels)).tolist() == pytest.approx(expected, abs=1e-9)


def test_the_area_of_a_straight_line_is_its_middle():
    assert area(doubles([0.1, 0.4]), doubles([1.0, 0.6]), 0.4).item() == pytest.approx(0.8)
    # To half of the levels: the line's middle over these, 0 over the others.
    assert area(doubles([0.1, 0.4]), doubles([1.0, 0.6]), 0.7).item() == pytest.approx(0.4)


def test_a_run_that_never_leaves_its_base_has_area_0():
    assert area(doubles([0.2, 0.1, 0.2]), doubles([0.9, 0.9, 0.9]), 0.4).item() == 0


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
    assert (found.value, last.value) == pytest.approx(by_loop(success), abs=1e-12)
    assert found.without.tolist() == pytest.approx([value for value, _ in expected], abs=1e-12)
    assert last.without.tolist() == pytest.approx([value for _, value in expected], abs=1e-12)


def test_problems_that_are_all_alike_make_no_block_matter():
    success = random_run(num_problems=1).expand(-1, 32)
    found = leave_one_block_out(success, 64, 0.5)
    assert found.without.shape == (16,)
    assert found.without.tolist() == pytest.approx([found.value] * 16)


def test_fewer_problems_than_blocks_are_refused():
    with pytest.raises(ConfigError, match="11 problems in 16 blocks"):
        leave_one_block_out(random_run(), 64, 0.5)

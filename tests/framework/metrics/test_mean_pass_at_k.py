"""pass@1 and pass@G of a step, against what one can count."""

import pytest

from apo_lightning.metrics.token_mean import pass_at_one_and_all
from factories import make_rollouts


def test_the_mean_over_problems_is_float64():
    statuses = ["correct", "incorrect", "error", *["incorrect"] * 3, *["correct"] * 3]
    found = {k: float(values.mean()) for k, values in pass_at_one_and_all(make_rollouts(statuses, 3)).items()}
    assert found == pytest.approx({1: (1 / 3 + 0 + 1) / 3, 3: 2 / 3}, rel=1e-15)


def test_groups_of_one_have_pass_at_one_alone():
    (values,) = pass_at_one_and_all(make_rollouts(["correct", "incorrect"], 1)).values()
    assert values.tolist() == [1, 0]

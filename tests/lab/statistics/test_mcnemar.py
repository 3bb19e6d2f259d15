import math

import pytest
import torch

from apo_lab.statistics.mcnemar import mcnemar_p_value


@pytest.mark.parametrize(("lost", "gained"), [(0, 0), (3, 0), (4, 2), (2, 4), (9, 1), (5, 5)])
def test_it_is_the_tail_of_a_binomial_of_a_fair_coin(lost, gained):
    n = lost + gained
    tail = sum(math.comb(n, k) for k in range(lost, n + 1)) / 2**n
    assert mcnemar_p_value(lost, gained, "greater") == pytest.approx(tail if n else 1.0, abs=1e-12)
    larger = max(lost, gained)
    both = min(1.0, 2 * sum(math.comb(n, k) for k in range(larger, n + 1)) / 2**n)
    assert mcnemar_p_value(lost, gained, "two-sided") == pytest.approx(both if n else 1.0, abs=1e-12)


def test_problems_solved_with_one_probability_before_and_after_raise_no_more_false_alarms_than_alpha():
    """Twelve looks at 500 problems of 16 samples, tested at 0.05/12 each; 400 runs, standard error 0.011."""
    generator = torch.Generator().manual_seed(0)
    num_runs, looks, problems, n = 400, 12, 500, 16
    # Difficulties as uneven as those of a benchmark: most problems are nearly always or nearly never solved.
    uniform = torch.rand(problems, generator=generator, dtype=torch.float64)
    never = (1 - uniform**3) ** n
    alarms = 0
    for _ in range(num_runs):
        solved = torch.rand(looks + 1, problems, generator=generator, dtype=torch.float64) >= never
        lost = (solved[0] & ~solved[1:]).sum(1).tolist()
        gained = (~solved[0] & solved[1:]).sum(1).tolist()
        alarms += any(mcnemar_p_value(b, c, "greater") <= 0.05 / looks for b, c in zip(lost, gained, strict=True))
    assert alarms / num_runs <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / num_runs)
    assert alarms > 0

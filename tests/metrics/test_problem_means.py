"""The contract of every metric over problems: it gathers what its pure function computes."""

import math
from dataclasses import dataclass

import pytest
import torch

from apo_lightning.metrics.accuracy import AverageAtN, MajorityAtN
from apo_lightning.metrics.functional import average_at_n, majority_at_n, pass_at_k
from apo_lightning.metrics.pass_at_k import PassAtK

SAMPLES, CORRECT = torch.tensor([8, 8, 16, 16]), torch.tensor([0, 3, 1, 16])
ANSWERS = torch.tensor([[0, 0, 1], [4, 5, -1], [-1, -1, -1], [2, 2, 2]])
VERDICTS = torch.tensor([[1, 1, 0], [0, 1, 0], [0, 0, 0], [1, 1, 1]], dtype=torch.bool)


@dataclass(frozen=True)
class Case:
    make: object
    function: object
    inputs: tuple

    def part(self, first, last):
        return tuple(tensor[first:last] for tensor in self.inputs)

    def mean(self, first=0, last=None):
        return self.function(*self.part(first, last)).mean().item()


CASES = {
    "pass@4": Case(lambda: PassAtK(k=4), lambda n, c: pass_at_k(n, c, 4), (SAMPLES, CORRECT)),
    "avg@n": Case(AverageAtN, average_at_n, (SAMPLES, CORRECT)),
    "maj@n": Case(MajorityAtN, majority_at_n, (ANSWERS, VERDICTS)),
}


@pytest.fixture(params=CASES)
def case(request):
    return CASES[request.param]


def test_the_cases_have_the_means_one_can_count():
    # 1 − C(5, 4)/C(8, 4) = 65/70 and 1 − C(15, 4)/C(16, 4) = 4/16.
    assert CASES["pass@4"].mean() == pytest.approx((0 + 65 / 70 + 4 / 16 + 1) / 4)
    assert CASES["avg@n"].mean() == pytest.approx((0 + 3 / 8 + 1 / 16 + 1) / 4)
    assert CASES["maj@n"].mean() == pytest.approx((1 + 1 / 2 + 0 + 1) / 4)


def test_batches_do_not_matter_even_when_unequal(case):
    metric = case.make()
    metric.update(*case.part(0, 1))
    metric.update(*case.part(1, 4))
    assert metric.compute().item() == pytest.approx(case.mean())
    assert metric.compute().dtype == torch.float64


def test_ranks_add_up(case):
    ranks = [case.make(), case.make()]
    ranks[0].update(*case.part(0, 3))
    ranks[1].update(*case.part(3, 4))
    # What a gather over ranks does with each state: its `dist_reduce_fx`.
    ranks[0].merge_state(ranks[1])
    assert ranks[0].compute().item() == pytest.approx(case.mean())


def test_reset_forgets(case):
    metric = case.make()
    metric.update(*case.part(0, 3))
    metric.reset()
    metric.update(*case.part(3, 4))
    assert metric.compute().item() == pytest.approx(case.mean(3, 4))


@pytest.mark.filterwarnings("ignore:The ``compute`` method")
def test_before_the_first_problem_there_is_no_mean(case):
    assert math.isnan(case.make().compute())


def test_a_forward_returns_the_mean_of_its_batch_alone(case):
    metric = case.make()
    metric(*case.part(0, 2))
    assert metric(*case.part(2, 4)).item() == pytest.approx(case.mean(2, 4))
    assert metric.compute().item() == pytest.approx(case.mean())

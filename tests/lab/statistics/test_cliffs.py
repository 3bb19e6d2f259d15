import numpy as np
import pytest

from apo_lab.statistics.cliffs import Cliff, SimulatedWorld, simulated_run
from apo_lab.statistics.exact import exact_pass_at_k


def run_of(cliff, seed=0):
    rng = np.random.default_rng(seed)
    return simulated_run(SimulatedWorld.draw(4096, rng), cliff, rng)


def test_a_cliff_costs_its_share_of_pass_at_64_and_none_of_pass_at_1():
    falling, keeping = run_of(Cliff(middle=0.3, share=0.25)), run_of(Cliff(middle=2.0, share=0.25))
    assert falling.mean(1).tolist() == pytest.approx(keeping.mean(1).tolist(), abs=0.02)
    ends = [exact_pass_at_k(run[-1], 64).mean().item() for run in (falling, keeping)]
    assert ends[1] - ends[0] == pytest.approx(0.23, abs=0.03)


def test_pass_at_64_falls_a_little_above_the_pass_at_1_of_the_middle():
    places = []
    for seed in range(10):
        run = run_of(Cliff(middle=0.3, share=0.25), seed)
        many = exact_pass_at_k(run, 64).mean(1)
        places.append(run.mean(1)[many < (many.max() + many[-1]) / 2][0].item())
    assert np.mean(places) == pytest.approx(0.32, abs=0.01)


def test_worlds_and_seeds_differ_and_one_generator_gives_the_same_runs():
    cliff = Cliff(middle=0.3, share=0.25)
    assert run_of(cliff).equal(run_of(cliff))
    assert not run_of(cliff).equal(run_of(cliff, seed=1))

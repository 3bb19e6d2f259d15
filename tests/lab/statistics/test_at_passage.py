"""Shares at the first passage of a level: against plain loops, and for policies made by hand."""

import numpy as np
import pytest
import torch

from apo_lab.statistics.entrances import Entrances, change_of_pass_at_k
from apo_lab.statistics.paths import at_passage, locked_share
from apo_lightning.errors import ConfigError

BLOCKS, PROBLEMS, POINTS, LEVEL = 16, 40, 9, 0.35


def plain(ones, values, keep, level):
    """The mean over the problems of `keep` where their mean pass@1 first reaches the level or its own highest value."""
    x, y = ([float(np.mean([row[i] for i in keep])) for row in of] for of in (ones, values))
    level = min(level, max(x))
    for after in range(len(x)):
        if x[after] >= level:
            if after == 0:
                return y[0]
            return y[after - 1] + (level - x[after - 1]) / (x[after] - x[after - 1]) * (y[after] - y[after - 1])
    raise AssertionError


def test_every_set_of_problems_is_at_its_own_passage():
    generator = np.random.default_rng(0)
    success = np.clip(np.linspace(0.1, 0.5, POINTS)[:, None] + 0.1 * generator.normal(size=(POINTS, PROBLEMS)), 0, 1)
    values = generator.random((POINTS, PROBLEMS))
    found = at_passage(torch.tensor(success), torch.tensor(values), LEVEL)
    sets = [range(PROBLEMS), *([i for i in range(PROBLEMS) if i % BLOCKS != b] for b in range(BLOCKS))]
    assert found.tolist() == pytest.approx([plain(success, values, keep, LEVEL) for keep in sets], abs=1e-12)


def test_a_level_that_is_never_reached_has_no_value_and_too_few_problems_are_refused():
    success = torch.full((3, 16), 0.2)
    assert at_passage(success, success, 0.21) is None
    assert locked_share(success, -success, -success, 0.21) is None
    with pytest.raises(ConfigError, match="15 problems in 16 blocks"):
        at_passage(success[:, :15], success[:, :15], 0.1)


@pytest.mark.parametrize(("falls", "share"), [("mass", 1.0), ("skill", 0.0)])
def test_a_locked_entrance_and_a_forgotten_skill_are_told_apart(falls, share):
    """Two entrances a problem: the first takes over, and the second is no longer taken, or taken in vain."""
    problem = torch.arange(16).repeat_interleave(2)
    policies = []
    for t in torch.linspace(0, 1, 5, dtype=torch.float64):
        mass, skill = (torch.tensor([row], dtype=torch.float64).repeat(16, 1) for row in ([0.5, 0.1], [0.4, 0.5]))
        skill[:8, 0] = 0  # in half of the problems only the second leads to a right answer
        of = {"mass": mass, "skill": skill}
        of[falls][:, 1] *= 1 - t
        mass[:, 0] += 0.3 * t
        skill[8:, 0] += 0.5 * t
        policies.append(Entrances(problem=problem, mass=mass.flatten(), skill=skill.flatten(), num_problems=16))
    changes = [change_of_pass_at_k(policies[0], each, 64).signed() for each in policies]
    locked, forgotten = (torch.stack([policies[0].summed(c[n]) for c in changes]) for n in ("locked", "forgotten"))
    found = locked_share(torch.stack([each.success for each in policies]), locked, forgotten, 0.25)
    assert found[0].item() == pytest.approx(share, abs=1e-9)
    assert found[1:].tolist() == pytest.approx([share] * 16, abs=1e-9)


def test_a_loss_that_is_too_small_has_no_share():
    success = torch.linspace(0.1, 0.5, 3)[:, None].expand(3, 16)
    tiny = torch.full((3, 16), -4e-4)
    assert locked_share(success, tiny, tiny, 0.3) is None
    assert locked_share(success, 2 * tiny, tiny, 0.3)[0].item() == pytest.approx(2 / 3)

"""Parts of the change of pass@k whose skills are shares of samples: against those of the true skills."""

import torch

from apo_lab.statistics.entrances import Entrances, change_of_pass_at_k
from apo_lab.statistics.sampled_entrances import sampled_change

K, FORCED, PROBLEMS = 16, 64, 400
BEFORE, AFTER = (
    {"mass": torch.tensor([0.30, 0.10, 0.02]).double(), "skill": torch.tensor([0.25, 0.50, 0.90]).double()},
    {"mass": torch.tensor([0.60, 0.01, 0.02]).double(), "skill": torch.tensor([0.40, 0.50, 0.20]).double()},
)


def entrances(mass, skill, copies=1):
    """Problems that are all alike, each with three entrances."""
    problem = torch.arange(copies).repeat_interleave(3)
    return Entrances(problem=problem, mass=mass.repeat(copies), skill=skill, num_problems=copies)


def sampled(seed, mass, skill):
    generator = torch.Generator().manual_seed(seed)
    counts = torch.binomial(torch.full((3 * PROBLEMS,), FORCED).double(), skill.repeat(PROBLEMS), generator=generator)
    return entrances(mass, counts / FORCED, PROBLEMS)


def test_the_bias_of_shares_in_place_of_skills_is_taken_off():
    true = change_of_pass_at_k(entrances(**BEFORE), entrances(**AFTER), K).parts(1)
    before, after = sampled(0, **BEFORE), sampled(1, **AFTER)
    plain = change_of_pass_at_k(before, after, K).parts(PROBLEMS)
    found, _ = sampled_change(before, after, K, FORCED)
    # The problems are alike, so their spread is the noise of the samples.
    for part, value in true.items():
        assert found[part].low <= value <= found[part].high, part
    largest = max(true, key=lambda part: abs(plain[part] - true[part]))
    assert abs(found[largest].mean - true[largest]) < abs(plain[largest] - true[largest]) / 3


def test_the_parts_add_up_to_the_change_and_those_of_entrances_to_the_parts():
    found, parts = sampled_change(sampled(0, **BEFORE), sampled(1, **AFTER), K, FORCED)
    names = ("locked", "opened", "forgotten", "learnt")
    assert abs(sum(found[name].mean for name in names) - found["change"].mean) < 1e-12
    for name in names:
        assert abs(parts[name].sum().item() / PROBLEMS - found[name].mean) < 1e-12


def test_what_the_correction_lifts_above_one_is_one():
    # From nothing to a pass@16 of 1 − (3/4)^16 = 0.99. A tenth of the shares, (3/4)^8, is 0, and loses it all.
    skill = torch.tensor([0.25]).double()
    before, after = (
        Entrances(problem=torch.tensor([0]), mass=mass, skill=skill, num_problems=1)
        for mass in (torch.zeros(1).double(), torch.ones(1).double())
    )
    found, parts = sampled_change(before, after, K, num_forced=8)
    assert sum(part.item() for part in parts.values()) > 1
    assert found["change"].mean == 1

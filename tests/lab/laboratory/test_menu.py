"""The rows of the menu of decodings: half of the samples from the base model, and the highest of all."""

import pandas as pd
import pytest
import torch

from apo_lab.editions.protocol import ALIKE, DECODED, SPLIT
from apo_lab.laboratory.harvest import PolicyPath, _of_menu
from apo_lab.statistics.entrances import Entrances

PROBLEMS, LEVEL = 32, 0.39


def path(*points):
    """A path of policies, each with these probabilities of a right sample, in turn over the problems."""
    success = torch.stack([torch.tensor(point, dtype=torch.float64).repeat(PROBLEMS // len(point)) for point in points])
    return PolicyPath(points=[], success=success, entrances=[], costs=pd.DataFrame())


REACHED = 0.05 * (1 - 0.8**64) + 0.95 * (1 - 0.6**64)
"""pass@64 at the level, on the straight line from 0.2 to 0.4 at all problems alike."""
BASE, COLLAPSED = (0.2, 0.2), (0.8, 0.0)
"""pass@1 0.2 and 0.4; the second is at the level, and solves half of the problems."""


def test_a_run_that_ends_at_its_base_model_has_lost_nothing():
    # One entrance of mass ½, which 64 samples nearly surely take.
    half = torch.tensor([0.5], dtype=torch.float64)
    base = Entrances(problem=torch.tensor([0]), mass=half, skill=half, num_problems=1)
    alone = PolicyPath(points=[], success=half.square()[None], entrances=[base], costs=pd.DataFrame())
    lost = alone.lost(base)
    assert lost.pop("entered").tolist() == [[pytest.approx(1 - 2**-64)]]
    assert lost
    assert all(part.tolist() == [[0.0]] for part in lost.values())


def test_half_of_the_samples_come_from_the_base_and_pass_at_1_is_the_policys():
    found = _of_menu({"": path(BASE, COLLAPSED)}, LEVEL)[SPLIT]
    assert _of_menu({"": path(BASE, COLLAPSED)}, LEVEL)[ALIKE][0] < found[0]
    # The level lies at 19/20 of the way from the base to the collapsed policy.
    of_base, of_collapsed = 0.8**32, (0.2**32 + 1) / 2
    expected = 1 - of_base * (0.05 * of_base + 0.95 * of_collapsed)
    assert found[0].item() == pytest.approx(expected, abs=1e-12)


def test_the_highest_is_taken_of_all_problems_and_without_each_block():
    # Without decoding half of the problems are lost; the mixture reaches the level with all of them.
    mixture = path(BASE, (0.4, 0.4))
    found = _of_menu({"": path(BASE, COLLAPSED), "+mixture": mixture}, LEVEL)
    assert found[DECODED][0].item() == pytest.approx(REACHED, abs=1e-12)
    assert found[DECODED][0] == found[ALIKE][0] > found[SPLIT][0]
    assert found[DECODED][1:].tolist() == pytest.approx([REACHED] * 16, abs=1e-12)


def test_what_does_not_reach_the_level_is_left_out_and_averages_of_a_part_are_no_decoding():
    short, better = path(BASE, (0.3, 0.3)), path(BASE, (0.4, 0.4))
    assert _of_menu({"": short, "+average_first": better}, LEVEL) == {}
    # Training does not reach the level, and a lower temperature does.
    found = _of_menu({"": short, "+temperature": better}, LEVEL)
    assert SPLIT not in found
    assert found[DECODED][0].item() == pytest.approx(REACHED, abs=1e-12)

import math
from dataclasses import replace

import pytest
import torch
from hydra.utils import instantiate

import apo_lightning.callbacks.distribution_monitor
from apo_lightning.callbacks import DistributionMonitor
from apo_lightning.callbacks.distribution_monitor import support_facts
from apo_lightning.errors import ConfigError
from apo_lightning.losses import APO, GRPO
from apo_lightning.types import Anchor, Needs
from composing import composed, names
from factories import make_step

NAN = math.nan


def watching(loss, **settings):
    """A monitor, as a run of this loss has it."""
    monitor = DistributionMonitor(**settings)
    monitor.prepare(loss)
    return monitor


def anchored_step(rows, *, statuses, lengths, ref_probs, entropy=None):
    """`rows`: for each token its anchor slots as (id, π_ref, π)."""
    anchor = Anchor(
        token_ids=torch.tensor([[slot[0] for slot in row] for row in rows]),
        ref_logprobs=torch.tensor([[slot[1] for slot in row] for row in rows]).log(),
        logprobs=torch.tensor([[slot[2] for slot in row] for row in rows]).log(),
    )
    return make_step(
        statuses,
        group_size=len(statuses),
        lengths=lengths,
        anchor=anchor,
        ref_logprobs=torch.tensor(ref_probs).log(),
        entropy=entropy,
    )


@pytest.fixture
def step():
    """Completion 0 (correct) has token 0; completion 1 (wrong) has tokens 10 and 11.

    token 0:  T_K = {0: .5 → .6, 7: .3 → .1}                             J = 0.7
    token 10: T_K = {7: .4 → .2, 8: .2 → .1}, y outside it               J = 0.3, Z = 0.6, r = 0.3/0.6 = 0.5
    token 11: T_K = {11: .95 → .5, 7: .04 → .2}, y is the favourite      J = 0.7, Z = 0.04, r = 0.2/0.04 = 5
    """
    return anchored_step(
        [[(0, 0.5, 0.6), (7, 0.3, 0.1)], [(7, 0.4, 0.2), (8, 0.2, 0.1)], [(11, 0.95, 0.5), (7, 0.04, 0.2)]],
        statuses=("correct", "incorrect"),
        lengths=[1, 2],
        ref_probs=[0.5, 0.05, 0.95],
        entropy=[1.0, 2.0, 4.0],
    )


def test_the_numbers_derived_by_hand(step):
    metrics = watching(APO(anchor_size=2)).on_step(step)
    expected = {
        "support/num_tokens": 3.0,
        "support/num_nonfinite": 0.0,
        "support/coverage_correct": 0.7,
        "support/coverage_incorrect": 0.5,  # (0.3 + 0.7)/2
        "support/entropy_correct": 1.0,
        "support/entropy_incorrect": 3.0,
        "support/max_prob_correct": 0.25,
        "support/max_prob_incorrect": 0.25,
        "support/anchor_ratio_p10": 0.95,  # a tenth of the way from 0.5 to 5
        "support/anchor_ratio_p50": 2.75,
        "support/anchor_ratio_p90": 4.55,
        "support/ref_anchor_mass_p10": 0.096,  # from 0.04 to 0.6
        "support/ref_anchor_mass_p50": 0.32,
        "support/ref_anchor_mass_p90": 0.544,
    }
    assert metrics == pytest.approx(expected, abs=1e-6)
    assert watching(GRPO(), anchor_size=2).on_step(step) == pytest.approx(expected, abs=1e-6)


def test_the_anchor_set_is_that_of_the_loss(step):
    # Token 11 with y among its anchors: r = (0.5 + 0.2)/(0.95 + 0.04), and of token 10, which y is no part of, 0.5.
    naive = watching(APO(anchor_size=2, exclude_sampled=False)).on_step(step)
    assert naive["support/anchor_ratio_p50"] == pytest.approx((0.5 + 0.7 / 0.99) / 2, abs=1e-6)


@pytest.mark.parametrize("algo", names("algo"))
def test_the_size_of_the_support_is_the_losss_own_or_the_papers_unless_it_is_given(algo):
    loss = instantiate(composed(f"algo={algo}").algo.loss)
    own = 16 if algo == "grpo_entrance_kl" else 8
    assert watching(loss).needs == Needs(ref_logprobs=True, anchor_size=own)
    assert watching(loss, anchor_size=12).needs.anchor_size == 12
    if isinstance(loss, APO):
        assert watching(replace(loss, anchor_size=16)).needs.anchor_size == 16


def test_a_smaller_support_reads_only_its_own_slots(step):
    # K = 1: token 10 keeps {7}: Z = 0.4, r = 0.5; token 11 keeps only y, so its anchor set is empty and r = 0.
    facts = support_facts(step.tokens, anchor_size=1)
    assert facts.coverage.tolist() == pytest.approx([0.6, 0.2, 0.5])
    assert facts.anchor_ratio.tolist() == pytest.approx([0.0, 0.5, 0.0])
    assert bool(facts.is_finite.all())


def test_tokens_without_reference_are_absent_and_tokens_with_broken_numbers_are_counted():
    step = anchored_step(
        [[(0, 0.5, 0.5)], [(-1, 0.0, 0.0)], [(7, 0.5, 0.25)], [(7, 0.5, NAN)], [(7, NAN, 0.25)]],
        statuses=("correct", "incorrect"),
        lengths=[1, 4],
        ref_probs=[0.5, NAN, 0.5, 0.5, 0.5],
    )
    metrics = DistributionMonitor(anchor_size=1).on_step(step)
    assert metrics["support/num_tokens"] == 2.0
    assert metrics["support/num_nonfinite"] == 2.0
    assert metrics["support/coverage_incorrect"] == pytest.approx(0.25)


def test_a_slot_that_the_reference_gives_no_probability_is_no_anchor():
    step = anchored_step(
        [[(7, 0.5, 0.25), (8, 0.0, 0.5)], [(7, 0.5, 0.25), (8, 0.0, 0.5)]],
        statuses=("correct", "incorrect"),
        lengths=[1, 1],
        ref_probs=[0.1, 0.1],
    )
    assert support_facts(step.tokens, 2).anchor_ratio.tolist() == pytest.approx([0.5, 0.5])


def test_the_tokens_of_other_ranks_are_measured_too(step, monkeypatch):
    monkeypatch.setattr(apo_lightning.callbacks.distribution_monitor, "from_all_ranks", lambda facts: [facts, facts])
    metrics = watching(APO(anchor_size=2)).on_step(step)
    assert metrics["support/num_tokens"] == 6.0
    assert metrics["support/coverage_incorrect"] == pytest.approx(0.5)


def test_no_reference_is_an_error_and_not_an_empty_row():
    with pytest.raises(ConfigError, match="no reference statistics"):
        DistributionMonitor().on_step(make_step())
    with pytest.raises(ConfigError, match="anchor_size is 0"):
        DistributionMonitor(anchor_size=0)

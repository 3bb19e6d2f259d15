import math

import pytest
import torch

from apo_lightning.callbacks import DistributionMonitor
from apo_lightning.callbacks.distribution_monitor import join, support_facts
from apo_lightning.errors import ConfigError
from apo_lightning.types import Anchor, Needs
from factories import make_step

NAN = math.nan


def anchored_step(rows, *, statuses, lengths, ref_probs, loss_metrics=None, entropy=None):
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
        loss_metrics=loss_metrics,
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
    metrics = DistributionMonitor(anchor_size=2, every_n_steps=1).on_step(step)
    expected = {
        "support/num_tokens": 3.0,
        "support/num_nonfinite": 0.0,
        "support/coverage_correct": 0.7,
        "support/coverage_incorrect": 0.5,  # (0.3 + 0.7)/2
        "support/entropy_correct": 1.0,
        "support/entropy_incorrect": 3.0,
        "support/max_prob_correct": 0.25,
        "support/max_prob_incorrect": 0.25,
        "support/saturated_fraction": 0.5,  # 5 > 2.5
        "support/anchor_ratio_p10": 0.95,  # a tenth of the way from 0.5 to 5
        "support/anchor_ratio_p50": 2.75,
        "support/anchor_ratio_p90": 4.55,
        "support/ref_anchor_mass_p10": 0.096,  # from 0.04 to 0.6
        "support/ref_anchor_mass_p50": 0.32,
        "support/ref_anchor_mass_p90": 0.544,
    }
    assert metrics == pytest.approx(expected, abs=1e-6)


def test_a_smaller_support_reads_only_its_own_slots(step):
    # K = 1: token 10 keeps {7}: Z = 0.4, r = 0.5; token 11 keeps only y, so its anchor set is empty and r = 0.
    facts = support_facts(step.tokens, anchor_size=1)
    assert facts.coverage.tolist() == pytest.approx([0.6, 0.2, 0.5])
    assert facts.anchor_ratio.tolist() == pytest.approx([0.0, 0.5, 0.0])
    assert bool(facts.is_finite.all())


def test_tokens_without_reference_are_absent_and_tokens_with_broken_numbers_are_counted():
    step = anchored_step(
        [[(0, 0.5, 0.5)], [(-1, 0.0, 0.0)], [(7, 0.5, 0.25)], [(7, 0.5, NAN)]],
        statuses=("correct", "incorrect"),
        lengths=[1, 3],
        ref_probs=[0.5, NAN, 0.5, 0.5],
    )
    metrics = DistributionMonitor(anchor_size=1).on_step(step)
    assert metrics["support/num_tokens"] == 2.0
    assert metrics["support/num_nonfinite"] == 1.0
    assert metrics["support/coverage_incorrect"] == pytest.approx(0.25)


def test_a_slot_that_the_reference_gives_no_probability_is_no_anchor():
    step = anchored_step(
        [[(7, 0.5, 0.25), (8, 0.0, 0.5)], [(7, 0.5, 0.25), (8, 0.0, 0.5)]],
        statuses=("correct", "incorrect"),
        lengths=[1, 1],
        ref_probs=[0.1, 0.1],
    )
    assert support_facts(step.tokens, 2).anchor_ratio.tolist() == pytest.approx([0.5, 0.5])


def test_the_shares_of_the_pull_by_the_references_probability_of_the_token():
    """|A| = 1 on both wrong tokens, the third is correct: no pull.

    token 10: r = 0.5, Σ_S π = 0.2: pull 0.5·0.8 = 0.4, π_ref(y) = 0.05
    token 11: r = 2.0, Σ_S π = 0.4: pull 2.0·0.6 = 1.2, π_ref(y) = 0.95
    """
    step = anchored_step(
        [[(7, 0.4, 0.4)], [(7, 0.4, 0.2)], [(7, 0.2, 0.4)]],
        statuses=("correct", "incorrect"),
        lengths=[1, 2],
        ref_probs=[0.6, 0.05, 0.95],
        loss_metrics={"pull": torch.tensor([NAN, 0.4, 1.2])},
    )
    shares = {name: value for name, value in DistributionMonitor(anchor_size=1).on_step(step).items() if "pull" in name}
    assert shares == pytest.approx(
        {
            "support/pull_share_0_to_0.01": 0.0,
            "support/pull_share_0.01_to_0.1": 0.25,
            "support/pull_share_0.1_to_0.5": 0.0,
            "support/pull_share_0.5_to_0.9": 0.0,
            "support/pull_share_0.9_to_1": 0.75,
        },
        abs=1e-6,
    )


def test_a_saturated_token_pulls_no_more_and_a_loss_without_a_pull_reports_none(step):
    pulling = DistributionMonitor(anchor_size=2)
    assert not any("pull" in name for name in pulling.on_step(step))
    step.loss_metrics["apo/pull"] = torch.zeros(3)
    # Token 11 (r = 5) is saturated: all the pull is token 10's.
    assert pulling.on_step(step)["support/pull_share_0.01_to_0.1"] == pytest.approx(1.0)


def test_the_parts_of_two_ranks_are_the_whole(step):
    whole = support_facts(step.tokens, 2)
    first = torch.tensor([True, False, False])
    joined = join([whole.select(first), whole.select(~first)])
    assert torch.equal(joined.coverage, whole.coverage)
    assert torch.equal(joined.is_correct, whole.is_correct)


def test_what_it_needs_is_declared():
    assert DistributionMonitor(anchor_size=4).needs == Needs(ref_logprobs=True, anchor_size=4)
    assert DistributionMonitor(every_n_steps=5).is_due(10)
    assert not DistributionMonitor(every_n_steps=5).is_due(11)


def test_no_reference_is_an_error_and_not_an_empty_row():
    with pytest.raises(ConfigError, match="no reference statistics"):
        DistributionMonitor().on_step(make_step())
    with pytest.raises(ConfigError, match="anchor_size is 0"):
        DistributionMonitor(anchor_size=0)

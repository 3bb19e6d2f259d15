import math
from dataclasses import replace

import pytest
import torch
from hydra.utils import instantiate

from apo_lightning.callbacks import DistributionMonitor
from apo_lightning.callbacks.distribution_monitor import join, support_facts
from apo_lightning.errors import ConfigError
from apo_lightning.losses import APO, GRPO
from apo_lightning.run.settings import callbacks_for
from apo_lightning.types import Anchor, LossInputs, Needs
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
        "support/saturated_fraction": 0.5,  # 5 > 2.5
        "support/anchor_ratio_p10": 0.95,  # a tenth of the way from 0.5 to 5
        "support/anchor_ratio_p50": 2.75,
        "support/anchor_ratio_p90": 4.55,
        "support/ref_anchor_mass_p10": 0.096,  # from 0.04 to 0.6
        "support/ref_anchor_mass_p50": 0.32,
        "support/ref_anchor_mass_p90": 0.544,
    }
    shares = {name: metrics.pop(name) for name in list(metrics) if "pull_share" in name}
    assert metrics == pytest.approx(expected, abs=1e-6)
    assert sum(shares.values()) == pytest.approx(1)
    # Without anchors of its own a loss has no edge beyond which they would not move it.
    del expected["support/saturated_fraction"]
    assert watching(GRPO(), anchor_size=2).on_step(step) == pytest.approx(expected, abs=1e-6)


# κ = (λ − (1 − ε))/β; on the wrong tokens r_anchor is 0.5 and 5.
@pytest.mark.parametrize(
    ("loss", "edge", "saturated"),
    [
        (APO(anchor_size=2), 2.5, 0.5),
        (APO(anchor_size=2, pull_coef=0.04), 6.25, 0.0),
        (APO(anchor_size=2, pull_coef=0.0), math.inf, 0.0),
        (APO(anchor_size=2, push_coef=1.0), 2.0, 0.5),
        (APO(anchor_size=2, push_coef=0.84, pull_coef=0.03, clip_eps=0.2), 4 / 3, 0.5),
        (APO(anchor_size=2, push_coef=1.3, pull_coef=1.0, clip_eps=0.75, clip_eps_high=0.1), 1.05, 0.5),
        (APO(anchor_size=2, push_coef=1.3, pull_coef=0.2, clip_eps=0.75), 5.25, 0.0),
    ],
)
def test_saturation_begins_where_the_loss_that_runs_says(step, loss, edge, saturated):
    assert loss.saturated_above == pytest.approx(edge)
    assert watching(loss).on_step(step)["support/saturated_fraction"] == saturated


EDGES = {"pull_0.0": math.inf, "pull_0.01": 25.0, "pull_0.02": 12.5, "pull_0.05": 5.0, "push_1.0": 2.0, "push_1.1": 3.0}


@pytest.mark.parametrize("run", [*EDGES, "anchor_4", "anchor_16"])
def test_the_papers_sensitivity_runs_are_each_watched_at_their_own_edge_and_size(run):
    cfg = composed(f"experiment=paper/sensitivity_{run}")
    [monitor] = [c for c in callbacks_for(cfg, instantiate(cfg.algo.loss)) if isinstance(c, DistributionMonitor)]
    assert monitor.apo.saturated_above == pytest.approx(EDGES.get(run, 2.5))
    assert monitor.needs.anchor_size == {"anchor_4": 4, "anchor_16": 16}.get(run, 8)


def test_the_edge_of_saturation_is_where_the_gradient_of_the_loss_ends(step):
    """At r = 1 the losses of both sides of κ differ in their gradient: none beyond, some before."""
    loss = APO(anchor_size=2, pull_coef=0.05)
    log_half = torch.tensor([0.5]).log()
    for factor, moves in ((0.99, True), (1.01, False)):
        z_ref = 0.1
        logprobs = torch.tensor([[0.5, z_ref * loss.saturated_above * factor]]).log().requires_grad_()
        anchor = Anchor(
            token_ids=torch.tensor([[3, 7]]), ref_logprobs=torch.tensor([[0.5, z_ref]]).log(), logprobs=logprobs
        )
        output = loss(
            LossInputs(
                token_ids=torch.tensor([3]),
                sequence_ids=torch.tensor([0]),
                logprobs=log_half,
                old_logprobs=log_half,
                advantages=torch.tensor([-1.0]),
                is_correct=torch.tensor([False]),
                anchor=anchor,
            )
        )
        (gradient,) = torch.autograd.grad(output.per_token.sum(), logprobs)
        assert bool(gradient.any()) is moves


def test_the_anchor_set_is_that_of_the_loss(step):
    # Token 11 with y among its anchors: r = (0.5 + 0.2)/(0.95 + 0.04), and of token 10, which y is no part of, 0.5.
    naive = watching(APO(anchor_size=2, exclude_sampled=False)).on_step(step)
    assert naive["support/anchor_ratio_p50"] == pytest.approx((0.5 + 0.7 / 0.99) / 2, abs=1e-6)
    assert naive["support/saturated_fraction"] == 0


@pytest.mark.parametrize("algo", names("algo"))
def test_the_size_of_the_support_is_the_losss_own(algo):
    loss = instantiate(composed(f"algo={algo}").algo.loss)
    monitor = instantiate(composed().callbacks.monitor)
    monitor.prepare(loss)
    assert monitor.needs.anchor_size == 8
    if isinstance(loss, APO):
        monitor.prepare(replace(loss, anchor_size=16))
        assert monitor.needs == Needs(ref_logprobs=True, anchor_size=16)


def test_the_support_can_be_looked_at_wider_than_the_loss_anchors(step):
    # K = 1 as in the test below; the coverage is that of K = 2.
    metrics = watching(APO(anchor_size=1), anchor_size=2).on_step(step)
    assert metrics["support/coverage_incorrect"] == pytest.approx(0.5)
    assert metrics["support/anchor_ratio_p50"] == pytest.approx(0.25)
    assert watching(APO(anchor_size=4), anchor_size=12).needs == Needs(ref_logprobs=True, anchor_size=12)
    assert watching(GRPO(), anchor_size=16).needs == Needs(ref_logprobs=True, anchor_size=16)
    narrow = watching(APO(anchor_size=2), anchor_size=1).on_step(step)
    assert narrow["support/coverage_incorrect"] == pytest.approx(0.35)
    assert narrow["support/saturated_fraction"] == 0.5


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
    )
    shares = {name: value for name, value in watching(APO(anchor_size=1)).on_step(step).items() if "pull" in name}
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


def test_what_is_saturated_or_not_triggered_pulls_no_more_and_without_a_pull_there_are_no_shares(step):
    # Token 11 (r = 5) is beyond 2.5, not beyond 5.
    low, high = "support/pull_share_0.01_to_0.1", "support/pull_share_0.9_to_1"
    assert watching(APO(anchor_size=2)).on_step(step)[low] == pytest.approx(1.0)
    shares = watching(APO(anchor_size=2, pull_coef=0.04)).on_step(step)
    assert shares[high] == pytest.approx(5 * 0.8 / (5 * 0.8 + 0.5 * 0.7))
    for loss in (APO(anchor_size=2, pull_coef=0.0), GRPO()):
        assert not any("pull" in name for name in watching(loss).on_step(step))
    # The correct token with A < 0, as length shaping gives it, is pulled unless the trigger asks for the verdict.
    tokens = replace(step.tokens, advantages=-torch.ones(3))
    shares = watching(APO(anchor_size=2)).on_step(replace(step, tokens=tokens))
    assert 0 < shares[low] < 1
    assert watching(APO(anchor_size=2, trigger="incorrect")).on_step(replace(step, tokens=tokens))[low] == 1


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

import math
from dataclasses import replace

import pytest
import torch

from apo_lightning.errors import ConfigError
from apo_lightning.losses import APO, GRPO
from apo_lightning.types import Needs, ProbeStatistics, ReferenceStatistics, TokenStatistics
from apo_methods.diagnostics import SqueezingMonitor
from factories import make_step

STATUSES = ("incorrect", "correct", "incorrect", "incorrect", "correct", "incorrect", "incorrect", "incorrect")


def monitor(loss=None, **settings):
    callback = SqueezingMonitor(**settings)
    callback.prepare(loss or APO(anchor_size=2))
    return callback


@pytest.fixture
def step():
    """Two groups of four; in the second nothing is learnt from, so its completions are the controls."""
    step = make_step(STATUSES, group_size=4, lengths=[1] * 8)
    values = step.advantages.values.clone()
    values[1] = 0
    return replace(step, advantages=replace(step.advantages, values=values))


def said(probs_of_tokens):
    """A policy's word: for each token π(y), and π of two anchors."""
    table = torch.tensor(probs_of_tokens, dtype=torch.float64).log()
    ones = torch.ones(len(table), dtype=torch.float64)
    return TokenStatistics(logprobs=table[:, 0], entropy=ones, max_prob=ones, anchor_logprobs=table[:, 1:])


def answered(callback, step, before, after, anchor_ids):
    probe = callback.probe(step.rollouts, step.advantages)
    reference = ReferenceStatistics(
        logprobs=torch.zeros(len(before)), anchor_ids=torch.tensor(anchor_ids), anchor_logprobs=None
    )
    answer = ProbeStatistics(probe=probe, reference=reference, before=said(before), after=said(after))
    return callback.on_step(replace(step, probes={callback.state_key: answer}))


def test_the_numbers_derived_by_hand(step):
    """Errors are completions 0, 2, 3 (tokens 0, 20, 30), controls 4 to 7; anchors 90 and 91, of which y is none.

    token 0:  y .20 → .10, leader .60 → .68, other .10 → .11, tail .10 → .11    lost .10, in proportion .10·.6/.8 = .075
    token 20: y .40 → .35, leader .30 → .32, other .20 → .20, tail .10 → .13    lost .05, in proportion .05·.3/.6 = .025
    token 30: y rose
    control:  one fell, .50 → .40, leader .25 → .30, other .125 → .15, tail .125 → .15: lost .10, in proportion .05
    """
    before = [(0.2, 0.6, 0.1), (0.4, 0.2, 0.3), (0.1, 0.5, 0.2), *[(0.5, 0.25, 0.125)] * 4]
    after = [(0.1, 0.68, 0.11), (0.35, 0.2, 0.32), (0.2, 0.4, 0.2), (0.4, 0.3, 0.15), *[(0.5, 0.25, 0.125)] * 3]
    metrics = answered(monitor(), step, before, after, [[90, 91]] * 7)
    expected = {
        "share_leader": (0.10 / 0.15, 0.5, 0.10 / 0.15 - 0.5),
        "share_anchors": (0.01 / 0.15, 0.25, 0.01 / 0.15 - 0.25),
        "share_tail": (0.04 / 0.15, 0.25, 0.04 / 0.15 - 0.25),
        "index": ((0.10 - 0.10) / 0.15, 0.0, 0.0),
        "tail_loses": (0.0, 0.0, 0.0),
        "num_fell": (2, 1),
        "num_rose": (1, 3),
        "num_nonfinite": (0, 0),
    }
    ends = ("error", "control", "difference")
    flat = {f"squeeze/{name}_{end}": v for name, row in expected.items() for end, v in zip(ends, row, strict=False)}
    assert metrics == pytest.approx(flat, abs=1e-9)


def test_the_sampled_token_is_no_anchor_and_no_leader(step):
    # Token 0 is slot 0 of its own anchors, and likelier than slot 1.
    only_error = replace(step, advantages=replace(step.advantages, values=step.advantages.values + 0.5))
    callback = monitor(num_completions=1)
    probe = callback.probe(only_error.rollouts, only_error.advantages)
    (token,) = probe.completions[0]
    metrics = answered(callback, only_error, [(0.6, 0.6, 0.1)], [(0.5, 0.5, 0.2)], [[token, 91]])
    assert metrics["squeeze/share_leader_error"] == pytest.approx(1.0)
    assert math.isnan(metrics["squeeze/index_control"])
    assert metrics["squeeze/num_fell_control"] == 0


def test_errors_are_wrong_kept_and_punished_and_the_lot_depends_on_seed_and_step_alone(step):
    def drawn(number, seed=0, at=1, keep=None):
        callback = monitor(num_completions=number)
        callback.seed = seed
        advantages = step.advantages if keep is None else replace(step.advantages, keep=keep)
        probe = callback.probe(replace(step.rollouts, step=at), advantages)
        return [completion[0] // 10 for completion in probe.completions]

    assert drawn(64) == [0, 2, 3, 4, 5, 6, 7]
    keep = torch.ones(2, 4, dtype=torch.bool)
    keep[0, 2] = False
    assert drawn(64, keep=keep) == [0, 3, 4, 5, 6, 7]
    choices = {tuple(drawn(2, seed=seed, at=at)) for seed in range(4) for at in range(4)}
    assert len(choices) > 3
    assert drawn(2) == drawn(2)
    assert all(len(choice) == 4 for choice in choices)


def test_its_anchors_are_the_losss_own_and_no_pass_over_the_step_is_asked_for():
    assert monitor(APO(anchor_size=4)).needs == Needs(reference_model=True)
    assert monitor(GRPO()).needs == Needs(reference_model=True)
    assert monitor(APO(), anchor_size=3).anchor_size == 3
    assert not monitor().needs.reference_statistics


@pytest.mark.parametrize("setting", ["num_completions", "anchor_size", "every_n_steps"])
def test_a_number_below_one_is_refused(setting):
    with pytest.raises(ConfigError, match=f"squeezing_monitor.{setting} is 0"):
        SqueezingMonitor(**{setting: 0})

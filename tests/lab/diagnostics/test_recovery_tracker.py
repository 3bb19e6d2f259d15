import json
import math
from dataclasses import replace

import pytest
import torch

from apo_lab.diagnostics import RecoveryTracker
from apo_lab.diagnostics.recovery_probes import RecoveryProbe, read_probes, write_probes
from apo_lab.theory.problems import Tree
from apo_lightning.errors import ConfigError
from apo_lightning.losses import APO, GRPO
from apo_lightning.types import Needs, ProbeStatistics, TokenStatistics
from factories import make_step
from running import SIGNAL, run, train_tiny

REF = torch.tensor([[0.5, 0.3, 0.15, 0.05], [0.4, 0.3, 0.2, 0.1], [0.4, 0.3, 0.2, 0.1], *[[0.25] * 4] * 2]).double()
"""A tree of two tokens over four: the root, and a node behind each of its tokens."""
TREE = Tree(ref=REF, success=torch.tensor([1.0, 0, 0, 0] * 4))


def probes_of_tree():
    """The root's, and that of the node behind token 1; K = 2, of which the first alternative can end right."""
    common = {"prompt": (7,), "alternatives": (0, 1, 2, 3), "weight": 2.0}
    return [
        RecoveryProbe(
            prompt_id=f"p{number}",
            prefix=prefix,
            prefix_logprob=path.log().item(),
            ref_logprobs=tuple(REF[node].log().tolist()),
            logprobs=tuple(REF[node].log().tolist()),
            success=(0.5, 0.0),
            **common,
        )
        for number, (prefix, node, path) in enumerate([((), 0, torch.tensor(1.0)), ((1,), 2, REF[0, 1])])
    ]


def tracker(**settings):
    """N = 4 · 2.5 = 10 draws of a prompt."""
    callback = RecoveryTracker(visits=2.5, anchor_size=2, every_n_steps=1, **settings)
    callback.begin(probes_of_tree(), group_size=4)
    return callback


def measure(callback, probs, step):
    """The policy's word on the tree's two probes, as the module gives it."""
    due = make_step(step=step)
    probe = callback.probe(due.rollouts, due.advantages)
    assert probe.completions == [(0,), (1, 0)]
    assert probe.anchors.tolist() == [[0, 1, 2, 3], [-1] * 4, [0, 1, 2, 3]]
    logprobs = torch.stack([probs[0, 0], probs[0, 1], probs[2, 0]]).log()
    anchors = torch.stack([probs[0], torch.ones(4), probs[2]]).log()
    ones = torch.ones(3, dtype=torch.float64)
    said = TokenStatistics(logprobs=logprobs, entropy=ones, max_prob=ones, anchor_logprobs=anchors)
    answer = ProbeStatistics(probe=probe, reference=None, before=None, after=said)
    return callback.on_step(replace(due, probes={callback.state_key: answer}))


def test_the_numbers_of_a_tree_derived_by_hand():
    """Draws of a prompt: 10. Before training the right alternatives have 5 and 4 given the prefix, 5 and 1.2 by path,
    the wrong ones 3 and 3, and 3 and 0.9: that one is unreachable.

    Look 1: the root (.9, .05, .03, .02), the node as it was: by path .5 · .4 = .2 and .5 · .3 = .15 draws; the root's
    wrong one is down to .5 draws. Look 2: the root (.6, .3, …), node (.05, .8, …): right .15 by path, .5 given.
    """
    assert TREE.visits(REF)[2].item() == pytest.approx(0.3)
    callback = tracker()
    moved = REF.clone()
    moved[0] = torch.tensor([0.9, 0.05, 0.03, 0.02])
    first = measure(callback, moved, 1)
    expected = {
        "num_at_risk_path_right": 2,
        "num_lost_path_right": 1,
        "survival_path_right": 0.5,
        "prevalence_path_right": 0.5,
        "num_unreachable_path_wrong": 1,
        "num_at_risk_path_wrong": 1,
        "num_lost_path_wrong": 1,
        "survival_path_wrong": 0.0,
        "num_lost_given_right": 0,
        "survival_given_right": 1.0,
        "num_lost_given_wrong": 1,
        "survival_given_wrong": 0.5,
        "num_recovered_given_wrong": 0,
        "num_nonfinite": 0,
        "num_unjudged": 0,
        # The root's pair is more than half a nat apart: log .5/.3 = .51. Of the other nothing has changed.
        "num_prefixes_verdict": 1,
        "selectivity_verdict": 0.0,
        "num_prefixes_rank": 2,
        "selectivity_rank": (math.log(1.8) + math.log(1 / 6) - math.log(0.2) - math.log(0.4)) / 2 / 2,
    }
    assert {key: first[f"recovery/{key}"] for key in expected} == pytest.approx(expected)
    moved[0] = torch.tensor([0.6, 0.3, 0.05, 0.05])
    moved[2] = torch.tensor([0.05, 0.8, 0.1, 0.05])
    second = measure(callback, moved, 2)
    expected = {
        "num_lost_path_right": 1,
        "num_recovered_path_right": 0,
        "num_lost_given_right": 1,
        "num_recovered_given_wrong": 1,
        "num_lost_given_wrong": 1,
        "survival_given_wrong": 0.5,
        "prevalence_given_wrong": 0.0,
        "selectivity_verdict": math.log(0.05 / 0.4) - math.log(0.8 / 0.3),
    }
    assert {key: second[f"recovery/{key}"] for key in expected} == pytest.approx(expected)


def test_a_run_that_is_gone_on_from_knows_what_was_lost():
    moved = REF.clone()
    moved[0] = torch.tensor([0.9, 0.05, 0.03, 0.02])
    unbroken = tracker()
    measure(unbroken, moved, 1)
    resumed = RecoveryTracker(visits=2.5, anchor_size=2, every_n_steps=1)
    resumed.load_state_dict(json.loads(json.dumps(unbroken.state_dict())))
    resumed.begin(probes_of_tree(), group_size=4)
    assert measure(resumed, REF, 2) == pytest.approx(measure(unbroken, REF, 2), nan_ok=True)


def test_probes_are_read_as_they_were_written_or_refused(tmp_path):
    path, origin = tmp_path / "probes.jsonl", {"seed": 1, "data": "abc"}
    write_probes(path, probes_of_tree(), {**origin, "model": "x"})
    assert read_probes(path, origin) == probes_of_tree()
    with pytest.raises(ConfigError, match="were made with seed=1, and this run has 2"):
        read_probes(path, {**origin, "seed": 2})
    path.write_text(path.read_text().replace('"weight": 2.0', '"weight": 3.0', 1))
    with pytest.raises(ConfigError, match="not those that were written"):
        read_probes(path, origin)


def test_its_alternatives_are_twice_the_losss_anchors_and_no_pass_over_the_step_is_asked_for():
    callback = RecoveryTracker()
    callback.prepare(APO(anchor_size=4))
    assert callback.probe_needs == Needs(anchor_size=8)
    callback.prepare(GRPO())
    assert callback.probe_needs == Needs(anchor_size=16)
    assert callback.needs == Needs()


@pytest.mark.parametrize(
    ("setting", "value"), [("num_prompts", 0), ("continuations", 3), ("visits", 0), ("anchor_size", 0)]
)
def test_a_number_too_small_is_refused(setting, value):
    with pytest.raises(ConfigError, match=f"recovery_tracker.{setting} is {value}"):
        RecoveryTracker(**{setting: value})


TRACKED = (
    "callbacks=recovery_tracker",
    "callbacks.recovery_tracker.num_prompts=3",
    "callbacks.recovery_tracker.completions_per_prompt=2",
    "callbacks.recovery_tracker.anchor_size=2",
    "callbacks.recovery_tracker.every_n_steps=1",
)
SMALL = (*SIGNAL, "data.max_completion_tokens=6", "optimizer.lr=1e-2")


def test_it_steers_nothing_and_its_probes_are_those_of_every_method(tmp_path):
    files = []
    for algo in ("apo", "grpo"):
        alone, _ = run(tmp_path / f"{algo}-alone", *SMALL, f"algo={algo}")
        tracked, rows = run(tmp_path / algo, *SMALL, f"algo={algo}", *TRACKED)
        assert all(torch.equal(alone[name], tracked[name]) for name in alone)
        assert float(rows[-1]["recovery/num_prefixes_rank"]) == 6
        files.append((tmp_path / algo / "recovery/probes.jsonl").read_bytes())
    assert files[0] == files[1]


@torch.no_grad()
def test_probes_hold_what_the_untrained_model_says(tmp_path):
    module = train_tiny(tmp_path, *SMALL, "algo=grpo", "optimizer.lr=0.0", *TRACKED)
    (callback,) = [c for c in module.trainer.callbacks if isinstance(c, RecoveryTracker)]
    assert len(callback.probes) == 6
    assert len({probe.prompt_id for probe in callback.probes}) == 3
    for probe in callback.probes:
        logits = module.policy.model(torch.tensor([[*probe.prompt, *probe.prefix]])).logits[0].log_softmax(1)
        top = logits[-1].topk(4)
        assert probe.alternatives == tuple(top.indices.tolist())
        torch.testing.assert_close(torch.tensor(probe.logprobs), top.values)
        torch.testing.assert_close(torch.tensor(probe.ref_logprobs), top.values)
        along = logits[len(probe.prompt) - 1 : -1].gather(1, torch.tensor(probe.prefix).long()[:, None])
        assert probe.prefix_logprob == pytest.approx(along.sum().item(), abs=1e-4)
        # The reward looks at the completion's first letter: behind a prefix all continuations are judged alike.
        assert all(share in (0, 0.25, 0.5, 0.75, 1) for share in probe.success)
        if probe.prefix:
            assert len(set(probe.success)) == 1

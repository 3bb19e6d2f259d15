"""Exact expectations against enumeration of every group, leaf by leaf."""

import itertools

import pytest
import torch

from apo_lab.theory.expectations import expected_force
from apo_lab.theory.forces import token_forces
from apo_lab.theory.problems import Tree, bandit, dist, random_probs, seeded
from apo_lightning.advantages import GroupNormalized, PassAtK, SignedReward
from apo_lightning.errors import ConfigError
from apo_lightning.losses import APO, GRPO, GRPOKL
from apo_lightning.losses.policy_loss import Importance
from apo_lightning.types import AdvantageInputs
from apo_methods.losses import GridLoss

GROUPED = (GroupNormalized(), GroupNormalized(normalize_std=False))
ESTIMATORS = [*GROUPED, SignedReward(), SignedReward(positive_weight=0.1)]


def enumerated(tree, probs, loss, advantage, group_size):
    """Σ over all groups of leaves, with a gradient a token."""
    vocab = probs.shape[1]
    paths = list(itertools.product(range(vocab), repeat=tree.depth))
    total = torch.zeros_like(probs)
    for group in itertools.product(range(len(paths)), repeat=group_size):
        for verdicts in itertools.product((True, False), repeat=group_size):
            chance, steps = 1.0, []
            for leaf, right in zip(group, verdicts, strict=True):
                q = tree.success[leaf].item()
                chance *= q if right else 1 - q
                node = 0
                for token in paths[leaf]:
                    chance *= probs[node, token].item()
                    steps.append((node, token))
                    node = node * vocab + token + 1
            if chance == 0:
                continue
            correct = torch.tensor([verdicts])
            lengths = torch.ones_like(correct, dtype=torch.long)
            given = advantage(AdvantageInputs(rewards=correct.double(), is_correct=correct, lengths=lengths))
            kept = int(given.keep.sum())
            for index, (node, token) in enumerate(steps):
                member = index // tree.depth
                if given.keep[0, member]:
                    # `token_forces` takes the verdict to be the sign of A, which these losses do not read.
                    force = token_forces(loss, probs[node].log(), tree.ref[node], token, given.values[0, member].item())
                    total[node] += chance * force / (kept * tree.depth)
    return total


@pytest.mark.parametrize("loss", [APO(anchor_size=1), GRPOKL(kl_coef=0.1)], ids=["apo", "kl"])
@pytest.mark.parametrize("advantage", [GroupNormalized(), SignedReward()], ids=["group", "nsr"])
def test_the_expectation_on_a_tree_is_the_sum_over_every_group(loss, advantage):
    generator = seeded(41)
    probs = random_probs(3, 2, generator)
    tree = Tree(ref=random_probs(3, 2, generator), success=dist(1, 0, 0.3, 0))
    exact = expected_force(tree, probs.log(), loss, advantage, 2)
    torch.testing.assert_close(exact, enumerated(tree, probs, loss, advantage, 2), atol=1e-12, rtol=0)


@pytest.mark.parametrize("advantage", ESTIMATORS, ids=str)
def test_the_limit_of_large_groups_is_what_large_groups_tend_to(advantage):
    problem, logits = bandit(dist(0.5, 0.3, 0.2), dist(1, 0, 0.5)), dist(0.2, 0.3, 0.5).log()[None]
    large = expected_force(problem, logits, GRPO(), advantage, 400)
    torch.testing.assert_close(large, expected_force(problem, logits, GRPO(), advantage), atol=3e-3, rtol=0)


@pytest.mark.parametrize("quality", [0.0, 1.0])
def test_where_all_are_right_or_all_wrong_a_group_has_no_force(quality):
    problem = bandit(dist(0.6, 0.4), torch.full((2,), quality, dtype=torch.float64))
    assert not expected_force(problem, torch.zeros(1, 2).double(), APO(anchor_size=2), GroupNormalized()).any()


def test_an_estimator_without_a_written_limit_and_more_anchors_than_tokens_are_refused():
    with pytest.raises(ConfigError, match="PassAtK"):
        expected_force(bandit(dist(0.5, 0.5), dist(1, 0)), torch.zeros(1, 2).double(), GRPO(), PassAtK(k=2))
    with pytest.raises(ConfigError, match="anchor_size is 8 over 3"):
        token_forces(APO(), dist(0.5, 0.3, 0.2).log(), dist(0.5, 0.3, 0.2), 0)


def test_the_other_pulls_have_the_gradients_that_their_names_say():
    probs, ref = dist(0.4, 0.3, 0.2, 0.1), dist(0.5, 0.2, 0.2, 0.1)
    push = token_forces(GridLoss(force="push_only", anchor_size=3), probs.log(), ref, 0)
    # S = {1, 2}: q = (.6, .4), Q* = (.5, .5).
    log_mass = token_forces(GridLoss(weights="log_mass", anchor_size=3), probs.log(), ref, 0) - push
    cross_entropy = token_forces(GridLoss(weights="cross_entropy", anchor_size=3), probs.log(), ref, 0) - push
    torch.testing.assert_close(push, 1.05 * dist(-0.6, 0.3, 0.2, 0.1))
    torch.testing.assert_close(log_mass, 0.1 * (dist(0, 0.6, 0.4, 0) - probs))
    torch.testing.assert_close(cross_entropy, 0.1 * (dist(0, 0.5, 0.5, 0) - probs))


def test_where_the_engine_is_the_policy_importance_changes_no_force():
    probs, ref = dist(0.5, 0.3, 0.2), dist(0.4, 0.4, 0.2)
    for mode in ("token_truncate", "sequence_mask"):
        found = token_forces(GRPO(importance=Importance(mode)), probs.log(), ref, 0, 1.0)
        assert torch.equal(found, token_forces(GRPO(), probs.log(), ref, 0, 1.0))

"""SimKO in real runs: what it reads of the policy is right whoever else reads the head."""

import torch

from running import SIGNAL, train_tiny, weights

SETTINGS = ("algo=simko", "data.max_completion_tokens=12", "optimizer.lr=1e-2", "algo.loss.alpha=0.3")
MONITOR = (
    "+callbacks.monitor._target_=apo_lightning.callbacks.DistributionMonitor",
    "+callbacks.monitor.every_n_steps=1",
)


def test_a_diagnostic_that_reads_the_references_anchors_changes_nothing(tmp_path):
    plain = weights(train_tiny(tmp_path / "plain", *SIGNAL, *SETTINGS))
    watched = weights(train_tiny(tmp_path / "watched", *SIGNAL, *SETTINGS, *MONITOR))
    grpo = weights(train_tiny(tmp_path / "grpo", *SIGNAL, *SETTINGS[1:3], "algo=grpo"))
    assert all(torch.equal(plain[name], watched[name]) for name in plain)
    assert not all(torch.equal(plain[name], grpo[name]) for name in plain)

"""Sampled pass@k is logged and written with its counts by problem."""

import json

import numpy as np
import pytest

from apo_lab.diagnostics import SampledCoverage
from apo_lightning.errors import ConfigError
from apo_lightning.run import train
from composing import composed
from running import read_metrics

RUN = (
    "experiment=lab/divisors",
    "model=tiny",
    "model.prompt_template='{problem}:'",
    "prompts_per_step=4",
    "prompts_per_minibatch=2",
    "data.num_train=64",
    "data.num_validation=16",
    "trainer.max_steps=1",
    "trainer.val_check_interval=1",
    "~callbacks.export",
)


def test_the_logged_values_are_those_of_the_files(tmp_path):
    train(composed(*RUN, "validation_samples=64", "callbacks.sampled.ks=[1,8,64]"), tmp_path)
    points = [json.loads(line) for line in (tmp_path / "sampled" / "metrics.jsonl").read_text().splitlines()]
    assert [point["step"] for point in points] == [0, 1]
    rows = read_metrics(tmp_path)
    for k in (1, 64):
        logged = [float(row[f"val/divisors/sampled/pass@{k}"]) for row in rows if row[f"val/divisors/sampled/pass@{k}"]]
        assert logged == pytest.approx([point[f"pass@{k}"] for point in points])
        own = [float(row[f"val/divisors/pass@{k}"]) for row in rows if row[f"val/divisors/pass@{k}"]]
        assert own == pytest.approx(logged)
    for point in points:
        counts = np.load(tmp_path / "sampled" / f"step_{point['step']:06d}.npz")
        assert counts["num_samples"] == 64
        assert counts["num_correct"].shape == (16,)
        # pass@64 of 64 samples is whether one is right, pass@1 the share that is.
        assert (counts["num_correct"] > 0).mean() == pytest.approx(point["pass@64"])
        assert counts["num_correct"].mean() / 64 == pytest.approx(point["pass@1"])


def test_too_few_samples_for_a_k_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="validation_samples is 8: pass@64 needs as many"):
        train(composed(*RUN, "validation_samples=8"), tmp_path)


def test_the_default_counts_64_samples():
    cfg = composed("experiment=lab/divisors")
    assert cfg.validation_samples == max(cfg.callbacks.sampled.ks) == max(SampledCoverage().ks)

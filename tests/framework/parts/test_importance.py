"""Importance weights in real runs, of an engine whose log-probs are not the trainer's."""

import math
from dataclasses import replace

import pytest
import torch

import apo_lightning.logprobs.statistics
import apo_lightning.losses.policy_loss
from apo_lightning.callbacks.step_callback import StepCallback
from apo_lightning.losses.policy_loss import BOUNDS, Importance
from apo_lightning.parts.importance import ImportanceByLength
from factories import make_setup, make_step
from running import SIGNAL, train_tiny, training_rows, weights, without_clock

# Two mini-batches, and a rate at which the policy moves between them; at this one no token's ratio is near the clip, so
# that rounding decides on none.
SIZES = (*SIGNAL, "algo=grpo", "trainer.max_steps=2", "optimizer.lr=9e-2", "optimizer.eps=1")
SHIFTED = "engine._target_=shifted_engine.ShiftedEngine"
NARROW = {
    "token_truncate": 1.00045,
    "token_mask": [0.99925, 1.00045],
    "sequence_truncate": 1.00045,
    "sequence_mask": 1.00045,
    "sequence_gate": [0.99986, 1.00028],
}
"""Within the ratios of the shifted engine, so that the bounds act on some tokens and not on others; and between the
ones that it can give, at whole units and at eighths of one in a mean, so that rounding decides on none of them."""


QUARTERS = torch.tensor([0.25, 0.5, 0.75]).double()


class Keeping(StepCallback):
    """Keeps the steps."""

    def __init__(self):
        self.steps = []

    def on_step(self, step):
        self.steps.append(step)


def by_hand(mode, ratios):
    """The weights of one completion, with Python's floats."""
    bounds, product = NARROW[mode], math.prod(ratios)
    low, high = bounds if isinstance(bounds, list) else (0, bounds)
    mean = product ** (1 / len(ratios))
    compared = ratios if mode.startswith("token") else [mean if mode == "sequence_gate" else product]
    assert not any(abs(value - bound) < 3e-6 for value in compared for bound in (low, high)), "rounding would decide"
    return {
        "token_truncate": [min(ratio, high) for ratio in ratios],
        "token_mask": [ratio if low <= ratio <= high else 0 for ratio in ratios],
        "sequence_truncate": [min(product, high)] * len(ratios),
        "sequence_mask": [product if product <= high else 0] * len(ratios),
        "sequence_gate": [ratio if low <= mean <= high else 0 for ratio in ratios],
    }[mode]


@pytest.mark.parametrize("mode", BOUNDS)
def test_tokens_have_the_weights_of_their_whole_completion(tmp_path, monkeypatch, mode):
    # Chunks of three tokens: the head's logits of a completion do not stand in memory together.
    monkeypatch.setattr(apo_lightning.logprobs.statistics, "slices", in_threes)
    correction = (f"importance={mode}", f"importance_bounds={NARROW[mode]}")
    module = train_tiny(tmp_path, *SIZES, SHIFTED, *correction, f"+callbacks.keeping._target_={__name__}.Keeping")
    (keeping,) = [callback for callback in module.trainer.callbacks if isinstance(callback, Keeping)]
    for step, row in zip(keeping.steps, training_rows(tmp_path), strict=True):
        tokens, found = step.tokens, step.loss_metrics["importance_weight"]
        ran = ~found.isnan()
        log_ratios = tokens.old_logprobs.double() - tokens.rollout_logprobs.double()
        lengths = step.rollouts.lengths.flatten().tolist()
        expected = [by_hand(mode, part.exp().tolist()) for part in log_ratios.split(lengths)]
        expected = torch.tensor([weight for part in expected for weight in part])[ran]
        torch.testing.assert_close(found[ran], expected, rtol=2e-6, atol=0)
        outside = step.loss_metrics["importance_outside_fraction"]
        assert 0 < outside[ran].mean() < 1
        means = {"weight": expected, "outside_fraction": outside[ran]}
        limits = [-math.inf, *torch.tensor(lengths).double().quantile(QUARTERS).tolist(), math.inf]
        for n in range(1, 5):
            is_here = torch.tensor([limits[n - 1] < length <= limits[n] for length in lengths])[tokens.sequence_ids]
            means[f"outside_fraction_q{n}"] = outside[is_here & ran]
        for name, values in means.items():
            mean = pytest.approx(float(values.mean()), rel=1e-6, nan_ok=True)
            assert float(row[f"train/importance_{name}"]) == mean, name


def test_what_is_outside_is_reported_by_quartile_of_the_lengths():
    step = make_step(["correct"] * 4, lengths=[4, 1, 3, 2])
    outside = torch.tensor([1.0, 1, 0, 0, torch.nan, 0, 1, 0, 1, 1])
    step = replace(step, loss_metrics={"importance_outside_fraction": outside})
    found = ImportanceByLength().metrics(make_setup(), step)
    assert list(found.values()) == [pytest.approx(mean, nan_ok=True) for mean in (torch.nan, 1, 1 / 3, 1 / 2)]
    assert list(found) == [f"train/importance_outside_fraction_q{n}" for n in (1, 2, 3, 4)]


def in_threes(length, size):
    return (slice(start, min(start + 3, length)) for start in range(0, length, 3))


@pytest.mark.parametrize("mode", ["token_mask", "sequence_mask"])
def test_micro_batches_do_not_change_the_training(tmp_path, mode):
    options = (*SIZES, SHIFTED, f"importance={mode}", f"importance_bounds={NARROW[mode]}")
    whole, split, none = (
        weights(train_tiny(tmp_path / f"{number}", *options, *more))
        for number, more in enumerate(
            [
                ("tokens_per_microbatch=4096",),
                ("tokens_per_microbatch=64",),
                ("importance=null", "importance_bounds=null"),
            ]
        )
    )
    for name, values in whole.items():
        torch.testing.assert_close(split[name], values, rtol=0, atol=2e-7)
    assert any(float((none[name] - values).abs().max()) > 1e-5 for name, values in whole.items())


@pytest.mark.parametrize("mode", BOUNDS)
def test_where_every_ratio_is_one_the_run_is_bitwise_that_without_a_correction(tmp_path, monkeypatch, mode):
    plain = weights(train_tiny(tmp_path / "plain", *SIZES))

    original = Importance.weights

    def of_an_exact_engine(self, old_logprobs, rollout_logprobs, sequence_ids):
        assert bool(old_logprobs.isfinite().all())
        return original(self, old_logprobs, old_logprobs, sequence_ids)

    monkeypatch.setattr(Importance, "weights", of_an_exact_engine)
    corrected = weights(train_tiny(tmp_path / mode, *SIZES, f"importance={mode}"))
    assert all(torch.equal(corrected[name], values) for name, values in plain.items())
    for one, two in zip(training_rows(tmp_path / "plain"), training_rows(tmp_path / mode), strict=True):
        assert float(one["train/grad_norm"]) > 1e-3
        same = {key: value for key, value in without_clock(two).items() if "importance" not in key}
        assert same == without_clock(one)
        assert (two["train/importance_weight"], two["train/importance_outside_fraction"]) == ("1.0", "0.0")

"""Two processes make the run that one makes, up to the order of summation."""

import json

import pytest

from composing import composed
from running import RUN, SIGNAL, on_one_and_two_ranks, read_metrics, train_on_two_ranks, training_rows

pytestmark = pytest.mark.slow(60)

SIZES = ("group_size=8", "data.num_validation=8", "optimizer.lr=1e-3")
# A mini-batch is several micro-batches on each rank, whose gradients are added up before ranks meet.
PARTS = ("tokens_per_microbatch=256",)


# Some completions of this engine have a product of ratios above 1.00045, others do not; none is near it.
SHIFTED = "engine._target_=shifted_engine.ShiftedEngine"
MASK = ("importance=sequence_mask", "importance_bounds=1.00045")


def completions(folder):
    """What was sampled in each step, whichever rank wrote it first."""
    paths = sorted((folder / "rollouts").glob("*.jsonl"))
    return {
        path.name: sorted((row["problem"], row["completion"], row["reward"]) for row in map(json.loads, path.open()))
        for path in paths
    }


def held_out_rows(folder):
    """What each validation pass found."""
    rows = [{name: row[name] for name in row if name.startswith("val/")} for row in read_metrics(folder)]
    return [row for row in rows if any(row.values())]


DIAGNOSTICS = {
    "squeezing_monitor": "SqueezingMonitor",
    "collapse_alarm": "CollapseAlarm",
    "reachability": "Reachability",
}
WATCHED = (
    *(f"+callbacks.{name}._target_=apo_methods.diagnostics.{kind}" for name, kind in DIAGNOSTICS.items()),
    # One completion of either kind: one of the two ranks has none of it to run.
    *("+callbacks.squeezing_monitor.num_completions=1", "+callbacks.squeezing_monitor.every_n_steps=2"),
    # Not at the first step: there the reference is to run first on what the update must get a gradient for.
    "+callbacks.reachability.every_n_steps=2",
)


# Sharded, the reference of a policy with adapters runs first on what the update must get a gradient for.
@pytest.mark.parametrize(
    "options",
    [
        ("policy=full", *WATCHED, "trainer.max_steps=3"),
        ("policy=lora", *WATCHED, "trainer.max_steps=2"),
        ("reference.ema_tau=0.9", "averaging.weight=0.3", "trainer.max_steps=3"),
        # Without moments Adam's step is g/(|g| + ε): ε above rounding, or elements of g = 0 would move by its sign.
        # They are many where moments are reset, and where most sequences are masked.
        ("reference.reset_every=1", "optimizer.eps=1.0e-5", "trainer.max_steps=2"),
        (SHIFTED, *MASK, "optimizer.eps=1.0e-5", "trainer.max_steps=2"),
    ],
    ids=["full", "lora", "averages", "resets", "importance"],
)
def test_ddp_and_fsdp_on_two_processes_sample_and_log_what_one_process_does(options, tmp_path):
    # The engine is transformers': vLLM knows nothing of how gradients meet, and test_two_ranks.py has it sample there.
    trainers = ("ddp_cpu2", "fsdp_cpu2")
    alone, *others = on_one_and_two_ranks(tmp_path, trainers, *SIZES, *PARTS, "callbacks=rollout_writer", *options)
    assert len(completions(tmp_path / "cpu")) == len(alone)
    passes = held_out_rows(tmp_path / "cpu")
    assert len(passes) == 2
    for trainer, together in zip(trainers, others, strict=True):
        assert completions(tmp_path / trainer) == completions(tmp_path / "cpu")
        assert held_out_rows(tmp_path / trainer)[0] == passes[0]  # before an update has rounded its sums otherwise
        for one, two in zip(alone, together, strict=True):
            named = [name for name in one if name.startswith(("train/", "apo/"))]
            assert {"train/loss", "train/grad_norm", "train/entropy", "apo/anchor_ratio"} <= set(named)
            if SHIFTED in options:
                assert 0 < float(one["train/importance_outside_fraction"]) < 1
            for name in named:
                expected = pytest.approx(float(one[name] or "nan"), rel=1e-6, abs=1e-6, nan_ok=True)
                assert float(two[name] or "nan") == expected, name
            for name in (name for name in one if name.startswith(("squeeze/", "alarm/", "reach/"))):
                # Shares are of differences between two float32 passes.
                expected = pytest.approx(float(one[name] or "nan"), rel=0.02, abs=0.02, nan_ok=True)
                assert float(two[name] or "nan") == expected, name


def test_what_cannot_be_judged_is_weighed_over_all_ranks(tmp_path):
    """One of 52 completions of the second rank, above 1 % of its own, is one of 104 and below 1 % of all."""
    reward = "reward.function._target_=rewarding.failing_once_on_the_second_rank"
    sizes = ("prompts_per_step=26", "prompts_per_minibatch=26", "group_size=4", "data.num_validation=104")
    common = ("trainer=ddp_cpu2", "trainer.max_steps=1")
    train_on_two_ranks((composed(*RUN, *SIGNAL, *common, *sizes, reward), tmp_path))
    [row] = training_rows(tmp_path)
    assert float(row["reward/num_error"]) == 1
    assert [float(one["val/arithmetic/num_error"]) for one in held_out_rows(tmp_path)] == [1, 1]

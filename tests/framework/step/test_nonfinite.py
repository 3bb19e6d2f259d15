"""Rewards and losses that are no numbers, in real runs."""

import math
import os
from dataclasses import replace

import lightning.pytorch as pl
import pytest

from apo_lightning.errors import NonfiniteError
from apo_lightning.losses import GRPO
from apo_lightning.rewards import CallableReward
from processes import start_script
from running import RUN, SIGNAL, train_tiny, training_rows

SETTINGS = (*SIGNAL, "algo=grpo", "data.num_validation=2", "prompts_per_step=2", "prompts_per_minibatch=1")


class NanReward(CallableReward):
    """Somebody's own reward, which divides 0 by 0 once a group."""

    def score_samples(self, samples):
        verdicts = super().score_samples(samples)
        if len(verdicts) == 3:  # the trial before the run
            return verdicts
        return [verdict if i % 4 else replace(verdict, reward=math.nan) for i, verdict in enumerate(verdicts)]


class HiddenNanLoss(GRPO):
    """A NaN that has no gradient, the first time that an update asks a rank; before a run the loss is tried thrice."""

    def __call__(self, inputs):
        output = super().__call__(inputs)
        calls.append(1)
        if len(calls) != 4 or os.environ.get("LOCAL_RANK", "0") != os.environ.get("RANK_OF_NAN", "0"):
            return output
        return replace(output, per_token=output.per_token + inputs.logprobs.detach() * math.nan)


calls: list[int] = []


class BreakPolicy(pl.Callback):
    """The policy turns into NaN after the engine has got its weights."""

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        for parameter in pl_module.parameters():
            parameter.data.fill_(math.nan)


class BreakOneWeight(pl.Callback):
    """One weight turns into NaN after an update, and no loss of the step shows it."""

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if batch_idx == 1:
            next(pl_module.parameters()).data.view(-1)[0] = math.nan


def test_weights_that_are_no_numbers_do_not_replace_the_last_good_checkpoint(tmp_path):
    own = ("trainer.max_steps=3", "checkpoint.save_every=1", f"+callbacks.broken._target_={__name__}.BreakOneWeight")
    with pytest.raises(NonfiniteError, match=r"step 2: a weight of the .* resume=auto continues from step_000001$"):
        train_tiny(tmp_path, *SETTINGS, *own)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step_000001"]


def broken(folder, *overrides):
    train_tiny(folder, *SETTINGS, f"+callbacks.broken._target_={__name__}.BreakPolicy", *overrides)


def test_a_reward_that_is_no_number_moves_nothing_and_ends_the_run(tmp_path):
    with pytest.raises(NonfiniteError, match=r"step 2: .* 3 optimizer steps in a row"):
        train_tiny(tmp_path, *SETTINGS, f"reward._target_={__name__}.NanReward")
    (row,) = training_rows(tmp_path)
    assert float(row["train/num_skipped_steps"]) == 2
    # One of four rewards of two groups; the mean is that of the others.
    assert float(row["train/num_nonfinite"]) >= 2
    assert math.isfinite(float(row["train/reward"]))


def test_a_loss_that_is_no_number_skips_its_step_where_the_gradient_does_not_show_it(tmp_path):
    calls.clear()
    module = train_tiny(tmp_path, *SETTINGS, f"algo.loss._target_={__name__}.HiddenNanLoss")
    rows = training_rows(tmp_path)
    assert [float(row["train/num_skipped_steps"]) for row in rows] == [1, 0]
    assert [math.isnan(float(row["train/loss"])) for row in rows] == [True, False]
    assert [float(row["train/num_nonfinite"]) for row in rows] == [0, 0]
    assert module.nonfinite.num_in_a_row == 0


@pytest.mark.parametrize(
    ("signal", "words"), [("even_start", "1 optimizer steps in a row"), ("never", "the policy's log-probs are NaN")]
)
def test_a_policy_that_says_nan_of_everything_is_not_taken_for_a_stale_engine(tmp_path, signal, words):
    with pytest.raises(NonfiniteError, match=words):
        broken(tmp_path, f"reward.function._target_=rewarding.{signal}", "max_nonfinite_steps=1")


def test_nan_tokens_are_counted_where_they_were_scored_and_spoil_means_over_all(tmp_path):
    own = ("trainer.max_steps=1", "trainer.val_check_interval=null", "data.num_validation=0")
    with pytest.raises(NonfiniteError, match=r"not finite in any of the 2 optimizer steps"):
        broken(tmp_path, *own, "checkpoint.save_every=null")  # such weights are not saved
    (row,) = training_rows(tmp_path)
    assert float(row["train/num_skipped_steps"]) == 2
    # Entropy and max-prob of each token, all of which the update ran.
    assert float(row["train/skipped_fraction"]) == 0
    assert float(row["train/num_nonfinite"]) == 2 * 8 * float(row["train/completion_tokens"])
    for name in ("train/loss", "train/entropy_updated", "train/grad_norm", "sync/logprob_gap"):
        assert math.isnan(float(row[name])), name
    assert math.isfinite(float(row["train/entropy"]))


@pytest.mark.slow
def test_a_loss_that_is_no_number_on_one_rank_stops_all_of_them(tmp_path):
    overrides = (
        *("trainer=fsdp_cpu2", "prompts_per_minibatch=2", "group_size=8", "max_nonfinite_steps=1"),
        *(f"algo.loss._target_={__name__}.HiddenNanLoss", f"hydra.run.dir={tmp_path}"),
    )
    script = start_script("train.py", *RUN, *SETTINGS, *overrides, num_ranks=2, RANK_OF_NAN="1")
    assert script.wait() == [1, 1], script.said
    (line,) = [line for line in script.said.splitlines() if "error: " in line]
    assert "loss or gradient not finite" in line

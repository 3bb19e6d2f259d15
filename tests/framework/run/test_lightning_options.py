"""What a user of Lightning types works as there, or is one line that names what does the same here."""

import inspect

import lightning.pytorch as pl
import pytest
from omegaconf import OmegaConf

from apo_lightning.errors import ConfigError
from apo_lightning.run import prepare
from apo_lightning.run.lightning_options import GONE, UNFIT, WORKS
from apo_lightning.run.user_message import misspelt, user_message
from composing import CONFIGS, composed
from running import RUN, read_metrics, train_tiny, training_rows

CALLBACK = "+callbacks.own._target_=lightning.pytorch.callbacks."
MONITOR = (f"{CALLBACK}EarlyStopping", "trainer.val_check_interval=1")


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (("+trainer.accumulate_grad_batches=2",), "prompts_per_minibatch"),
        (("+trainer.gradient_clip_val=0.5",), "gradient_clip_norm"),
        (("trainer.precision=bf16-mixed",), "model.compute_dtype=bfloat16"),
        (("+trainer.fast_dev_run=true",), "trainer.max_steps=1"),
        (("+trainer.overfit_batches=1",), "as few problems as a step"),
        (("+ckpt_path=last.ckpt",), "resume=auto"),
        (("+trainer.ckpt_path=last.ckpt",), "resume=auto"),
        (("+trainer.max_epochs=3",), "trainer.max_steps"),
        (("+trainer.limit_train_batches=0.5",), "whole number of rollouts"),
        (("trainer.num_sanity_val_steps=2",), "validated before step 1"),
        (("trainer.check_val_every_n_epoch=2",), "trainer.val_check_interval"),
        (("trainer.enable_checkpointing=true",), "checkpoint.save_every"),
        (("+trainer.logger=true",), "logger=wandb"),
        (("+trainer.default_root_dir=here",), "hydra.run.dir"),
        ((f"{CALLBACK}ModelCheckpoint",), "ModelCheckpoint cannot work in a run: give checkpoint.save_every"),
        ((f"{CALLBACK}OnExceptionCheckpoint", "+callbacks.own.dirpath=x"), "checkpoint.save_every"),
        ((f"{CALLBACK}StochasticWeightAveraging", "+callbacks.own.swa_lrs=0.1"), "averaging.weight"),
        ((f"{CALLBACK}EMAWeightAveraging",), "averaging.weight"),
        ((f"{CALLBACK}BackboneFinetuning",), "policy=lora"),
        ((f"{CALLBACK}Timer", "+callbacks.own.interval=epoch"), "a run is one epoch"),
        ((*MONITOR, "+callbacks.own.monitor=val_loss"), "choose train/reward, val/arithmetic/pass@1"),
        ((*MONITOR, "+callbacks.own.monitor=val/gsm8k/pass@1"), "choose train/reward, val/arithmetic/pass@1"),
        ((*MONITOR, "+callbacks.own.monitor=train/reward", "data.num_validation=0"), "held-out problems"),
        ((*MONITOR, "+callbacks.own.monitor=train/reward", "trainer.val_check_interval=2"), "val_check_interval below"),
    ],
)
def test_what_the_loop_does_not_follow_is_one_line_with_the_remedy(overrides, words):
    with pytest.raises(ConfigError) as caught:
        prepare(composed(*RUN, *overrides))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("trainer.limit_train_batches=2", "write +trainer.limit_train_batches"),
        ("trainer.gradient_clip_val=1", "give gradient_clip_norm"),
        ("ckpt_path=last.ckpt", "resume=auto"),
        ("callbacks.own._target_=my.Callback", "write +callbacks.own._target_"),
        ("trainer.max_step=3", "the nearest is trainer.max_steps"),
    ],
)
def test_a_key_of_lightnings_without_the_plus_is_answered_before_torch_is_imported(override, words):
    with pytest.raises(Exception) as caught:  # noqa: PT011 - Hydra's
        composed(override)
    assert words in str(misspelt(caught.value, "train", [override]))


def test_each_argument_of_the_trainer_is_ours_works_or_is_answered():
    ours = set(OmegaConf.load(CONFIGS / "trainer" / "default.yaml")) - {"_target_"}
    assert {*ours, *WORKS, *UNFIT} - {*GONE} == set(inspect.signature(pl.Trainer).parameters)
    assert set(WORKS).isdisjoint({*UNFIT, *ours})


def test_callbacks_logger_and_profiler_of_lightnings_see_the_run_and_one_ends_it(tmp_path, capsys):
    watching = ("+callbacks.rate._target_=lightning.pytorch.callbacks.LearningRateMonitor", "+trainer.profiler=simple")
    logger = ("+logger.mine._target_=lightning.pytorch.loggers.CSVLogger", f"+logger.mine.save_dir={tmp_path}/csv")
    timer = ("+callbacks.timer._target_=lightning.pytorch.callbacks.Timer", "+callbacks.timer.duration={hours: 1}")
    bar = "+callbacks.bar._target_=lightning.pytorch.callbacks.TQDMProgressBar"
    stop = (*MONITOR, "+callbacks.own.monitor=val/arithmetic/pass@1", "+callbacks.own.patience=1")
    module = train_tiny(tmp_path, *stop, *watching, *logger, *timer, bar, "trainer.max_steps=4")
    assert module.global_step == 2  # a random model gets no sum right, before or after a step
    assert "ended at step 2 of 4: Monitored metric val/arithmetic/pass@1 did not improve" in capsys.readouterr().out
    assert {row["step"] for row in read_metrics(tmp_path) if row["lr-AdamW"]} == {"0", "1"}
    assert "run_training_batch" in (tmp_path / "fit-profile.txt").read_text()
    assert len((tmp_path / "csv/lightning_logs/version_0/metrics.csv").read_text().splitlines()) > 4
    assert (tmp_path / "checkpoints" / "step_000002").is_dir()


def test_a_limit_ends_the_run_with_validation_and_a_checkpoint_from_which_it_goes_on(tmp_path):
    rates = ("+callbacks.rate._target_=lightning.pytorch.callbacks.LearningRateMonitor", "trainer.max_steps=3")
    train_tiny(tmp_path, *rates, "+callbacks.rate.logging_interval=step", "+trainer.limit_train_batches=2")
    assert [row["step"] for row in training_rows(tmp_path)] == ["1", "2"]
    assert [row["step"] for row in read_metrics(tmp_path) if row["val/arithmetic/pass@1"]] == ["0", "2"]
    train_tiny(tmp_path, *rates, "+callbacks.rate.logging_interval=step", "resume=auto")
    assert [row["step"] for row in training_rows(tmp_path)] == ["1", "2", "3"]
    assert [row["step"] for row in read_metrics(tmp_path) if row["lr-AdamW"]] == ["0", "1", "2"]


def test_a_logger_that_is_not_installed_is_one_line(tmp_path):
    with pytest.raises(Exception) as caught:  # noqa: PT011 - Hydra wraps what a constructor raises
        train_tiny(tmp_path, "+logger.mine._target_=lightning.pytorch.loggers.MLFlowLogger")
    assert str(user_message(caught.value)).startswith("logger.mine: Requirement 'mlflow")

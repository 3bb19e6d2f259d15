"""What of Lightning's `Trainer` and callbacks works in a run, and what to give in place of what a run does not follow.

A run is one epoch over endless data, whose loop samples, steps the optimizer and saves by itself. Lightning would
ignore an option that assumes another loop, or fail in the middle of the run. No torch here: a wrong override is
answered at once.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from apo_lightning.errors import ConfigError

WORKS = (
    "benchmark", "detect_anomaly", "deterministic", "enable_autolog_hparams", "limit_train_batches",
    "limit_val_batches", "max_time", "min_steps", "model_registry", "plugins", "profiler", "sync_batchnorm",
)  # fmt: skip
"""Arguments of `Trainer` that do what Lightning says, besides the keys of `configs/trainer/default.yaml`."""
CUTS = ("top_p", "top_k", "min_p")
GONE = ("ckpt_path", "resume_from_checkpoint", *CUTS)
"""No arguments of `Trainer`, and typed with it or without."""
_SAVING = "give checkpoint.save_every, checkpoint.keep or checkpoint.best; apo export writes a model folder"
_GRADIENT = "give prompts_per_minibatch, the prompts of an optimizer step; tokens_per_microbatch divides its gradient"
_WEIGHTS = "it changes the policy without its engine: give averaging.weight, or average snapshots of the run"
_ONE_EPOCH = "a run is one epoch over endless data"
# Of a cut distribution, π_old/π_rollout and the loss's ratio would mix two.
_WHOLE = (
    "training samples without truncation, since the loss reads probabilities of the whole distribution; leave it out "
    "(apo evaluate takes top_p)"
)
UNFIT: Mapping[str, tuple[str, tuple[Any, ...]]] = {
    **dict.fromkeys(GONE, ("give resume=auto, or resume= the folder of a run or of a checkpoint", (None,))),
    **dict.fromkeys(CUTS, (_WHOLE, ())),
    "accumulate_grad_batches": (_GRADIENT, (None, 1)),
    "barebones": ("choose callbacks=none", (False,)),
    "callbacks": ("give +callbacks.mine._target_=my_module.Mine", ()),
    "check_val_every_n_epoch": (f"{_ONE_EPOCH}; give trainer.val_check_interval [rollouts]", (None, 1)),
    "default_root_dir": ("give hydra.run.dir", ()),
    "enable_checkpointing": (_SAVING, (None, False)),
    "fast_dev_run": ("give trainer.max_steps=1; apo preflight checks a run without a step", (False, 0)),
    "gradient_clip_algorithm": ("the L2 norm is clipped: give gradient_clip_norm", (None, "norm")),
    "gradient_clip_val": ("give gradient_clip_norm, an L2 norm, or null", (None,)),
    "inference_mode": ("the engine that validates samples in training too: leave it out", (False,)),
    "limit_predict_batches": ("apo evaluate samples from a trained policy", (None,)),
    "limit_test_batches": ("apo evaluate tests a trained policy", (None,)),
    "logger": ("choose logger=wandb or tensorboard, or give +logger.mine._target_=my_module.Mine", ()),
    "max_epochs": (f"{_ONE_EPOCH}; give trainer.max_steps [rollouts]", (None, -1)),
    "min_epochs": (f"{_ONE_EPOCH}; give trainer.min_steps [rollouts]", (None, 0)),
    "num_sanity_val_steps": ("the policy is validated before step 1 anyway", (None, 0)),
    "overfit_batches": ("give data with as few problems as a step has prompts (data.path, or data.max_operand)", (0,)),
    "precision": ("weights are float32; give model.compute_dtype=bfloat16 for products", (None, "32-true", "32", 32)),
    "reload_dataloaders_every_n_epochs": (f"{_ONE_EPOCH}: leave it out", (0,)),
    "use_distributed_sampler": ("ranks share the prompts of a step already: leave it out", (False,)),
}
"""Other arguments, by name: what to give in their place, and the values that ask for nothing."""
CALLBACKS: Mapping[str, str] = {
    "Checkpoint": _SAVING,
    **dict.fromkeys(("ModelPruning", "StochasticWeightAveraging", "WeightAveraging"), _WEIGHTS),
    "BaseFinetuning": "parameters are frozen by the model: choose policy=lora",
    "BatchSizeFinder": "memory depends on tokens_per_microbatch alone: apo preflight says what fits",
    "LearningRateFinder": "it follows a loss that falls: give a sweep, apo train -m optimizer.lr=1e-6,3e-6,1e-5",
    "GradientAccumulationScheduler": _GRADIENT,
    "SpikeDetection": "it follows a loss that falls: max_nonfinite_steps ends a run whose loss is NaN or inf",
    "ThroughputMonitor": "every run logs perf/tokens_per_second, perf/mfu and time/…",
}
"""Callbacks of Lightning that cannot work, by the name of their class or of a base of it, and what to do instead."""


def check_trainer(trainer: Mapping[str, Any], others: Mapping[str, Any]) -> None:
    """Raise `ConfigError` for an argument of `Trainer` that would have no effect or break the run."""
    typed = {f"trainer.{name}": value for name, value in trainer.items()}
    for key, value in {**typed, **{name: others[name] for name in GONE if name in others}}.items():
        remedy, harmless = UNFIT.get(key.removeprefix("trainer."), ("", (value,)))
        if value not in harmless:
            raise ConfigError(f"{key} is {value}: {remedy}")
    if trainer["max_steps"] < 1:
        raise ConfigError(f"trainer.max_steps is {trainer['max_steps']}: give the rollouts to train, 1 or more")
    interval = trainer.get("val_check_interval")
    if interval is not None and (not isinstance(interval, int) or interval < 1):
        raise ConfigError(
            f"trainer.val_check_interval is {interval}: give the rollouts between two validation passes, a whole "
            "number from 1"
        )
    batches = trainer.get("limit_train_batches")
    if batches is not None and batches != 1.0 and (not isinstance(batches, int) or batches < 1):
        raise ConfigError(f"trainer.limit_train_batches is {batches}: give a whole number of rollouts, from 1")


def check_callback(name: str, callback: Any, node: Mapping[str, Any]) -> None:
    """Raise `ConfigError` for a callback, `callbacks.{name}`, that cannot work, made of the configuration `node`."""
    kinds = {kind.__name__: kind.__module__ for kind in type(callback).__mro__}
    own = type(callback).__name__
    if any(module.startswith("pytorch_lightning.") for module in kinds.values()):
        raise ConfigError(f"callbacks.{name}: {own} is of pytorch_lightning; name it lightning.pytorch.callbacks.{own}")
    found = [kind for kind, module in kinds.items() if kind in CALLBACKS and module.startswith("lightning.")]
    if found:
        raise ConfigError(f"callbacks.{name}: {own} cannot work in a run: {CALLBACKS[found[0]]}")
    for key, value in (("interval", "epoch"), ("logging_interval", "epoch"), ("check_on_train_epoch_end", True)):
        if type(callback).__module__.startswith("lightning.") and node.get(key) == value:
            raise ConfigError(f"callbacks.{name}.{key} is {value}: {_ONE_EPOCH}, so it would act at the end alone")


def check_monitors(callbacks: Iterable[Any], trainer: Mapping[str, Any], validation_names: Sequence[str]) -> None:
    """Raise `ConfigError` for an `EarlyStopping` that would never look, or at a number that no run logs."""
    for callback in callbacks:
        if "EarlyStopping" not in {kind.__name__ for kind in type(callback).__mro__}:
            continue
        said, interval = f"EarlyStopping(monitor={callback.monitor})", trainer.get("val_check_interval")
        if not validation_names or interval is None or interval >= trainer["max_steps"]:
            raise ConfigError(
                f"{said} looks after each validation pass, and there is none before the end: give "
                "trainer.val_check_interval below trainer.max_steps, and held-out problems (data.num_validation)"
            )
        group, _, metric = callback.monitor.rpartition("/")
        held_out = [f"val/{name}" for name in validation_names]
        if not (group and metric) or (group.startswith("val") and group not in held_out):
            choices = ", ".join(f"{each}/pass@1" for each in held_out)
            raise ConfigError(f"{said}: no run logs that; choose train/reward, {choices} (docs/metrics.md)")


def added(key: str) -> str | None:
    """What to type for a key that our configuration does not have, and Lightning has; None: it has none either."""
    group, _, name = key.rpartition(".")
    if group == "trainer" and name in WORKS:
        return f"{key} is Lightning's own: write +{key}=…"
    if name in UNFIT and (group == "trainer" or key in GONE):
        return f"a run does not follow {key}: {UNFIT[name][0]}"
    is_new = name == "_target_" and group.startswith(("callbacks.", "logger."))
    return f"there is no {group}: to add it, write +{key}=…" if is_new else None

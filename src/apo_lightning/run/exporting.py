"""`apo export`: a training checkpoint, of any number of ranks, → a Hugging Face folder."""

import shutil
from pathlib import Path

import torch
from omegaconf import DictConfig
from transformers import AutoModelForCausalLM

from apo_lightning.checkpoints.contents import load_tensors
from apo_lightning.checkpoints.folder import (
    TENSORS,
    Checkpoint,
    best_of,
    complete_checkpoints,
    damaged_file,
)
from apo_lightning.checkpoints.origin import require_unchanged
from apo_lightning.checkpoints.run_state import policy_tensors
from apo_lightning.common.console import progress_bars_hidden, quiet_libraries, say
from apo_lightning.common.files import publish_folder
from apo_lightning.errors import ConfigError
from apo_lightning.model.average import PARTS, average, weights_of_part
from apo_lightning.model.policy import Policy
from apo_lightning.model.spec import WEIGHTS
from apo_lightning.parts.averaging import base_weights
from apo_lightning.run.settings import check_values
from apo_lightning.run.trained import TrainedRun

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def export(cfg: DictConfig) -> Path:
    """Load a checkpoint into the run's model, write the model, and return its folder; raises `ConfigError`.

    With w = `average_with_base` above 0 the weights of `average_part` are (1 − w)·θ + w·θ_base, of the checkpoint and
    the model before training.

    Source: Wortsman et al. 2022, "Robust fine-tuning of zero-shot models" (arXiv 2109.01903), Eq. 1.
    """
    check_values(cfg, {"average_with_base": float})
    if not 0 <= cfg.average_with_base <= 1:
        raise ConfigError(f"average_with_base is {cfg.average_with_base}: give the base's weight, from 0 to 1")
    if cfg.average_part not in PARTS:
        raise ConfigError(f"average_part is {cfg.average_part}: choose {', '.join(PARTS)}")
    if cfg.average_part != "all" and not cfg.average_with_base:
        raise ConfigError(f"average_part is {cfg.average_part}, but average_with_base is 0: give it the base's weight")
    if cfg.dtype not in DTYPES:
        raise ConfigError(f"dtype is {cfg.dtype}: choose {' or '.join(DTYPES)}")
    run = TrainedRun.read(Path(str(cfg.run)))
    checkpoint = _checkpoint(run.folder, cfg.checkpoint)
    if (damaged := damaged_file(checkpoint, checkpoint.header.files)) is not None:
        raise ConfigError(f"checkpoint {checkpoint.folder} is damaged: {damaged} has changed; export another")
    to = Path(cfg.to) if cfg.to is not None else run.folder / "exported" / checkpoint.folder.name
    if to.exists():
        raise ConfigError(f"to={to} exists: remove it, or name another folder")
    quiet_libraries(run.folder / "export.log")
    policy = untrained_policy(run)
    here = dict(run.base_identity())
    if run.recipe.lora is None and not cfg.average_with_base:  # the checkpoint has every weight
        here.pop(WEIGHTS, None)
    require_unchanged(f"checkpoint {checkpoint.folder}", checkpoint.header.identity, here)
    base = base_weights(policy.model) if cfg.average_with_base else {}
    part = weights_of_part(base, cfg.average_part, policy.model.config.num_hidden_layers)
    if base and not part:
        raise ConfigError(f"average_part is {cfg.average_part}, and no trained weight lies there: choose another part")
    load_tensors(policy_tensors(policy), checkpoint.folder / TENSORS)
    average(dict(policy.model.named_parameters()), part, cfg.average_with_base)
    _write(policy, to, cfg.dtype)
    say(f"{checkpoint.folder.name} of {cfg.run} is in {to}")
    return to


def _checkpoint(run: Path, name: str) -> Checkpoint:
    checkpoints, refused = complete_checkpoints(run / "checkpoints")
    for line in refused:
        say(f"skipped: {line}")
    choices = {checkpoint.folder.name: checkpoint for checkpoint in checkpoints}
    best = best_of(checkpoints)
    if checkpoints:
        choices["newest"] = checkpoints[-1]
    if best is not None:
        choices["best"] = best
    if name not in choices:
        has = ", ".join(choices) or "no checkpoint, but perhaps final/"
        raise ConfigError(f"checkpoint={name}: {run} has {has}")
    return choices[name]


def untrained_policy(run: TrainedRun) -> Policy:
    """The run's policy as it was before training, with its adapters if it has any."""
    recipe = run.recipe
    with progress_bars_hidden():
        model = recipe.adapted(recipe.model.load_model(run.seed))
    return Policy(model, recipe.tokenizer, model.dtype, recipe.model.stop_tokens)


def _write(policy: Policy, to: Path, dtype: str) -> None:
    """Write a policy as a Hugging Face folder, adapters merged; it has its name once it is complete."""
    partial = to.with_name(f".{to.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    policy.save_pretrained(partial)
    if dtype != "float32":
        with progress_bars_hidden():
            model = AutoModelForCausalLM.from_pretrained(partial, dtype=DTYPES[dtype])
            for file in partial.glob("*.safetensors*"):
                file.unlink()  # the mapping of a loaded file stays valid; there may be fewer shards
            model.save_pretrained(partial)
    publish_folder(partial, to)

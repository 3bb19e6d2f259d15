"""`apo pretrain`: the base model of a puzzle, trained unless it exists."""

import json
import shutil
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from apo_lab.diagnostics.exact_coverage import ExactCoverage
from apo_lab.diagnostics.listed_answers import held_out_prompts
from apo_lab.pretraining.supervised import SupervisedModule, demonstrations
from apo_lab.puzzles.source import PuzzleSource
from apo_lightning.common.console import quiet_libraries, say
from apo_lightning.common.files import publish_folder, to_json, write_atomically
from apo_lightning.errors import ConfigError
from apo_lightning.model.policy import Policy

RECORD = "base.json"
"""File in the model's folder with its configuration and its metrics."""


def pretrain(cfg: DictConfig) -> Path:
    """Train a base model on demonstrations and measure it exactly on the held-out problems.

    Returns the model's folder, which transformers can load, with `base.json`.

    Raises:
        ConfigError: the data is no puzzle.
    """
    source = instantiate(cfg.data)
    if cfg.pretraining.model.compile_layers:
        raise ConfigError("pretraining.model.compile_layers is true: base models are trained eagerly, give false")
    if not isinstance(source, PuzzleSource):
        raise ConfigError(f"data is {cfg.data._target_}: base models need a puzzle, give data=locks or another")
    folder = Path(cfg.output_dir) / source.name
    config = _identity(cfg)
    if (found := read_record(folder)) is not None and found["config"] == config:
        say(f"{folder} exists: {_describe(found['metrics'])}")
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    quiet_libraries(folder.parent / f"{source.name}.log")
    pl.seed_everything(cfg.seed, verbose=False)
    spec = instantiate(cfg.pretraining.model, _convert_="all")
    tokenizer, model = spec.load_tokenizer(), spec.load_model(cfg.seed)
    settings = cfg.pretraining
    module = SupervisedModule(model, instantiate(settings.optimizer), instantiate(settings.scheduler))
    trainer = instantiate(
        cfg.trainer,
        max_steps=settings.num_steps,
        gradient_clip_val=settings.gradient_clip_norm,
        logger=False,
        val_check_interval=None,
    )
    trainer.fit(module, demonstrations(source.puzzle, tokenizer, settings.demonstrations_per_batch, cfg.seed))

    partial = folder.with_name(f"{source.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    policy = Policy(model, tokenizer, torch.float32)
    policy.save_pretrained(partial)
    prompts = held_out_prompts(source, tokenizer, spec.prompt_template)
    metrics = ExactCoverage(source.puzzle).score(policy, prompts, 0, partial / "exact", temperature=1.0)
    write_atomically(partial / RECORD, to_json({"config": config, "metrics": metrics}, indent=1))
    shutil.rmtree(folder, ignore_errors=True)
    publish_folder(partial, folder)
    say(f"{folder} is made: {_describe(metrics)}")
    return folder


def read_record(folder: Path) -> dict[str, Any] | None:
    """The contents of `base.json`; None if there is no base model."""
    path = folder / RECORD
    return json.loads(path.read_text()) if path.is_file() else None


def _identity(cfg: DictConfig) -> dict[str, Any]:
    """The part of the configuration that decides the weights."""
    own = OmegaConf.create({key: cfg[key] for key in ("data", "pretraining", "seed")})
    return json.loads(json.dumps(OmegaConf.to_container(own, resolve=False)))


def _describe(metrics: dict[str, float]) -> str:
    return ", ".join(f"pass@{k} {metrics[f'pass@{k}']:.3f}" for k in (1, 8, 64))

"""Baselines without training: the last policy at higher temperatures, or averaged with the model before training."""

from dataclasses import replace
from pathlib import Path

import torch
from hydra.utils import instantiate
from omegaconf import DictConfig

from apo_lab.diagnostics.exact_coverage import ExactCoverage, held_out_prompts
from apo_lab.reporting.laboratory.baselines import BASE_WEIGHTS, TEMPERATURES, averaged_name, temperature_name
from apo_lightning.model.averaging import average
from apo_lightning.model.policy import Policy


def measure_baselines(cfg: DictConfig, run: Path, folder: Path) -> None:
    """Measure the baselines of a run exactly, each into a folder of its own, as `ExactCoverage` writes it.

    Args:
        cfg: of the run; it names the model before training.
        run: its folder.
        folder: gets the folders.
    """
    source, spec = instantiate(cfg.data), instantiate(cfg.model, _convert_="all")
    tokenizer = spec.load_tokenizer()
    prompts = held_out_prompts(source, tokenizer, spec.prompt_template)
    coverage = ExactCoverage(source.puzzle)
    last_spec = replace(spec, path=str(run / "checkpoints" / "final"))
    variants = [(temperature_name(t), t, 0.0) for t in TEMPERATURES] + [
        (averaged_name(w), 1.0, w) for w in BASE_WEIGHTS
    ]
    for name, temperature, weight in variants:
        base, last = spec.load_model(0), last_spec.load_model(0)
        average(dict(last.named_parameters()), dict(base.named_parameters()), weight)
        policy = Policy(last, tokenizer, torch.float32).eval()
        coverage.score(policy, prompts, 0, folder / name, temperature=temperature)

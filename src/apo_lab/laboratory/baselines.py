"""Baselines without training: the last policy at higher temperatures, or averaged with the model before training."""

from dataclasses import replace
from pathlib import Path

import torch
from hydra.utils import instantiate
from omegaconf import DictConfig
from torch import nn

from apo_lab.diagnostics.exact_coverage import ExactCoverage
from apo_lab.reporting.laboratory.baselines import BASE_WEIGHTS, TEMPERATURES, averaged_name, temperature_name
from apo_lightning.data import PromptDataModule
from apo_lightning.model.policy import Policy


def measure_baselines(cfg: DictConfig, run: Path, folder: Path) -> None:
    """Measure the baselines of a run exactly.

    Args:
        cfg: of the run; it names the model before training.
        run: its folder.
        folder: gets a folder for each baseline, as `ExactCoverage` writes it.
    """
    source, spec = instantiate(cfg.data), instantiate(cfg.model, _convert_="all")
    tokenizer = spec.load_tokenizer()
    data = PromptDataModule(source, tokenizer, prompts_per_step=1, seed=0, prompt_template=spec.prompt_template)
    data.prepare()
    prompts = data.validation_prompts[source.name]
    coverage = ExactCoverage(source.puzzle)
    last_spec = replace(spec, path=str(run / "checkpoints" / "final"))
    variants = [(temperature_name(t), t, 0.0) for t in TEMPERATURES] + [
        (averaged_name(w), 1.0, w) for w in BASE_WEIGHTS
    ]
    for name, temperature, weight in variants:
        base, last = spec.load_model(0), last_spec.load_model(0)
        average(last, base, weight)
        policy = Policy(last, tokenizer, torch.float32).eval()
        coverage.score(policy, prompts, 0, folder / name, temperature=temperature)


@torch.no_grad()
def average(model: nn.Module, base: nn.Module, weight: float) -> None:
    """θ ← (1 − w)·θ + w·θ_base, in place.

    Source: Wortsman et al. 2022, "Robust fine-tuning of zero-shot models", Eq. 1.

    Args:
        model: θ.
        base: θ_base, with the same parameters.
        weight: w in [0, 1].
    """
    others = dict(base.named_parameters())
    for name, parameter in model.named_parameters():
        parameter.lerp_(others[name], weight)

"""The path of averages of a last policy with the base model: exact pass@k at each weight, without training."""

from collections.abc import Sequence
from pathlib import Path

import torch
from hydra.utils import instantiate
from omegaconf import DictConfig

from apo_lab.diagnostics.exact_coverage import ExactCoverage, held_out_prompts
from apo_lightning.common.files import to_json, write_atomically
from apo_lightning.model.policy import Policy
from apo_lightning.parts.averaging import average


def measure_averages(cfg: DictConfig, last: Path, base_weights: Sequence[float], folder: Path) -> None:
    """Measure (1 − w)·θ + w·θ_base for each w, as `ExactCoverage` does, as steps 1, 2, … of `folder`.

    Args:
        cfg: of the run; it names the model before training.
        last: folder of the last policy.
        base_weights: w.
        folder: gets the files, and `base_weights.json`.
    """
    source, spec = instantiate(cfg.data), instantiate(cfg.model, _convert_="all")
    tokenizer = spec.load_tokenizer()
    prompts = held_out_prompts(source, tokenizer, spec.prompt_template)
    coverage = ExactCoverage(source.puzzle, ks=(1, 8, 64))
    base = dict(spec.load_model(0).named_parameters())
    trained = instantiate(cfg.model, path=str(last), _convert_="all").load_model(0).state_dict()
    policy = Policy(spec.load_model(0), tokenizer, torch.float32).eval()
    for place, weight in enumerate(base_weights, start=1):
        policy.model.load_state_dict(trained)
        average(dict(policy.model.named_parameters()), base, weight)
        coverage.score(policy, prompts, place, folder, temperature=cfg.temperature)
    write_atomically(folder / "base_weights.json", to_json([*base_weights]))

"""Rates measured between the steps of a run, for `cost.py`: a shared machine has others an hour later."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import lightning.pytorch as pl

from apo_lightning.preflight.rates import measured_rates

RATES_FILE = "rates.jsonl"
"""A line before each step, and one behind the last."""


class RatesBeside(pl.Callback):
    """Writes `rates.jsonl` into the run's folder; some seconds a step, which no phase of it contains.

    Args:
        sequence_tokens: about as long as the run's sequences are.
    """

    def __init__(self, sequence_tokens: int) -> None:
        self.sequence_tokens = sequence_tokens

    def on_train_start(self, trainer: pl.Trainer, pl_module: Any) -> None:
        # Lines of an earlier run in this folder would be taken for those of the first steps.
        _path(trainer).unlink(missing_ok=True)

    def on_train_batch_start(self, trainer: pl.Trainer, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self._measure(trainer, pl_module)

    def on_train_end(self, trainer: pl.Trainer, pl_module: Any) -> None:
        self._measure(trainer, pl_module)

    def _measure(self, trainer: pl.Trainer, module: Any) -> None:
        config = module.policy.model.config
        num_heads = config.num_attention_heads
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // num_heads
        attended = (num_heads, self.sequence_tokens, head_dim)
        found = measured_rates(module.device, module.policy.compute_dtype, attended=attended)
        with _path(trainer).open("a") as file:
            file.write(json.dumps(asdict(found)) + "\n")


def _path(trainer: pl.Trainer) -> Path:
    return Path(trainer.default_root_dir) / RATES_FILE

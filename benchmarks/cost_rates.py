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

    def on_train_batch_start(self, trainer: pl.Trainer, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self._measure(trainer, pl_module)

    def on_train_end(self, trainer: pl.Trainer, pl_module: Any) -> None:
        self._measure(trainer, pl_module)

    def _measure(self, trainer: pl.Trainer, module: Any) -> None:
        config = module.policy.model.config
        num_heads = config.num_attention_heads
        attended = (num_heads, self.sequence_tokens, config.hidden_size // num_heads)
        found = measured_rates(module.device, module.policy.compute_dtype, attended=attended)
        with (Path(trainer.default_root_dir) / RATES_FILE).open("a") as file:
            file.write(json.dumps(asdict(found)) + "\n")

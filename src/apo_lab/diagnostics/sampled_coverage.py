"""Sampled pass@k of held-out problems at every validation pass."""

from collections.abc import Sequence
from pathlib import Path

import lightning.pytorch as pl
import numpy as np
import torch

from apo_lab.diagnostics.evaluation_points import record_point
from apo_lightning.callbacks import StepCallback
from apo_lightning.errors import ConfigError
from apo_lightning.metrics.functional import pass_at_k_curve
from apo_lightning.types import ValidationOutput
from apo_lightning.update.settings import StepSettings


class SampledCoverage(StepCallback):
    """Keeps how many of the n = `validation_samples` completions of each held-out problem are right.

    Logs the mean over problems of the unbiased `pass_at_k_curve` as `val/<name>/sampled/pass@k`.

    Writes `sampled/step_000010.npz` (`num_correct`, by problem, in the order of the set, and `num_samples`) and
    `sampled/metrics.jsonl` (one line per evaluation point) to the run's folder.

    Raises:
        ConfigError: when the run begins, if `validation_samples` is below the largest k.
    """

    def __init__(self, ks: Sequence[int] = (1, 8, 64)) -> None:
        self.ks = tuple(ks)
        self._folder: Path | None = None

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Check the number of samples. Only the first rank writes."""
        settings = pl_module.settings
        assert isinstance(settings, StepSettings)
        if settings.validation_samples < max(self.ks):
            raise ConfigError(
                f"validation_samples is {settings.validation_samples}: pass@{max(self.ks)} needs as many, raise it or "
                "lower callbacks.sampled.ks"
            )
        self._folder = Path(trainer.default_root_dir) / "sampled" if trainer.is_global_zero else None

    def on_validated(self, output: ValidationOutput) -> dict[str, float]:
        """Count, estimate and write."""
        num_correct, num_samples = output.rollouts.is_correct.sum(1), output.rollouts.group_size
        curve = pass_at_k_curve(torch.full_like(num_correct, num_samples), num_correct, self.ks).mean(0)
        metrics = {f"pass@{k}": value for k, value in zip(self.ks, curve.tolist(), strict=True)}
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
            path = self._folder / f"step_{output.step:06d}.npz"
            np.savez_compressed(path, num_correct=num_correct.int().numpy(), num_samples=num_samples)
            record_point(self._folder / "metrics.jsonl", output.step, metrics)
        return {f"val/{output.name}/sampled/{name}": value for name, value in metrics.items()}

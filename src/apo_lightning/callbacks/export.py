"""The trained model, in the format that everything else reads."""

import shutil
from pathlib import Path
from typing import Any

import lightning.pytorch as pl

from apo_lightning.callbacks.base import StepCallback
from apo_lightning.files import publish_folder


class ExportPolicy(StepCallback):
    """Writes `checkpoints/final/`, a Hugging Face folder, when training ends; not when it is interrupted.

    The folder appears under its name only when it is complete.
    """

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Save on every rank: a sharded policy has to be gathered by all of them."""
        final = Path(trainer.default_root_dir) / "checkpoints" / "final"
        partial = final.with_name(".final.partial")
        if trainer.is_global_zero:
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
        trainer.strategy.barrier("export: folder made")
        policy: Any = pl_module.policy
        policy.save_pretrained(partial)
        trainer.strategy.barrier("export: weights written")
        if trainer.is_global_zero:
            publish_folder(partial, final)

"""Export of the trained policy as a Hugging Face folder."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning.pytorch as pl

from apo_lightning.callbacks.step_callback import StepCallback
from apo_lightning.common.files import publish_folder
from apo_lightning.model.lora import has_adapters, save_adapter


class ExportPolicy(StepCallback):
    """Writes `checkpoints/final/`, a Hugging Face folder, when training ends without interruption.

    With adapters, that is the merged model, and `checkpoints/adapter/` has the adapters alone, as PEFT loads them. A
    folder appears under its name only when it is complete.
    """

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Save on every rank: gathering a sharded policy needs all of them."""
        policy: Any = pl_module.policy
        self._export(trainer, "final", policy.save_pretrained)
        if has_adapters(policy):
            self._export(trainer, "adapter", lambda folder: save_adapter(policy.model, folder))

    def _export(self, trainer: pl.Trainer, name: str, save: Callable[[Path], None]) -> None:
        final = Path(trainer.default_root_dir) / "checkpoints" / name
        partial = final.with_name(f".{name}.partial")
        if trainer.is_global_zero:
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
        trainer.strategy.barrier("export: folder made")
        try:
            save(partial)
        except Exception:
            shutil.rmtree(partial, ignore_errors=True)  # it may be what has filled the disk
            raise
        trainer.strategy.barrier("export: weights written")
        if trainer.is_global_zero:
            publish_folder(partial, final)


def owes_export(trainer: pl.Trainer) -> bool:
    """Whether the export of a finished run is missing, as after one for which there was no room."""
    exports = any(isinstance(callback, ExportPolicy) for callback in trainer.callbacks)  # pyright: ignore[reportAttributeAccessIssue]
    return exports and not (Path(trainer.default_root_dir) / "checkpoints" / "final").is_dir()

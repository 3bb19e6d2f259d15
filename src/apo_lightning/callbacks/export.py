"""Export of the trained policy as a Hugging Face folder."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning.pytorch as pl

from apo_lightning.callbacks.step_callback import StepCallback
from apo_lightning.checkpoints.origin import EXPORTS, read_export, write_origin
from apo_lightning.common.files import publish_folder
from apo_lightning.common.model_card import model_card
from apo_lightning.errors import ConfigError
from apo_lightning.model.lora import has_adapters, save_adapter


class ExportPolicy(StepCallback):
    """Writes `checkpoints/final/`, a Hugging Face folder, when training ends without interruption.

    With adapters, that is the merged model, and `checkpoints/adapter/` has the adapters alone, as PEFT loads them. A
    folder appears under its name only when it is complete, and its `origin.json` says what it was made from.
    """

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Save on every rank: gathering a sharded policy needs all of them."""
        policy: Any = pl_module.policy
        self._export(trainer, pl_module, "final", policy.save_pretrained)
        if has_adapters(policy):
            self._export(trainer, pl_module, "adapter", lambda folder: save_adapter(policy.model, folder))

    def _export(self, trainer: pl.Trainer, module: Any, name: str, save: Callable[[Path], None]) -> None:
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
        sha256, identity = module.weights_sha256, module.checkpointer.identity
        if trainer.is_global_zero:
            if name == EXPORTS[0]:  # PEFT writes that of the adapters
                card = model_card(module.checkpointer.config, step=trainer.global_step, sha256=sha256)
                (partial / "README.md").write_bytes(card)
            write_origin(partial, step=trainer.global_step, weights_sha256=sha256, identity=identity)
            publish_folder(partial, final)


def remove_exports(run: Path) -> None:
    """Remove what an earlier end of a run's training has written, which would pass for that of a longer one."""
    (run / "summary.json").unlink(missing_ok=True)
    for folder in (run / "checkpoints" / name for name in EXPORTS):
        superseded = folder.with_name(f".{folder.name}.superseded")
        shutil.rmtree(superseded, ignore_errors=True)
        if folder.exists():  # renamed first: a half-deleted folder would keep its name
            shutil.rmtree(folder.rename(superseded))


def owes_export(trainer: pl.Trainer, policy: Any) -> bool:
    """Whether an export of a finished run is missing, incomplete or of another step."""
    if not any(isinstance(callback, ExportPolicy) for callback in trainer.callbacks):  # pyright: ignore[reportAttributeAccessIssue]
        return False
    folders = [Path(trainer.default_root_dir) / "checkpoints" / name for name in EXPORTS[: 1 + has_adapters(policy)]]
    try:
        return any(read_export(folder).step != trainer.global_step for folder in folders)
    except ConfigError:
        return True

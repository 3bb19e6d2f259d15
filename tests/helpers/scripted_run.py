"""A real Trainer and a module that takes scripted steps: everything that callbacks touch, and no language model."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import lightning.pytorch as pl
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from apo_lightning.common.phases import PhaseClock
from apo_lightning.module import RLVRModule
from apo_lightning.types import StepOutput, ValidationOutput
from factories import make_prompt, make_step, make_validation

CONFIG = {
    "model": {"name": "tiny", "path": None},
    "algo": {"loss": {"_target_": "apo_lightning.losses.GRPO"}},
    "data": {"name": "p"},
    "seed": 7,
}


class TinyPolicy(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 1)
        nn.init.ones_(self.layer.weight)
        nn.init.zeros_(self.layer.bias)

    def save_pretrained(self, folder: Path):
        (folder / "config.json").write_text("{}")


class ScriptedModule(pl.LightningModule):
    weights_sha256 = RLVRModule.weights_sha256

    def __init__(self, make_step_output, make_validation_output):
        super().__init__()
        self.automatic_optimization = False
        self.policy = TinyPolicy()
        self.checkpointer = SimpleNamespace(identity={"the training data": "5e"}, config=CONFIG)
        self.clock = PhaseClock()
        self.seed = 7
        self.make_step_output: Callable[[int, int], StepOutput] = make_step_output
        self.make_validation_output: Callable[[int], ValidationOutput] = make_validation_output
        self.validation_outputs: list[ValidationOutput] = []

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.5)

    def transfer_batch_to_device(self, batch, device, dataloader_idx):
        return batch

    def training_step(self, batch, batch_idx):
        with self.clock.phase("update"):
            optimizer = self.optimizers()
            optimizer.zero_grad()
            self.manual_backward(self.policy.layer.weight.sum())
            optimizer.step()
        self.clock.take()
        return {"step_output": self.make_step_output(self.global_step, self.trainer.max_steps)}

    def validation_step(self, batch, batch_idx):
        pass

    def on_validation_epoch_end(self):
        self.validation_outputs = [self.make_validation_output(self.global_step)]


@dataclass
class Run:
    trainer: pl.Trainer
    module: ScriptedModule
    folder: Path
    callbacks: Sequence[pl.Callback] = field(default_factory=list)


def two_completions(step: int, max_steps: int) -> StepOutput:
    return make_step(step=step, max_steps=max_steps)


def half_correct(step: int) -> ValidationOutput:
    return make_validation(("correct", "incorrect"), step=step)


@pytest.fixture
def scripted_run(tmp_path):
    """Validate, fit, and validate again where training went on after the last validation pass: as a run does."""

    def run(
        callbacks, max_steps=2, val_check_interval=100, step_output=two_completions, validation_output=half_correct
    ):
        module = ScriptedModule(step_output, validation_output)
        trainer = pl.Trainer(
            accelerator="cpu",
            max_steps=max_steps,
            max_epochs=-1,
            val_check_interval=val_check_interval,
            check_val_every_n_epoch=None,
            num_sanity_val_steps=0,
            log_every_n_steps=1,
            logger=pl.loggers.CSVLogger(tmp_path, name="", version=""),
            enable_progress_bar=False,
            enable_model_summary=False,
            enable_checkpointing=False,
            default_root_dir=str(tmp_path),
            callbacks=list(callbacks),
        )
        train = DataLoader([[make_prompt("p0"), make_prompt("p1")]] * 500, batch_size=None, collate_fn=lambda x: x)
        held_out = DataLoader([[make_prompt("p0")]], batch_size=None, collate_fn=lambda x: x)
        trainer.validate(module, held_out, verbose=False)
        trainer.fit(module, train, held_out)
        if module.validation_outputs[0].step < trainer.global_step:
            trainer.validate(module, held_out, verbose=False)
        return Run(trainer, module, tmp_path, callbacks)

    return run

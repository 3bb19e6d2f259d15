"""Progress of a training run on the terminal."""

import sys
from typing import Any

import lightning.pytorch as pl
from rich.console import Console
from rich.live import Live

from apo_lightning.callbacks.progress_view import RunState, header, held_out_line, panel, step_line
from apo_lightning.callbacks.step_callback import StepCallback
from apo_lightning.types import StepOutput, ValidationOutput

STEPS_PER_HEADER = 20


class ProgressDisplay(StepCallback):
    """A live panel on a terminal; elsewhere (a pipe, a CI log) one aligned line per step.

    The terminal is restored when a stage ends, also after an exception.
    """

    def __init__(self) -> None:
        self._state = RunState()
        self._live: Live | None = None
        self._subscribed_clock: object = None
        self._is_shown = False
        self._num_lines = 0

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Subscribe to the module's clock, once for all stages of a run."""
        self._is_shown = trainer.is_global_zero
        clock: Any = pl_module.clock
        if self._subscribed_clock is not clock:
            clock.subscribe(self._state.enter)
            self._subscribed_clock = clock

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Start the panel at the current step, which is above 0 after a resume."""
        self._state.start_training(trainer.global_step, trainer.max_steps)
        self._open(transient=False)

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Outside of training, show a panel with the current phase until the pass ends."""
        if self._live is None:
            self._open(transient=True)

    def on_step(self, step: StepOutput) -> None:
        """Show a finished training step."""
        self._state.add(step)
        if self._is_shown and self._live is None:
            if self._num_lines % STEPS_PER_HEADER == 0:
                _print_line(header(self._state))
            _print_line(step_line(self._state))
            self._num_lines += 1

    def on_validated(self, output: ValidationOutput) -> None:
        """Print held-out results as lines, unless the panel of a training run shows them."""
        self._state.add_held_out(output)
        if self._live is not None and self._live.transient:
            self._close()
        if self._is_shown and self._live is None:
            _print_line(held_out_line(output))

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Leave the last panel on the screen."""
        self._close()

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Close the display at the end of any stage."""
        self._close()

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """Restore the terminal before the traceback is printed."""
        self._close()

    def _open(self, *, transient: bool) -> None:
        console = Console(highlight=False)
        # The panel needs cursor movement and block characters.
        if not self._is_shown or not console.is_terminal or console.is_dumb_terminal or console.encoding != "utf-8":
            return
        self._close()
        self._live = Live(
            get_renderable=lambda: panel(self._state), console=console, refresh_per_second=4, transient=transient
        )
        self._live.start()

    def _close(self) -> None:
        live, self._live = self._live, None
        if live is not None:
            live.stop()


def _print_line(line: str) -> None:
    # Rich would wrap lines at 80 columns where there is no terminal.
    print(line, file=sys.stdout, flush=True)

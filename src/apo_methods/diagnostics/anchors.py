"""What the diagnostics of anchors share: how many anchors they measure, and when."""

from apo_lightning.callbacks import StepCallback, check_every_n_steps
from apo_lightning.errors import ConfigError
from apo_lightning.losses import PolicyLoss

PAPER_ANCHOR_SIZE = 8
"""The K that is measured under a loss without anchors."""


class AnchorDiagnostic(StepCallback):
    """Measures the reference's K likeliest tokens: K is the setting, else the loss's own, else the paper's.

    Raises:
        ConfigError: `anchor_size`, `every_n_steps` or one of the `counts` of `callbacks.<name>` is below 1.
    """

    def __init__(self, name: str, anchor_size: int | None, every_n_steps: int, **counts: int) -> None:
        for setting, value in {"anchor_size": anchor_size, **counts}.items():
            if value is not None and value < 1:
                raise ConfigError(f"callbacks.{name}.{setting} is {value}: give 1 or more, or ~callbacks.{name}")
        self.every_n_steps = check_every_n_steps(name, every_n_steps)
        self.given_size = anchor_size
        self.prepare(None)

    def prepare(self, loss: PolicyLoss | None) -> None:
        """Choose K."""
        self.anchor_size = self.given_size or (0 if loss is None else loss.support_size) or PAPER_ANCHOR_SIZE

"""Optimizer steps whose loss or gradient is not finite: skipped, counted, and in the end the end of the run."""

import logging
import math

from apo_lightning.distributed.ranks import Ranks
from apo_lightning.errors import NonfiniteError
from apo_lightning.step.plan import Minibatch
from apo_lightning.step.update_record import MinibatchGradient

_logger = logging.getLogger(__name__)


class NonfiniteSteps:
    """Ends a run after `most` non-finite optimizer steps in a row; fewer are skipped."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.num_in_a_row = 0
        """Optimizer steps skipped since the last that was finite; state of the run."""
        self.has_stepped = False

    def check_step(self, gradient: MinibatchGradient, minibatch: Minibatch, step: int, ranks: Ranks) -> float:
        """The gradient norm; NaN where a loss is not finite on any rank, which the gradient need not show. Collective.

        Raises:
            NonfiniteError: there were `most` in a row.
        """
        is_finite = math.isfinite(gradient.norm) and math.isfinite(gradient.loss)
        if not ranks.max(not is_finite):
            # Without a kept token there was no step to be finite.
            self.num_in_a_row = 0 if minibatch.num_tokens else self.num_in_a_row
            self.has_stepped |= minibatch.num_tokens > 0
            return gradient.norm
        self.num_in_a_row += 1
        _logger.warning("step %d: loss or gradient not finite, optimizer step skipped", step)
        if self.num_in_a_row >= self.most:
            raise NonfiniteError(
                f"step {step}: loss or gradient not finite, {self.num_in_a_row} optimizer steps in a row "
                "(max_nonfinite_steps): look for large gradients in train/grad_norm and odd rewards in rollouts/ of "
                "the steps before, and lower optimizer.lr; resume=auto goes on from the newest checkpoint"
            )
        return math.nan

    def check_end(self) -> None:
        """Raise `NonfiniteError` for a run that ends, too short for `most` in a row, with all of its steps skipped."""
        if self.num_in_a_row and not self.has_stepped:
            raise NonfiniteError(
                f"loss or gradient was not finite in any of the {self.num_in_a_row} optimizer steps, so no weight has "
                "changed: look at the rewards in rollouts/"
            )

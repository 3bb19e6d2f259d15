"""Optimizer steps whose loss or gradient is not finite: skipped, counted, and in the end a batch to look at."""

import io
import logging
import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from apo_lightning.common.files import write_atomically
from apo_lightning.common.process_group import process_rank
from apo_lightning.distributed.gathering import from_all_ranks
from apo_lightning.distributed.ranks import Ranks
from apo_lightning.errors import NonfiniteError
from apo_lightning.update.minibatch_update import MinibatchUpdate

_logger = logging.getLogger(__name__)


class NonfiniteSteps:
    """Ends a run whose steps are not finite several times in a row; a single one is skipped.

    Args:
        max_in_a_row: optimizer steps; at that many the run ends.
    """

    def __init__(self, max_in_a_row: int) -> None:
        self.max_in_a_row = max_in_a_row
        self.num_in_a_row = 0
        """Optimizer steps skipped since the last that was finite; state of the run."""

    def check_step(self, grad_norm: float, update: MinibatchUpdate, ranks: Ranks, folder: Path) -> float:
        """The gradient norm; NaN where a loss is not finite on any rank, which the gradient need not show.

        Args:
            grad_norm: over all ranks.
            update: this rank's part of a mini-batch.
            ranks: all call this, and all decide alike.
            folder: where `nonfinite/` goes.

        Raises:
            NonfiniteError: it was the last that is put up with. Its batch is saved.
        """
        step = update.table.rollouts.step
        is_finite = math.isfinite(grad_norm) and update.is_finite and update.table.has_any_logprob
        if not ranks.max(not is_finite):
            # Without a kept token there was no step to be finite.
            self.num_in_a_row = 0 if update.minibatch.num_tokens else self.num_in_a_row
            return grad_norm
        self.num_in_a_row += 1
        _logger.warning("step %d: loss or gradient not finite, optimizer step skipped", step)
        if self.num_in_a_row >= self.max_in_a_row:
            path = folder / "nonfinite" / f"step_{step:06d}.pt"
            _save(path, update, step, grad_norm)
            raise NonfiniteError(
                f"step {step}: loss or gradient not finite, {self.num_in_a_row} optimizer steps in a row "
                f"(max_nonfinite_steps): look for NaN and inf in the rewards, advantages and log-probs of {path}"
            )
        return math.nan


def _save(path: Path, update: MinibatchUpdate, step: int, grad_norm: float) -> None:
    """One file of what all ranks had, for `torch.load(path, weights_only=True)`."""
    parts = from_all_ranks(completion_rows(update))
    if process_rank() == 0:
        content = {
            "step": step,
            "minibatch": update.minibatch.number,
            "grad_norm": grad_norm,
            "completions": [{"rank": rank, **row} for rank, part in enumerate(parts) for row in part],
        }
        file = io.BytesIO()
        torch.save(content, file)
        write_atomically(path, file.getvalue())
    # Where another rank ends first, it ends this one.
    from_all_ranks(None)


def completion_rows(update: MinibatchUpdate) -> list[dict[str, Any]]:
    """What this rank has sampled of a mini-batch, one dict a completion; collective.

    Log-probs and losses are NaN too where `was_run` is False.
    """
    table = update.table
    rollouts = table.rollouts
    columns = {name: table.assignment.tokens.send_back(column).cpu() for name, column in _columns(update).items()}
    keep = table.assignment.completions.send_back(table.keep)
    starts = [0, *rollouts.lengths.flatten().cumsum(0).tolist()]
    size = len(rollouts.completions) // update.settings.minibatches_per_step
    rows = []
    for b in range(update.minibatch.number * size, (update.minibatch.number + 1) * size):
        prompt, completion, verdict = (
            rollouts.prompts[b // rollouts.group_size],
            rollouts.completions[b],
            rollouts.verdicts[b],
        )
        tensors: dict[str, Tensor] = {
            name: column[starts[b] : starts[b + 1]].clone() for name, column in columns.items()
        }
        rows.append(
            {
                "prompt_id": prompt.id,
                "prompt": prompt.text,
                "completion": rollouts.texts[b],
                "prompt_token_ids": torch.tensor(prompt.token_ids),
                "token_ids": torch.tensor(completion.token_ids),
                "reward": float(verdict.reward),
                "status": verdict.status,
                "kept": bool(keep[b]),
            }
            | tensors
        )
    return rows


def _columns(update: MinibatchUpdate) -> dict[str, Tensor]:
    """What the update has found of each token that it ran here."""
    table = update.table
    unknown = torch.full_like(table.rollout_logprobs, math.nan)
    columns = {"logprobs": unknown, "old_logprobs": unknown.clone(), "loss": unknown.clone()}
    was_run = torch.zeros_like(unknown, dtype=torch.bool)
    for losses in update.losses:
        was_run[losses.token_index] = True
        for name, values in (
            ("logprobs", losses.logprobs),
            ("old_logprobs", losses.old_logprobs),
            ("loss", losses.output.per_token),
        ):
            columns[name][losses.token_index] = values.to(unknown.dtype)
    return columns | {
        "was_run": was_run,
        "advantages": table.advantages,
        "rollout_logprobs": table.rollout_logprobs,
    }

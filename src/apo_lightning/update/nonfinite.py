"""Optimizer steps whose loss or gradient is not finite: skipped, counted, and in the end saved for inspection."""

import io
import logging
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from apo_lightning.common.files import write_atomically
from apo_lightning.common.process_group import process_rank
from apo_lightning.distributed.gathering import from_all_ranks
from apo_lightning.distributed.ranks import Ranks
from apo_lightning.errors import NonfiniteError
from apo_lightning.update.minibatch_plan import Minibatch
from apo_lightning.update.settings import StepSettings
from apo_lightning.update.table import StepTable
from apo_lightning.update.update_record import MinibatchGradient, TokenLosses

_logger = logging.getLogger(__name__)


class NonfiniteSteps:
    """Ends a run after `max_nonfinite_steps` non-finite optimizer steps in a row; fewer are skipped.

    Args:
        settings: sizes of a step.
    """

    def __init__(self, settings: StepSettings) -> None:
        self.settings = settings
        self.num_in_a_row = 0
        """Optimizer steps skipped since the last that was finite; state of the run."""

    def check_step(
        self, gradient: MinibatchGradient, minibatch: Minibatch, table: StepTable, ranks: Ranks, folder: str
    ) -> float:
        """The gradient norm; NaN where a loss is not finite on any rank, which the gradient need not show. Collective.

        `gradient` has the losses of this rank's tokens; `folder` is that of the run, where `nonfinite/` goes.

        Raises:
            NonfiniteError: `max_nonfinite_steps` is reached. The batch is saved.
        """
        step = table.rollouts.step
        is_finite = math.isfinite(gradient.norm) and math.isfinite(gradient.loss) and table.has_any_logprob
        if not ranks.max(not is_finite):
            # Without a kept token there was no step to be finite.
            self.num_in_a_row = 0 if minibatch.num_tokens else self.num_in_a_row
            return gradient.norm
        self.num_in_a_row += 1
        _logger.warning("step %d: loss or gradient not finite, optimizer step skipped", step)
        if self.num_in_a_row >= self.settings.max_nonfinite_steps:
            path = Path(folder) / "nonfinite" / f"step_{step:06d}.pt"
            size = len(table.rollouts.completions) // self.settings.minibatches_per_step
            first = minibatch.number * size
            rows = completion_rows(table, gradient.losses, range(first, first + size))
            _save(path, {"step": step, "minibatch": minibatch.number, "grad_norm": gradient.norm}, rows)
            raise NonfiniteError(
                f"step {step}: loss or gradient not finite, {self.num_in_a_row} optimizer steps in a row "
                f"(max_nonfinite_steps): look for NaN and inf in the rewards, advantages and log-probs of {path}"
            )
        return math.nan


def _save(path: Path, header: dict[str, Any], rows: Sequence[dict[str, Any]]) -> None:
    """Write the rows of all ranks into one file for `torch.load(path, weights_only=True)`; collective."""
    parts = from_all_ranks(rows)
    if process_rank() == 0:
        content = header | {"completions": [{"rank": rank, **row} for rank, part in enumerate(parts) for row in part]}
        file = io.BytesIO()
        torch.save(content, file)
        write_atomically(path, file.getvalue())
    # Where another rank ends first, it ends this one.
    from_all_ranks(None)


def completion_rows(
    table: StepTable, losses: Sequence[TokenLosses], completions: Iterable[int]
) -> list[dict[str, Any]]:
    """One dict for each of these completions, which this rank sampled; collective.

    Log-probs and losses are also NaN where `was_run` is False.
    """
    rollouts = table.rollouts
    columns = {name: table.assignment.tokens.send_back(c).cpu() for name, c in _columns(table, losses).items()}
    keep = table.assignment.completions.send_back(table.keep)
    starts = [0, *rollouts.lengths.flatten().cumsum(0).tolist()]
    rows = []
    for b in completions:
        prompt, verdict = rollouts.prompts[b // rollouts.group_size], rollouts.verdicts[b]
        tensors = {name: column[starts[b] : starts[b + 1]].clone() for name, column in columns.items()}
        rows.append(
            {
                "prompt_id": prompt.id,
                "prompt": prompt.text,
                "completion": rollouts.texts[b],
                "prompt_token_ids": torch.tensor(prompt.token_ids),
                "token_ids": torch.tensor(rollouts.completions[b].token_ids),
                "reward": float(verdict.reward),
                "status": verdict.status,
                "kept": bool(keep[b]),
            }
            | tensors
        )
    return rows


def _columns(table: StepTable, losses: Sequence[TokenLosses]) -> dict[str, Tensor]:
    """The numbers of each token of the table; log-probs and losses of those that the update ran."""
    unknown = torch.full_like(table.rollout_logprobs, math.nan)
    columns = {"logprobs": unknown, "old_logprobs": unknown.clone(), "loss": unknown.clone()}
    was_run = torch.zeros_like(unknown, dtype=torch.bool)
    for part in losses:
        was_run[part.token_index] = True
        found = {"logprobs": part.logprobs, "old_logprobs": part.old_logprobs, "loss": part.per_token}
        for name, values in found.items():
            columns[name][part.token_index] = values.to(unknown.dtype)
    return columns | {"was_run": was_run, "advantages": table.advantages, "rollout_logprobs": table.rollout_logprobs}

"""Completions of a step, for reading: as JSON lines, and a few as tables of W&B and TensorBoard."""

import math
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from jaxtyping import Float, Int
from lightning.pytorch.loggers import TensorBoardLogger, WandbLogger
from torch import Tensor

from apo_lightning.callbacks.step_callback import StepCallback, check_every_n_steps
from apo_lightning.common.files import to_json, write_atomically
from apo_lightning.distributed.gathering import from_all_ranks, in_rollout_order
from apo_lightning.types import StepOutput

COLUMNS, NUM_ROWS = ("prompt", "completion", "reward", "advantage", "status"), 8
"""What a logged table of completions shows."""
OF_SCORED = ("mean_entropy", "mean_max_prob", "mean_logprob")


class RolloutWriter(StepCallback):
    """Writes `rollouts/step_000010.jsonl`: one line per completion, in the order of the rollout.

    Lines contain no time and no path, so identical runs write identical bytes.
    """

    def __init__(self, every_n_steps: int = 1) -> None:
        self.every_n_steps = check_every_n_steps("rollout_writer", every_n_steps)
        self._folder: Path | None = None

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Only the first rank writes."""
        self._folder = Path(trainer.default_root_dir) / "rollouts" if trainer.is_global_zero else None

    def on_step(self, step: StepOutput) -> None:
        """Write the file of this step; its bytes do not depend on the number of ranks."""
        lines = in_rollout_order(from_all_ranks(completion_lines(step)), step.rollouts.group_size)
        if self._folder is not None:
            content = b"".join(to_json(line) + b"\n" for line in lines)
            write_atomically(self._folder / f"step_{step.step:06d}.jsonl", content, flushes=False)


class CompletionTable(StepCallback):
    """Shows one completion of each of the first eight prompts of a step; without W&B and TensorBoard it does nothing.

    The files of `RolloutWriter` have all completions.
    """

    def __init__(self, every_n_steps: int = 10) -> None:
        self.every_n_steps = check_every_n_steps("completion_table", every_n_steps)
        self._trainer: pl.Trainer | None = None

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Only the first rank shows completions, those of its own prompts."""
        self._trainer = trainer if trainer.is_global_zero else None

    def on_step(self, step: StepOutput) -> None:
        """Give the loggers the completions of this step."""
        loggers = [] if self._trainer is None else self._trainer.loggers
        lines = completion_lines(step)[:: step.rollouts.group_size][:NUM_ROWS] if loggers else []
        rows = [[line[column] for column in COLUMNS] for line in lines]
        for logger in loggers:
            if isinstance(logger, WandbLogger):
                logger.log_table("completions", columns=list(COLUMNS), data=rows, step=step.step)
            elif isinstance(logger, TensorBoardLogger):
                logger.experiment.add_text("completions", "\n\n".join(map(_as_text, rows)), step.step)


def _as_text(row: list[object]) -> str:
    """A row as a block of code: Markdown would interpret a completion."""
    lines = "\n".join(f"{column}: {value}" for column, value in zip(COLUMNS, row, strict=True))
    return "    " + lines.replace("\n", "\n    ")


def completion_lines(step: StepOutput) -> list[dict[str, Any]]:
    """One dict per completion, keys in the order of the file: question, completion, verdict, training.

    `rewards` is there where several functions give rewards, `extra` where one adds columns.

    `mean_…` are means over the completion's tokens at the policy that sampled them. `scored` says whether the trainer
    ran that policy on the completion: `required` by the update or a diagnostic, `drawn` at random from the others, or
    `no`; in the last case entropy, max-prob and log-prob are null. The surprisal is the engine's and never null. A mean
    over lines with an entropy is biased towards completions that the algorithm selects; the step's is `train/entropy`.
    """
    rollouts, tokens = step.rollouts, step.tokens
    values = {
        "advantage": tokens.advantages,
        "mean_surprisal": -tokens.rollout_logprobs,
        "mean_entropy": tokens.entropy,
        "mean_max_prob": tokens.max_prob,
        "mean_logprob": tokens.old_logprobs,
    }
    num_completions = len(rollouts.completions)
    means = {name: completion_means(value, tokens.sequence_ids, num_completions) for name, value in values.items()}
    keep = step.advantages.keep.flatten().tolist()
    scored = set(tokens.sequence_ids[tokens.is_scored].tolist())
    lines = []
    for index, (completion, verdict) in enumerate(zip(rollouts.completions, rollouts.verdicts, strict=True)):
        prompt = rollouts.prompts[index // rollouts.group_size]
        line = {
            "step": step.step,
            "prompt_id": prompt.id,
            "sample": index % rollouts.group_size,
            "problem": prompt.problem,
            "prompt": prompt.text,
            "completion": rollouts.texts[index],
            "answer": prompt.answer,
            "extracted": verdict.extracted,
            "status": verdict.status,
            "reward": verdict.reward,
            "kept": keep[index],
            "num_tokens": len(completion.token_ids),
            "finish_reason": completion.finish_reason,
            "scored": index in scored,
        }
        line |= {"rewards": verdict.rewards} if verdict.rewards else {}
        line |= {"extra": verdict.extra} if verdict.extra else {}
        for name, of_completions in means.items():
            is_unknown = index not in scored and name in OF_SCORED
            line[name] = math.nan if is_unknown else round(of_completions[index], 6)
        lines.append(line)
    return lines


def completion_means(
    values: Float[Tensor, "tokens"], sequence_ids: Int[Tensor, "tokens"], num_completions: int
) -> list[float]:
    """Mean of a per-token value within each completion, in float64; NaN for one that has no token."""
    sums = torch.zeros(num_completions, dtype=torch.float64)
    sums.index_add_(0, sequence_ids.cpu(), values.detach().cpu().double())
    counts = torch.bincount(sequence_ids.cpu(), minlength=num_completions)
    return (sums / counts).tolist()

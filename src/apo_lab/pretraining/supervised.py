"""Supervised training of a base model: next-token cross-entropy on the answers of demonstrations."""

from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any

import lightning.pytorch as pl
import torch
from jaxtyping import Float, Int
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from apo_lab.puzzles import Puzzle
from apo_lightning.common.console import say

IGNORED = -100
"""Label of tokens without a loss."""


def demonstrations(
    puzzle: Puzzle, tokenizer: PreTrainedTokenizerBase, per_batch: int, seed: int
) -> Iterator[tuple[Int[Tensor, "rows positions"], Int[Tensor, "rows positions"]]]:
    """An endless stream of batches of new demonstrations, determined by the seed; see `encode`."""
    random = Random(f"demonstrations/{seed}")
    while True:
        yield encode([puzzle.demonstration(random) for _ in range(per_batch)], tokenizer)


def encode(
    pairs: list[tuple[str, str]], tokenizer: PreTrainedTokenizerBase
) -> tuple[Int[Tensor, "rows positions"], Int[Tensor, "rows positions"]]:
    """Problems and answers as token ids and labels; the tokenizer has one token per character.

    Labels are the tokens of the answer and its end, and `IGNORED` elsewhere.

    Example:
        >>> from apo_lightning.model.tokenizer import character_tokenizer
        >>> input_ids, labels = encode([("1+1=", "2"), ("9+9=", "18")], character_tokenizer())
        >>> labels.ne(IGNORED).sum(1)
        tensor([2, 3])
    """
    end = tokenizer.eos_token_id
    assert isinstance(end, int)
    problems = tokenizer([problem for problem, _ in pairs], add_special_tokens=False)["input_ids"]
    answers = tokenizer([answer for _, answer in pairs], add_special_tokens=False)["input_ids"]
    rows = [(problem, [*answer, end]) for problem, answer in zip(problems, answers, strict=True)]
    width = max(len(problem) + len(answer) for problem, answer in rows)
    input_ids = torch.full((len(rows), width), end)
    labels = torch.full_like(input_ids, IGNORED)
    for row, (problem, answer) in enumerate(rows):
        input_ids[row, : len(problem) + len(answer)] = torch.tensor([*problem, *answer])
        labels[row, len(problem) : len(problem) + len(answer)] = torch.tensor(answer)
    return input_ids, labels


class SupervisedModule(pl.LightningModule):
    """Trains a model on the answers of demonstrations, and prints a line after every tenth of the steps.

    `optimizer` makes the optimizer from the parameters, `scheduler` the learning-rate schedule from `optimizer=…`.
    """

    def __init__(
        self, model: PreTrainedModel, optimizer: Callable[..., Optimizer], scheduler: Callable[..., LRScheduler]
    ) -> None:
        super().__init__()
        self.model = model
        self.make_optimizer = optimizer
        self.make_scheduler = scheduler

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """One optimizer with a schedule that advances every step."""
        optimizer = self.make_optimizer(self.model.parameters())
        schedule = {"scheduler": self.make_scheduler(optimizer=optimizer), "interval": "step"}
        return {"optimizer": optimizer, "lr_scheduler": schedule}  # pyright: ignore[reportReturnType]

    def training_step(self, batch: Sequence[Tensor], batch_idx: int) -> Float[Tensor, ""]:
        """Mean cross-entropy of the answer tokens [nats]."""
        input_ids, labels = batch
        loss = self.model(input_ids=input_ids, labels=labels, use_cache=False).loss
        self.log("train/loss", loss, prog_bar=True)
        return loss

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Print steps and loss."""
        done, steps = self.trainer.global_step, self.trainer.max_steps
        if done % max(1, steps // 10) == 0:
            say(f"  {done:>6} of {steps} steps, loss {outputs['loss'].item():.4f} nats")

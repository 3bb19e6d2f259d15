"""The data module: prompts per training step, in an order that is a run's own, and prompts per held-out set."""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from lightning import LightningDataModule
from transformers import PreTrainedTokenizerBase

from apo_lightning.common.hashing import hash64
from apo_lightning.data.filtering import FilterReport
from apo_lightning.data.prompts import PromptTemplate, build_prompts, require_fitting
from apo_lightning.data.rows import Row
from apo_lightning.data.sources import ProblemSource
from apo_lightning.errors import ConfigError
from apo_lightning.types import Prompt

PROMPTS_PER_VALIDATION_BATCH = 256
"""Most held-out prompts in a batch."""


@dataclass(frozen=True, kw_only=True)
class PromptOrder:
    """An endless sequence of steps, a pure function of (ids, prompts_per_step, seed).

    An epoch is a shuffle of all prompts. A step may cross into the next epoch: no prompt is left out, and none occurs
    twice in a step. Prompts are sorted by a hash of (seed, epoch, id), not drawn from a random generator, so the order
    does not depend on the order of the file, on a resume or on the number of ranks.

    Raises:
        ConfigError: fewer prompts than a step needs.
    """

    ids: Sequence[str]
    prompts_per_step: int
    seed: int

    def __post_init__(self) -> None:
        if self.prompts_per_step < 1:
            raise ConfigError(f"prompts_per_step is {self.prompts_per_step}: it must be at least 1")
        if self.prompts_per_step > len(self.ids):
            raise ConfigError(
                f"prompts_per_step is {self.prompts_per_step} but there are {len(self.ids)} prompts to train on: "
                "lower it, or give more data"
            )

    def steps(self, start: int = 0) -> Iterator[list[int]]:
        """Indices into `ids` for each step, beginning at step `start` (0 is the first)."""
        waiting: list[int] = []
        epochs = itertools.count()
        for step in itertools.count():
            if len(waiting) < self.prompts_per_step:
                waiting = waiting + self._epoch(next(epochs), waiting)
            batch, waiting = waiting[: self.prompts_per_step], waiting[self.prompts_per_step :]
            if step >= start:
                yield batch

    def _epoch(self, epoch: int, waiting: Sequence[int]) -> list[int]:
        """A shuffle that begins with none of the `waiting` prompts of the last epoch, which share its first step."""
        order = sorted(range(len(self.ids)), key=lambda i: hash64(f"{self.seed}\x1f{epoch}\x1f{self.ids[i]}"))
        if not waiting:
            return order
        taken = set(waiting)
        head = [i for i in order if i not in taken][: self.prompts_per_step - len(waiting)]
        in_head = set(head)
        return head + [i for i in order if i not in in_head]


@dataclass(frozen=True)
class PromptBatches:
    """A loader that can be iterated repeatedly. A `DataLoader` would draw from torch's global generator."""

    batches: Callable[[], Iterator[list[Prompt]]]

    def __iter__(self) -> Iterator[list[Prompt]]:
        return self.batches()


class PromptDataModule(LightningDataModule):
    """All prompts of a run, tokenised once.

    Every rank gets every batch whole; the trainer assigns prompts to ranks. The stream of training prompts begins after
    the trainer's `global_step`, so that a resumed run continues in it.

    Args:
        seed: of the run; determines the order.
        prompt_template: of a base model: see `PromptTemplate.base_template`.

    Raises:
        ConfigError: a template without `{problem}`; from `prepare`: data that cannot be read, no prompt left to train
            on, fewer prompts than a step needs, or a held-out prompt that is too long.
    """

    def __init__(
        self,
        source: ProblemSource,
        tokenizer: PreTrainedTokenizerBase,
        *,
        prompts_per_step: int,
        seed: int,
        prompt_template: str | None = None,
    ) -> None:
        super().__init__()
        self.source = source
        self.tokenizer = tokenizer
        self.template = PromptTemplate(
            instruction=source.instruction, system=source.system, base_template=prompt_template
        )
        self.prompts_per_step = prompts_per_step
        self.seed = seed
        self.train_prompts: list[Prompt] = []
        self.validation_prompts: dict[str, list[Prompt]] = {}
        """Held-out prompts by benchmark."""
        self.held_out: Mapping[str, Sequence[Row]] = {}
        """Held-out problems by benchmark."""
        self.report: FilterReport | None = None
        """Counts of dropped training rows; None before `prepare`."""

    def prepare(self) -> None:
        """Read, filter and tokenise; needs no model, and a second call does nothing."""
        if self.report is not None:
            return
        problems, name = self.source.load(), self.source.name
        training = self._prompts(problems.train, name)
        self.held_out = problems.validation
        self.train_prompts = self._fitting(training)
        held_out = {benchmark: self._prompts(rows, benchmark) for benchmark, rows in problems.validation.items()}
        report, num_held_out = problems.report, 0
        if report.num_held_out:  # part of the training set, and filtered like it
            held_out[name] = self._fitting(held_out[name])
            num_held_out = len(held_out[name])
        num_too_long = len(training) + report.num_held_out - len(self.train_prompts) - num_held_out
        report = replace(report, num_kept=len(self.train_prompts), num_held_out=num_held_out, num_too_long=num_too_long)
        if not self.train_prompts:
            raise ConfigError(
                f"{name} has no prompt left to train on (max_prompt_tokens={self.source.max_prompt_tokens}): {report}"
            )
        self._order()
        require_fitting([*itertools.chain(*held_out.values())], self.source.max_prompt_tokens)
        self.validation_prompts = {benchmark: prompts for benchmark, prompts in held_out.items() if prompts}
        self.report = report

    def setup(self, stage: str | None = None) -> None:
        """Call `prepare`; Lightning's name for it."""
        self.prepare()

    @property
    def validation_names(self) -> list[str]:
        """Names of the held-out sets, in the order of `val_dataloader`."""
        return list(self.validation_prompts)

    @property
    def prompts(self) -> list[Prompt]:
        """All prompts, training and held-out, which the reward checks before the run."""
        return [*itertools.chain(self.train_prompts, *self.validation_prompts.values())]

    def describe(self) -> str:
        """One line for the log: numbers of training and held-out problems and of dropped rows."""
        sizes = [f"{name} ({len(prompts)})" for name, prompts in self.validation_prompts.items()]
        return f"{self.source.name}: {self.report}; validation on {', '.join(sizes) or 'nothing'}"

    def train_dataloader(self) -> PromptBatches:
        """Endless training steps of `prompts_per_step` prompts, starting after the trainer's `global_step`."""
        return PromptBatches(self._training_steps)

    def val_dataloader(self) -> list[PromptBatches]:
        """One loader per benchmark, in the order of `validation_prompts`."""
        return [PromptBatches(partial(_slices, prompts)) for prompts in self.validation_prompts.values()]

    def transfer_batch_to_device(self, batch: list[Prompt], device: torch.device, dataloader_idx: int) -> list[Prompt]:
        """Return the batch: Lightning's own method would look for tensors inside the frozen records, and fail."""
        return batch

    def _prompts(self, rows: Sequence[Row], source: str) -> list[Prompt]:
        return build_prompts(rows, self.tokenizer, self.template, source=source)

    def _fitting(self, prompts: list[Prompt]) -> list[Prompt]:
        return [prompt for prompt in prompts if len(prompt.token_ids) <= self.source.max_prompt_tokens]

    def _order(self) -> PromptOrder:
        ids = [prompt.id for prompt in self.train_prompts]
        return PromptOrder(ids=ids, prompts_per_step=self.prompts_per_step, seed=self.seed)

    def _training_steps(self) -> Iterator[list[Prompt]]:
        start = 0 if self.trainer is None else self.trainer.global_step
        for step in self._order().steps(start):
            yield [self.train_prompts[i] for i in step]


def _slices(prompts: list[Prompt]) -> Iterator[list[Prompt]]:
    size = PROMPTS_PER_VALIDATION_BATCH
    return (prompts[i : i + size] for i in range(0, len(prompts), size))

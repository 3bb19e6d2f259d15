"""The order of training prompts: endless shuffled epochs, the same in every run with the same seed."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count

from apo_lightning.common.hashing import hash64
from apo_lightning.errors import ConfigError


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
        epochs = count()
        for step in count():
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

"""What a run has seen of each training prompt, for advantages that depend on it."""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from apo_lightning.distributed.gathering import items_of_all_ranks
from apo_lightning.step.part import Part
from apo_lightning.types import AdvantageInputs, PromptRecord, Rollouts

MAX_ANSWERS = 256
"""Different answers that are counted of one prompt."""
MAX_ANSWER_CHARACTERS = 128
"""Of an answer that is counted."""


class History(Part):
    """Prompt id → what finished steps saw of the prompt; the same on all ranks.

    It hangs on a run whose advantage estimator `needs` the history, and is saved with checkpoints. A prompt takes at
    most 256 answers of 128 characters: further answers and longer ones stay uncounted, as if never seen.
    """

    name = "history"

    def __init__(self) -> None:
        self.records: dict[str, PromptRecord] = {}

    def of(self, prompt_id: str) -> PromptRecord:
        """The record of a prompt; an empty one for a prompt that was not seen yet."""
        return self.records.get(prompt_id, PromptRecord())

    def advantage_inputs(self, rollouts: Rollouts, inputs: AdvantageInputs) -> AdvantageInputs:
        """Give the records of this rank's prompts, then add the completions that all ranks sampled; collective."""
        known = tuple(self.of(prompt.id) for prompt in rollouts.prompts)
        self.add(rollouts)
        return replace(inputs, history=known)

    def add(self, rollouts: Rollouts) -> None:
        """Add the completions that all ranks sampled in a step; collective."""
        size, verdicts = rollouts.group_size, rollouts.verdicts
        mine = [
            (prompt.id, [(v.status == "correct", v.extracted) for v in verdicts[i * size : (i + 1) * size]])
            for i, prompt in enumerate(rollouts.prompts)
        ]
        # In the order of ids, the records and their file do not depend on the number of ranks.
        for prompt_id, group in sorted(items_of_all_ranks(mine), key=lambda item: item[0]):
            self.records[prompt_id] = _extended(self.of(prompt_id), group)

    def state_dict(self) -> dict[str, Any]:
        """All records, as plain data."""
        return {name: [r.num_sampled, r.num_correct, dict(r.answers)] for name, r in self.records.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the records of a resumed run."""
        self.records = {
            name: PromptRecord(num_sampled=sampled, num_correct=correct, answers=answers)
            for name, (sampled, correct, answers) in state.items()
        }


def _extended(record: PromptRecord, group: Collection[tuple[bool, str | None]]) -> PromptRecord:
    answers = dict(record.answers)
    for answer, count in Counter(answer for _, answer in group if answer is not None).items():
        if answer in answers or (len(answers) < MAX_ANSWERS and len(answer) <= MAX_ANSWER_CHARACTERS):
            answers[answer] = answers.get(answer, 0) + count
    return PromptRecord(
        num_sampled=record.num_sampled + len(group),
        num_correct=record.num_correct + sum(is_correct for is_correct, _ in group),
        answers=answers,
    )

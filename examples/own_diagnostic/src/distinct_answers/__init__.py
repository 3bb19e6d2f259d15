"""A diagnostic: how many different answers the policy gives to one problem."""

from statistics import mean

from apo_lightning.callbacks import StepCallback, check_every_n_steps
from apo_lightning.distributed.gathering import items_of_all_ranks
from apo_lightning.types import Rollouts, StepOutput


class DistinctAnswers(StepCallback):
    """Logs the mean number of different answers in a group, of all completions and of the correct ones.

    Args:
        every_n_steps: measure at multiples of this step.
    """

    def __init__(self, every_n_steps: int = 10) -> None:
        self.every_n_steps = check_every_n_steps("distinct_answers", every_n_steps)

    def on_step(self, step: StepOutput) -> dict[str, float]:
        """Count over the groups of all ranks."""
        groups = step.rollouts.first_round.groups
        return {
            "distinct/answers": mean(items_of_all_ranks([count(group) for group in groups])),
            "distinct/correct_answers": mean(items_of_all_ranks([count(group, "correct") for group in groups])),
        }


def count(group: Rollouts, status: str | None = None) -> int:
    """Different answers in a group, of completions with this verdict if one is given."""
    verdicts = [verdict for verdict in group.verdicts if status in (None, verdict.status)]
    return len({verdict.extracted for verdict in verdicts} - {None})

"""Groups of rewards, and what APO says of an advantage."""

import torch

from apo_lightning.losses import APO
from apo_lightning.types import AdvantageInputs
from recipes import recipe_of


def inputs(rewards, **others):
    """A reward above 0 is of a correct completion; completions have one token, unless others say more."""
    table = torch.tensor(rewards, dtype=torch.float64)
    fields = {"is_correct": table > 0, "lengths": torch.ones_like(table, dtype=torch.long)} | others
    return AdvantageInputs(rewards=table, **fields)


def check_apo(advantage, trigger="negative_advantage"):
    """Raises where APO with this trigger cannot work."""
    APO(trigger=trigger).check(recipe_of(advantage=advantage))

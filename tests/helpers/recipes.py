"""As much of a run's recipe as a check of a single piece reads."""

from types import SimpleNamespace
from typing import Any


def recipe_of(*, advantage: Any = None, num_prompts: int = 0, settings: Any = None, **sizes: Any) -> Any:
    """A recipe with one mini-batch a step and a mean over tokens, unless `sizes` or `settings` say otherwise."""
    return SimpleNamespace(
        settings=settings or SimpleNamespace(**{"aggregation": "token_mean", "minibatches_per_step": 1} | sizes),
        advantage=advantage,
        data=SimpleNamespace(train_prompts=range(num_prompts)),
    )

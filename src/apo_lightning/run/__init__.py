"""The composition root: configuration → checked parts → one run. The only package that imports Hydra.

Each name is imported on first use: a mistyped override would otherwise wait for torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from apo_lightning.run.checks import prepare
    from apo_lightning.run.evaluating import evaluate
    from apo_lightning.run.exporting import export
    from apo_lightning.run.training import train

_MODULES = {"evaluate": "evaluating", "export": "exporting", "prepare": "checks", "train": "training"}

__all__ = ["evaluate", "export", "prepare", "train"]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)

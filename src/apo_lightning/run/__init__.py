"""The composition root: configuration → checked parts → one run. The only package that imports Hydra.

Each name is imported when it is asked for: a mistyped override would otherwise wait for torch and what stands on it.
"""

import importlib
from typing import TYPE_CHECKING, Any

# Its module has the same name: imported later, it would stand here in the function's place.
from apo_lightning.run.user_message import user_message

if TYPE_CHECKING:
    from apo_lightning.run.command_line import (
        evaluate_from_command_line,
        export_from_command_line,
        lab_from_command_line,
        pretrain_from_command_line,
        report_from_command_line,
        train_from_command_line,
    )
    from apo_lightning.run.evaluating import evaluate
    from apo_lightning.run.exporting import export
    from apo_lightning.run.pretraining import pretrain
    from apo_lightning.run.reporting import report
    from apo_lightning.run.training import prepare, train

_MODULES = {
    "evaluate": "evaluating",
    "evaluate_from_command_line": "command_line",
    "export": "exporting",
    "export_from_command_line": "command_line",
    "lab_from_command_line": "command_line",
    "prepare": "training",
    "pretrain": "pretraining",
    "pretrain_from_command_line": "command_line",
    "report": "reporting",
    "report_from_command_line": "command_line",
    "train": "training",
    "train_from_command_line": "command_line",
}

__all__ = [
    "evaluate",
    "evaluate_from_command_line",
    "export",
    "export_from_command_line",
    "lab_from_command_line",
    "prepare",
    "pretrain",
    "pretrain_from_command_line",
    "report",
    "report_from_command_line",
    "train",
    "train_from_command_line",
    "user_message",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)

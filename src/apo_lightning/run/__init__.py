"""The composition root: configuration → checked parts → one run. The only package that imports Hydra."""

from apo_lightning.run.command_line import (
    evaluate_from_command_line,
    export_from_command_line,
    report_from_command_line,
    train_from_command_line,
)
from apo_lightning.run.evaluating import evaluate
from apo_lightning.run.exporting import export
from apo_lightning.run.reporting import report
from apo_lightning.run.training import prepare, train
from apo_lightning.run.user_message import user_message

__all__ = [
    "evaluate",
    "evaluate_from_command_line",
    "export",
    "export_from_command_line",
    "prepare",
    "report",
    "report_from_command_line",
    "train",
    "train_from_command_line",
    "user_message",
]

"""Diagnostics, progress, files and summaries. Callbacks read everything and change nothing about training."""

from apo_lightning.callbacks.distribution_monitor import DistributionMonitor
from apo_lightning.callbacks.export import ExportPolicy
from apo_lightning.callbacks.progress import ProgressDisplay
from apo_lightning.callbacks.rollout_writer import CompletionTable, RolloutWriter
from apo_lightning.callbacks.step_callback import StepCallback, check_every_n_steps
from apo_lightning.callbacks.summary import RunSummary
from apo_lightning.callbacks.wandb_logger import wandb_logger

__all__ = [
    "CompletionTable",
    "DistributionMonitor",
    "ExportPolicy",
    "ProgressDisplay",
    "RolloutWriter",
    "RunSummary",
    "StepCallback",
    "check_every_n_steps",
    "wandb_logger",
]

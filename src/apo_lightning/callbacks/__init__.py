"""Diagnostics and what a user sees. They read everything and steer nothing: without them a run is the same."""

from apo_lightning.callbacks.distribution_monitor import DistributionMonitor
from apo_lightning.callbacks.export import ExportPolicy
from apo_lightning.callbacks.progress import ProgressDisplay
from apo_lightning.callbacks.rollout_writer import RolloutWriter
from apo_lightning.callbacks.step_callback import StepCallback
from apo_lightning.callbacks.summary import RunSummary

__all__ = [
    "DistributionMonitor",
    "ExportPolicy",
    "ProgressDisplay",
    "RolloutWriter",
    "RunSummary",
    "StepCallback",
]

"""Diagnostics and what a user sees. They read everything and steer nothing: without them a run is the same."""

from apo_lightning.callbacks.base import StepCallback
from apo_lightning.callbacks.collapse_alarm import CollapseAlarm
from apo_lightning.callbacks.distribution_monitor import DistributionMonitor
from apo_lightning.callbacks.exact_coverage import ExactCoverage
from apo_lightning.callbacks.export import ExportPolicy
from apo_lightning.callbacks.gradient_geometry import GradientGeometry
from apo_lightning.callbacks.progress import ProgressDisplay
from apo_lightning.callbacks.prompt_history import PromptHistory
from apo_lightning.callbacks.reachability import Reachability
from apo_lightning.callbacks.recovery_tracker import RecoveryTracker
from apo_lightning.callbacks.rollout_writer import RolloutWriter
from apo_lightning.callbacks.squeezing_monitor import SqueezingMonitor
from apo_lightning.callbacks.summary import RunSummary
from apo_lightning.callbacks.token_writer import TokenWriter

__all__ = [
    "CollapseAlarm",
    "DistributionMonitor",
    "ExactCoverage",
    "ExportPolicy",
    "GradientGeometry",
    "ProgressDisplay",
    "PromptHistory",
    "Reachability",
    "RecoveryTracker",
    "RolloutWriter",
    "RunSummary",
    "SqueezingMonitor",
    "StepCallback",
    "TokenWriter",
]

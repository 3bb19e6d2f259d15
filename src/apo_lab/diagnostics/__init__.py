"""Diagnostics of the laboratory: callbacks that measure what a policy loses during training, and why."""

from apo_lab.diagnostics.collapse_alarm import CollapseAlarm
from apo_lab.diagnostics.exact_coverage import ExactCoverage
from apo_lab.diagnostics.gradient_geometry import GradientGeometry
from apo_lab.diagnostics.prompt_history import PromptHistory
from apo_lab.diagnostics.reachability import Reachability
from apo_lab.diagnostics.recovery_tracker import RecoveryTracker
from apo_lab.diagnostics.squeezing_monitor import SqueezingMonitor
from apo_lab.diagnostics.token_writer import TokenWriter

__all__ = [
    "CollapseAlarm",
    "ExactCoverage",
    "GradientGeometry",
    "PromptHistory",
    "Reachability",
    "RecoveryTracker",
    "SqueezingMonitor",
    "TokenWriter",
]

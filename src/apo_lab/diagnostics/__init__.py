"""Diagnostics of the laboratory: callbacks that measure what a policy loses during training, and why."""

from apo_lab.diagnostics.collapse_alarm import CollapseAlarm
from apo_lab.diagnostics.exact_coverage import ExactCoverage
from apo_lab.diagnostics.reachability import Reachability
from apo_lab.diagnostics.squeezing_monitor import SqueezingMonitor

__all__ = ["CollapseAlarm", "ExactCoverage", "Reachability", "SqueezingMonitor"]

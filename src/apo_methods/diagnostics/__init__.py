"""Diagnostics: callbacks that measure what a policy loses during training, and why."""

from apo_methods.diagnostics.collapse_alarm import CollapseAlarm
from apo_methods.diagnostics.reachability import Reachability
from apo_methods.diagnostics.squeezing_monitor import SqueezingMonitor

__all__ = ["CollapseAlarm", "Reachability", "SqueezingMonitor"]

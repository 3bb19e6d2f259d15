"""What a policy makes of the listed answers of a puzzle, exactly."""

from apo_lab.diagnostics.exact_coverage import ExactCoverage

__all__ = ["ExactCoverage"]

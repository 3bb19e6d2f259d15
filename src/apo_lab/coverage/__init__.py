"""Worked solutions under the top K of a model: which share of their tokens it could have sampled."""

from apo_lab.coverage.oracle import OracleCoverage

__all__ = ["OracleCoverage"]

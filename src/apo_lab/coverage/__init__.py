"""Oracle coverage: the share of a worked solution's tokens among the K most likely ones of a model."""

from apo_lab.coverage.oracle import OracleCoverage

__all__ = ["OracleCoverage"]

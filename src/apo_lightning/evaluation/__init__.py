"""Measures a policy: benchmarks, samples, pass@k with intervals, coverage of its reference."""

from apo_lightning.evaluation.benchmark import Benchmark
from apo_lightning.evaluation.coverage import OracleCoverage

__all__ = ["Benchmark", "OracleCoverage"]

"""Measures a policy: benchmarks, samples, pass@k with intervals, coverage of its reference.

The two are imported when they are asked for: who only reads results needs neither transformers nor Lightning.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from apo_lightning.evaluation.benchmark import Benchmark
    from apo_lightning.evaluation.coverage import OracleCoverage

_MODULES = {"Benchmark": "benchmark", "OracleCoverage": "coverage"}

__all__ = ["Benchmark", "OracleCoverage"]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)

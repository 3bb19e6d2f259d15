"""Evaluation of a policy: benchmarks, samples, pass@k with intervals.

`Benchmark` is imported on first use, so that reading results needs neither transformers nor Lightning.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from apo_lightning.evaluation.benchmark import Benchmark

__all__ = ["Benchmark"]


def __getattr__(name: str) -> Any:
    if name != "Benchmark":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return importlib.import_module(f"{__name__}.benchmark").Benchmark

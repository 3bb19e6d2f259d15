"""Advantages of rival methods: adjustments of an estimator, one small frozen dataclass and one YAML each."""

from apo_lab.advantages.pass_at_k_weight import PassAtKWeight
from apo_lab.advantages.uniform_correct import UniformCorrect

__all__ = ["PassAtKWeight", "UniformCorrect"]

"""Advantages of rival methods: adjustments of an estimator, one small frozen dataclass and one YAML each."""

from apo_lab.advantages.boundary_gate import BoundaryGate
from apo_lab.advantages.pass_at_k_weight import PassAtKWeight
from apo_lab.advantages.rare_answers import RareAnswers
from apo_lab.advantages.repeated_answers import RepeatedAnswers
from apo_lab.advantages.uniform_correct import UniformCorrect

__all__ = ["BoundaryGate", "PassAtKWeight", "RareAnswers", "RepeatedAnswers", "UniformCorrect"]

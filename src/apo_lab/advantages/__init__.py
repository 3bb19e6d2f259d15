"""Advantages of rival methods: they adjust or shape those of an estimator, one YAML each.

A value outside the range that its class gives raises `ConfigError`.
"""

from apo_lab.advantages.answers import RareAnswers, RepeatedAnswers
from apo_lab.advantages.likelihoods import DifferentialSmoothing, UniformCorrect, Unlikeliness
from apo_lab.advantages.pkpo import PKPO
from apo_lab.advantages.prompt_weights import BoundaryGate, PassAtKWeight

__all__ = [
    "PKPO",
    "BoundaryGate",
    "DifferentialSmoothing",
    "PassAtKWeight",
    "RareAnswers",
    "RepeatedAnswers",
    "UniformCorrect",
    "Unlikeliness",
]

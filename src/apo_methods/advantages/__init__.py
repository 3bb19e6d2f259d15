"""Advantages of rival methods: they adjust or shape those of an estimator, one small file and one YAML each."""

from apo_methods.advantages.differential_smoothing import DifferentialSmoothing
from apo_methods.advantages.inverse_frequency import InverseFrequency
from apo_methods.advantages.max_rl import MaxRL
from apo_methods.advantages.pass_at_k_weight import PassAtKWeight
from apo_methods.advantages.pkpo import PKPO
from apo_methods.advantages.repeated_answers import RepeatedAnswers
from apo_methods.advantages.uniform_correct import UniformCorrect
from apo_methods.advantages.unlikeliness import Unlikeliness

__all__ = [
    "PKPO",
    "DifferentialSmoothing",
    "InverseFrequency",
    "MaxRL",
    "PassAtKWeight",
    "RepeatedAnswers",
    "UniformCorrect",
    "Unlikeliness",
]

"""Advantages of rival methods: they adjust or shape those of an estimator, one small file and one YAML each."""

from apo_lab.advantages.differential_smoothing import DifferentialSmoothing
from apo_lab.advantages.inverse_frequency import InverseFrequency
from apo_lab.advantages.max_rl import MaxRL
from apo_lab.advantages.pass_at_k_weight import PassAtKWeight
from apo_lab.advantages.pkpo import PKPO
from apo_lab.advantages.repeated_answers import RepeatedAnswers
from apo_lab.advantages.uniform_correct import UniformCorrect
from apo_lab.advantages.unlikeliness import Unlikeliness

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

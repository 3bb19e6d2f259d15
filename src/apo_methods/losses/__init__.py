"""Ablations of APO and rival losses: one small frozen dataclass each, with one YAML each in `configs/algo/`."""

from apo_methods.losses.cispo import CISPO
from apo_methods.losses.correct_only_kl import CorrectOnlyKL
from apo_methods.losses.covariance import ClipCov, KLCov
from apo_methods.losses.dropped_errors import DroppedErrors
from apo_methods.losses.entropy_advantage import EntropyAdvantage
from apo_methods.losses.gmpo import GMPO
from apo_methods.losses.grid import GridLoss
from apo_methods.losses.low_probability import LpReg
from apo_methods.losses.sage import SAGE

__all__ = [
    "CISPO",
    "GMPO",
    "SAGE",
    "ClipCov",
    "CorrectOnlyKL",
    "DroppedErrors",
    "EntropyAdvantage",
    "GridLoss",
    "KLCov",
    "LpReg",
]

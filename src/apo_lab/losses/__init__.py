"""Ablations of APO and rival losses: one small frozen dataclass each, with one YAML each in `configs/algo/`."""

from apo_lab.losses.cispo import CISPO
from apo_lab.losses.correct_only_kl import CorrectOnlyKL
from apo_lab.losses.covariance import ClipCov, KLCov
from apo_lab.losses.dropped_errors import DroppedErrors
from apo_lab.losses.entropy_advantage import EntropyAdvantage
from apo_lab.losses.gmpo import GMPO
from apo_lab.losses.grid import GridLoss
from apo_lab.losses.low_probability import LpReg
from apo_lab.losses.sage import SAGE

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

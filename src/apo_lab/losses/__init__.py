"""Ablations of APO and rival losses: small frozen dataclasses, with one YAML each in `configs/algo/`.

A value outside the range that its class gives raises `ConfigError`.
"""

from apo_lab.losses.covariance import ClipCov, KLCov
from apo_lab.losses.entropy import SAGE, EntropyAdvantage, SimKO
from apo_lab.losses.grid import GridLoss
from apo_lab.losses.weights import CISPO, GMPO

__all__ = ["CISPO", "GMPO", "SAGE", "ClipCov", "EntropyAdvantage", "GridLoss", "KLCov", "SimKO"]

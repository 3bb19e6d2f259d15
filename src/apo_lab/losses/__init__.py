"""Ablations of APO and rival losses: one small frozen dataclass each, with one YAML each in `configs/algo/`."""

from apo_lab.losses.entropy_advantage import EntropyAdvantage
from apo_lab.losses.grid import GridLoss
from apo_lab.losses.sage import SAGE
from apo_lab.losses.simko import SimKO

__all__ = ["SAGE", "EntropyAdvantage", "GridLoss", "SimKO"]

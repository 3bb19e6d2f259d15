"""Ablations of APO and rival losses: one small frozen dataclass each, with one YAML each in `configs/algo/`."""

from apo_lab.losses.apo_pulls import CrossEntropyAPO, GateOnlyAPO, LogMassAPO, UngatedAPO
from apo_lab.losses.apo_random import RandomAnchorAPO
from apo_lab.losses.cispo import CISPO
from apo_lab.losses.covariance import ClipCov, KLCov
from apo_lab.losses.entropy_advantage import EntropyAdvantage
from apo_lab.losses.gmpo import GMPO
from apo_lab.losses.sage import SAGE
from apo_lab.losses.simko import SimKO
from apo_lab.losses.topk_forward_kl import TopKForwardKL

__all__ = [
    "CISPO",
    "GMPO",
    "SAGE",
    "ClipCov",
    "CrossEntropyAPO",
    "EntropyAdvantage",
    "GateOnlyAPO",
    "KLCov",
    "LogMassAPO",
    "RandomAnchorAPO",
    "SimKO",
    "TopKForwardKL",
    "UngatedAPO",
]

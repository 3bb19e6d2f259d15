"""Second terms of the loss, on stored completions: `algo.auxiliary`."""

from apo_lab.auxiliary.rehearsal import Rehearsal

__all__ = ["Rehearsal"]

"""Parts of the laboratory's methods: see `apo_lightning.step.part`."""

from apo_lab.parts.token_marks import TokenMarks

__all__ = ["TokenMarks"]

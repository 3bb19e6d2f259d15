"""`apo preflight`: the memory and time that a training run needs, and all its errors, before it starts."""

from apo_lightning.run.commands import Command

PREFLIGHT = Command(
    name="preflight",
    summary="Plan a training run: memory, time, all errors at once.",
    work="apo_plan.preflight:preflight_command",
    config="preflight",
    takes_ranks=True,
)
"""Registered by an entry point in `pyproject.toml`."""

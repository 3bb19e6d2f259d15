"""`apo preflight`: the memory and time that a training run needs, and all its errors, before it starts."""

from apo_lightning.run.commands import Command

PREFLIGHT = Command(
    name="preflight",
    summary="Plan a training run: memory, time, all errors at once.",
    work="apo_plan.preflight:preflight_command",
    config="preflight",
    details="Takes every argument of apo train and loads no weights. Prints memory by part and phase, the time of a "
    "step and of the run, and all errors at once. The exit status is 1 if there is an error.",
    axes={"rates": "how fast the devices are"},
    settings=(
        "expected.prompt_tokens",
        "expected.completion_tokens",
        "expected.updated_share",
        "expected.reference_share",
        "expected.kept_share",
    ),
    examples=("apo preflight model=tiny", "apo preflight experiment=paper/qwen_math7b_apo rates=h100"),
)
"""Registered by an entry point in `pyproject.toml`."""

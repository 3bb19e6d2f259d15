"""The commands that this package adds to `apo`, each registered by an entry point in `pyproject.toml`."""

from apo_lightning.run.commands import Command

LAB = Command(
    name="lab",
    summary="Train every method on small worlds, and compare them on one page.",
    work="apo_lab.laboratory.command:laboratory",
    config="lab",
    actions=("run", "status", "page", "verify"),
)
PRETRAIN = Command(
    name="pretrain",
    summary="Train the base model of a puzzle on demonstrations.",
    work="apo_lab.pretraining.base_models:pretrain",
    config="pretrain",
)
COVERAGE = Command(
    name="coverage",
    summary="Solutions in the top K tokens, or the answers a run lost.",
    work="apo_lab.commands.coverage:cover",
    config="coverage",
)
THEORY = Command(
    name="theory",
    summary="Check the paper's propositions on the losses, and draw them.",
    work="apo_lab.theory.__main__:main",
    config=None,
)

"""The commands that this package adds to `apo`, each registered by an entry point in `pyproject.toml`."""

from apo_lightning.run.commands import Command

LAB = Command(
    name="lab",
    summary="See collapse, measure it, fight it: every method on two puzzles, one page.",
    work="apo_lab.laboratory.runs:laboratory",
    config="lab",
)
PRETRAIN = Command(
    name="pretrain",
    summary="Make the base model of a puzzle.",
    work="apo_lab.pretraining.base_models:pretrain",
    config="pretrain",
)
REPORT = Command(
    name="report",
    summary="Tables and figures of runs and evaluations, one page.",
    work="apo_lab.commands.report:report",
    config="report",
)
EXACT = Command(
    name="exact",
    summary="Measure pass@k of a puzzle without samples.",
    work="apo_lab.commands.exact:measure_exactly",
    config="exact",
)
COVERAGE = Command(
    name="coverage",
    summary="Measure worked solutions under the model's top K.",
    work="apo_lab.commands.coverage:cover",
    config="coverage",
)
THEORY = Command(
    name="theory",
    summary="Check the paper's propositions on the losses, and draw them.",
    work="apo_lab.theory.__main__:main",
    config=None,
)

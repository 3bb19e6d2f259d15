"""The commands that this package adds to `apo`, each registered by an entry point in `pyproject.toml`."""

from apo_lightning.run.commands import Command

LAB = Command(
    name="lab",
    summary="Train every method on small worlds, and compare them on one page.",
    work="apo_lab.laboratory.command:laboratory",
    config="lab",
    details="An edition is a protocol of worlds, methods, seeds and comparisons. Base models and runs are made, exact "
    "pass@k is measured along each run, and rows are added to runs.csv.gz and curves.csv.gz; the page is made from "
    "these alone. edition=hour takes about an hour on two cores, edition=full more than ten. A command that was "
    "interrupted continues when it is given again.",
    actions={
        "run": "make the runs that have no row yet, then the page (default)",
        "status": "count the runs that are done, by stage",
        "page": "make the page from the tables",
    },
    settings=("edition", "stages", "worlds", "only", "overrides", "processes", "output_dir", "tables", "bases"),
    examples=(
        "apo lab",
        "apo lab worlds=[locks_a] only=[grpo,apo]",
        "apo lab run edition=full tables=docs/lab/full bases=docs/lab/bases",
        "apo lab page edition=full tables=docs/lab/full",
    ),
)
PRETRAIN = Command(
    name="pretrain",
    summary="Train the base model of a puzzle on demonstrations.",
    work="apo_lab.pretraining.base_models:pretrain",
    config="pretrain",
    details="Writes <output_dir>/<puzzle>, a Hugging Face folder that model=lab_<puzzle> loads, with base.json, its "
    "exact pass@k. A model that was made with the same settings is kept.",
    axes={
        "data": "the puzzle, locks or countdown; other data are refused",
        "pretraining": "model, optimizer, number of demonstrations",
        "trainer": "devices",
    },
    settings=("output_dir", "seed"),
    examples=("apo pretrain data=locks", "apo pretrain data=countdown pretraining.num_steps=4000"),
)
REPORT = Command(
    name="report",
    summary="Tables and figures of runs and evaluations, on one page.",
    work="apo_lab.commands.report:report",
    config="report",
    details="Reads every run, sweep and evaluation in the given folders. Writes report.html, tables/ (Markdown, "
    "CSV) and figures/ (PDF, SVG, PNG), with the paper's published numbers for comparison.",
    settings=("runs", "output_dir", "title"),
    examples=("apo report", "apo report runs=outputs/2026-01-31"),
)
EXACT = Command(
    name="exact",
    summary="Measure the pass@k of a puzzle's run exactly, without samples.",
    work="apo_lab.commands.exact:measure_exactly",
    config="exact",
    details="Adds up the probabilities of all valid answers to the held-out problems of a run of data=locks, "
    "countdown or divisors. Writes metrics.jsonl and log-probs to <output_dir>/exact_<puzzle>.",
    axes={"trainer": "devices"},
    settings=("run", "checkpoint", "output_dir", "temperature", "tokens_per_microbatch"),
    examples=("apo exact run=outputs/lab/locks/apo/seed_1 checkpoint=all",),
)
COVERAGE = Command(
    name="coverage",
    summary="Measure the share of worked solutions in the model's top K tokens.",
    work="apo_lab.commands.coverage:cover",
    config="coverage",
    details="Scores every token of the solutions in one pass, without an engine. Writes coverage.json to "
    "<output_dir>/coverage_<name>.",
    axes={"coverage": "worked solutions", "model": "the policy, where it is not that of run=", "trainer": "devices"},
    settings=("run", "output_dir", "limit", "data_dir", "tokens_per_microbatch"),
    examples=("apo coverage coverage=math model=qwen_math7b trainer=gpu",),
)
PAPER = Command(
    name="paper",
    summary="Run all cells of the paper's tables and figures.",
    work="apo_lab.commands.paper:paper",
    config="paper",
    details="A cell is one training run, evaluation or coverage in a folder of its own below output_dir. Several of "
    "these commands, on one machine or on many, share the cells of one output_dir.",
    actions={
        "plan": "list the cells with their GPU-hours, as apo preflight counts them",
        "status": "list which cells are done, stale, running, begun or missing (default)",
        "run": "take cells until none is left; one that was killed is resumed",
        "report": "build every table and figure of what is there",
    },
    axes={"cells": "the list of cells"},
    settings=("experiments", "seeds", "overrides", "output_dir", "limit"),
    examples=(
        "apo paper plan",
        "apo paper run seeds=[1,2,3] limit=1",
        "apo paper run cells=miniature",
        "apo paper report cells=miniature",
        "apo paper plan 'experiments=[clean/*]' output_dir=outputs/clean",
    ),
)
THEORY = Command(
    name="theory",
    summary="Check the paper's propositions on the losses, and draw them.",
    work="apo_lab.theory.__main__:main",
    config=None,
    details="Prints each statement with what was measured. Flags: --only KEY … checks some statements and draws "
    "nothing, --out FOLDER is where the figures go (theory/), --page FILE renews the list of statements in a page. The "
    "exit status is 1 if a statement does not hold.",
    examples=("apo theory", "apo theory --only C2"),
)

"""The settings of the runs beside the paper's."""

from collections import Counter
from collections.abc import Mapping, Sequence

from apo_lab.reporting.axes import plain, same_value, value_place
from apo_lab.reporting.names import method_name
from apo_lab.reporting.published import PublishedCell, published
from apo_lab.reporting.records import Cell, RunCard, Table, TableRow, left, right, row_of

NAMES: Mapping[str, str] = {
    "prompts_per_step": "Global batch size [prompts]",
    "prompts_per_minibatch": "Mini-batch size [prompts]",
    "optimizer.lr": "Learning rate",
    "group_size": "Group size",
    "algo.loss.clip_eps": "Clip ratio ε",
    "aggregation": "Loss aggregation",
    "context_tokens": "Max. context [tokens]",
    "data.max_prompt_tokens": "Max. prompt [tokens]",
    "trainer.max_steps": "Training steps",
    "platform": "Training platform",
    "algo.loss.push_coef": "Push coefficient λ",
    "algo.loss.pull_coef": "Pull coefficient β",
    "algo.loss.anchor_size": "Anchor size K",
    "algo.loss.kl_coef": "KL coefficient",
}


def hyperparameter_table(runs: Sequence[RunCard]) -> Table:
    """Every setting that the paper gives, and what the runs used; marked where a run differs.

    Source: the paper's table of hyper-parameters. It gives no units; the batch sizes are read as prompts.
    """
    cells = published("hyperparameters") if runs else ()
    return Table(
        name="hyperparameters",
        title="Hyper-parameters",
        columns=(*left("Setting", "Methods"), *right("Paper", "These runs")),
        rows=tuple(_row(cell, [run for run in runs if cell.method in ("", run.algo)]) for cell in cells),
        notes=("Marked: not the paper's value in every run.",) if runs else (),
    )


def _row(cell: PublishedCell, runs: Sequence[RunCard]) -> TableRow:
    values = Counter(_value(run, cell.metric) for run in runs)
    found = {value: count for value, count in values.items() if value is not None}
    differs = cell.metric != "platform" and any(not same_value(value, cell.text) for value in found)
    methods = method_name(cell.method) if cell.method else "all"
    return row_of(NAMES[cell.metric], methods, cell.text, Cell(_counted(found), marked=differs))


def _value(run: RunCard, key: str) -> str | None:
    if key == "platform":
        parts = [run.config.get(f"trainer.{name}", "?") for name in ("num_nodes", "devices", "accelerator")]
        return "{} × {} {}".format(*parts) if run.config else None
    if key == "context_tokens":
        parts = [run.config.get(f"data.max_{name}_tokens", "") for name in ("prompt", "completion")]
        return str(sum(map(int, parts))) if all(map(str.isdecimal, parts)) else None
    value = run.config.get(key)
    return None if value is None else plain(value)


def _counted(values: Mapping[str, int]) -> str:
    """`0.1`; where runs differ, each value with the number of runs that used it."""
    if len(values) < 2:
        return next(iter(values), "–")
    ordered = sorted(values, key=value_place)
    return ", ".join(f"{value} ({values[value]} run{'s' if values[value] > 1 else ''})" for value in ordered)

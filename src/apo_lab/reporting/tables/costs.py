"""The cost of training runs, from what they logged of each step."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from apo_lab.reporting.axes import Defaults
from apo_lab.reporting.names import METHODS, in_order
from apo_lab.reporting.records import Cell, RunCard, Table, TableRow, left, right, row_of
from apo_lab.reporting.runs import runs_by_method

STEP_SECONDS = ("time/step", "time/between_steps")
"""Of the first rank; the others wait for it. Validation is in neither."""
SECONDS_PER_HOUR = 3600.0
FORMATS = {"completions": ",.0f", "sampled tokens": ",.0f", "trained tokens": ",.0f", "device-hours": ",.3g"}
"""How each cost is printed."""


def run_costs(run: RunCard) -> pd.DataFrame:
    """Cumulative cost of a run by step: completions, sampled tokens, trained tokens and device-hours.

    Completions per step are `prompts_per_step` · `group_size`, or those of all rounds of dynamic sampling; sampled
    tokens their mean length times their number; trained tokens those that the update ran. Device-hours are the seconds
    of the steps times the GPUs, or on a CPU times the processes. Empty where the run logged no lengths or times.
    """
    metrics, config = run.metrics, run.config
    needed = ("train/completion_tokens", "train/skipped_fraction", *STEP_SECONDS)
    if not all(name in metrics for name in needed):
        return pd.DataFrame()
    steps = metrics.loc[metrics["train/completion_tokens"].notna()]
    group, per_step = float(config["group_size"]), float(config["prompts_per_step"])
    trained = steps["train/completion_tokens"] * group * per_step
    completions, sampled = pd.Series(group * per_step, steps.index), trained
    if "sampling/num_prompts" in steps:
        completions, sampled = steps["sampling/num_prompts"] * group, steps["sampling/num_tokens"]
    devices = float(config["trainer.devices"]) * float(config["trainer.num_nodes"])
    hours = steps[list(STEP_SECONDS)].sum(axis=1) * devices / SECONDS_PER_HOUR
    costs = {
        "completions": completions,
        "sampled tokens": sampled,
        "trained tokens": trained * (1 - steps["train/skipped_fraction"]),
        "device-hours": hours,
    }
    return pd.DataFrame(costs).cumsum()


def cost_table(runs: Sequence[RunCard], defaults: Defaults | None = None) -> Table:
    """What the training runs of each method took: mean over seeds of completions, tokens and device-hours of a run."""
    rows: list[TableRow] = []
    for model, methods in runs_by_method(runs, defaults).items():
        for method in in_order(methods, METHODS.values()):
            costs = [found for run in methods[method] if len(found := run_costs(run))]
            if costs:
                mean = {name: float(np.mean([each[name].iloc[-1] for each in costs])) for name in FORMATS}
                steps = " to ".join(map(str, sorted({min(map(len, costs)), max(map(len, costs))})))
                cells = [Cell(format(mean[name], form), mean[name]) for name, form in FORMATS.items()]
                rows.append(row_of(method, f"{len(costs)}", steps, *cells, section=model))
    return Table(
        name="costs",
        title="Cost of training",
        columns=(
            *left("Method"),
            *right("Seeds", "Steps", "Completions", "Sampled tokens", "Trained tokens", "Device-hours"),
        ),
        rows=tuple(rows),
        notes=(
            "Mean of a run. Trained tokens: tokens that the update ran. Device-hours: seconds of the steps times GPUs, "
            "on a CPU times processes; without validation, start-up and evaluations.",
        ),
    )

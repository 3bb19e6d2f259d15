"""The methods of a model where each has spent the same on training."""

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from apo_lab.reporting.axes import Defaults
from apo_lab.reporting.names import METHODS, benchmark_name, in_order
from apo_lab.reporting.records import RunCard, Table, TableRow, bare, left, right, row_of
from apo_lab.reporting.runs import RunsByMethod, runs_by_method
from apo_lab.reporting.tables.cells import EMPTY, share_cell
from apo_lab.reporting.tables.costs import FORMATS, run_costs

BUDGETS = ("sampled tokens", "device-hours")
TOLERANCE = 0.01
"""Share of the budget by which a point may exceed it: runs of equal length differ by less in sampled tokens."""
EVALUATED = re.compile(r"((?:val|snapshot)/([^/]+)/(exact/)?pass@)(\d+)")


class _Point(NamedTuple):
    """One run at its last evaluation point within a budget."""

    step: float
    pass_at_1: float
    pass_at_k: float


def equal_budget_table(runs: Sequence[RunCard], defaults: Defaults | None = None) -> Table:
    """Pass@1 and Pass@K of the methods of a model where each has spent the same, in sampled tokens and in device-hours.

    The budget is the whole cost of the cheapest run of the model. A method counts with the last evaluation point whose
    cost is within it, or at most 1 % above: a validation pass of the run (`val/…`), sampled or exact, or an evaluated
    snapshot (`snapshot/…`). A run with no evaluation point after its first step is listed without numbers.

    Args:
        runs: as of `evaluations.with_snapshots`.
        defaults: as in `report_tables`.
    """
    rows = [
        row
        for model, methods in runs_by_method(runs, defaults).items()
        for budget in BUDGETS
        for row in _rows_at_budget(model, methods, budget)
    ]
    return Table(
        name="equal_budget",
        title="At equal cost of training",
        columns=(*left("Method"), *right("Seeds"), *left("Problems"), *right("K", "Step", "Pass@1", "Pass@K")),
        rows=tuple(rows),
        notes=(
            "Per cent, mean over seeds, at the last evaluation point within the budget, which is the whole cost of the "
            f"model's cheapest run, exceeded by at most {TOLERANCE:.0%}. Evaluation points: validation passes and "
            "evaluated snapshots (apo evaluate checkpoint=all). A dash: the run has none after its first step.",
        ),
    )


def _rows_at_budget(model: str, methods: RunsByMethod, budget: str) -> Iterator[TableRow]:
    found = {run.folder: run_costs(run) for runs in methods.values() for run in runs}
    costs: dict[Path, dict[int, float]] = {
        folder: cost[budget].to_dict() for folder, cost in found.items() if len(cost)
    }
    if len(methods) < 2 or not costs:
        return
    limit = min(max(cost.values()) for cost in costs.values())
    most = (1 + TOLERANCE) * limit
    section = f"{model}, {limit:{FORMATS[budget]}} {budget}"
    for method in in_order(methods, METHODS.values()):
        runs = methods[method]
        points: Mapping[tuple[str, int], list[_Point]] = defaultdict(list)
        for run in runs:
            for key, point in _points(run, costs.get(run.folder, {}), most):
                points[key].append(point)
        if not points:
            yield row_of(method, f"{len(runs)}", "–", *[EMPTY] * 4, section=section)
        for (problems, k), of_runs in points.items():
            _, *shares = np.mean(of_runs, axis=0)
            ends = sorted({end(point.step for point in of_runs) for end in (min, max)})
            steps = " to ".join(f"{step:g}" for step in ends)
            cells = [share_cell(bare(float(share))) for share in shares]
            yield row_of(method, f"{len(of_runs)}", problems, f"{k}", steps, *cells, section=section)


def _points(run: RunCard, cost: Mapping[int, float], limit: float) -> Iterator[tuple[tuple[str, int], _Point]]:
    """The run's last evaluation point within the limit, for each set of problems and its largest k."""
    found = [match for name in run.metrics if (match := EVALUATED.fullmatch(name))]
    for begin, name, exact in dict.fromkeys(match.groups()[:3] for match in found):
        k = max(int(match[4]) for match in found if match[1] == begin)
        measured = run.metrics[[f"{begin}1", f"{begin}{k}"]].dropna()
        if steps := [step for step in measured.index if cost.get(step, math.inf) <= limit]:
            ones, many = measured.loc[max(steps)]
            # Validation draws other samples than an evaluation: the two are not one row.
            kind = ", exact" if exact else ", validation" if begin.startswith("val/") else ""
            yield (benchmark_name(name) + kind, k), _Point(max(steps), ones, many)

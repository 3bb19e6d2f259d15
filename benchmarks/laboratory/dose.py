"""`dominance` level by level: pass@64 at shares of the best single answer's pass@1, and where it falls.

    python -m benchmarks.laboratory.dose

On locks a fall to 90 % is one of 7 points; the base models of `dominance` begin at 94 to 97 %, so both are given.
"""

from typing import Any

import numpy as np
import pandas as pd

from apo_lab.editions.protocol import load_protocol
from apo_lab.reporting.levels import best_single_strategy
from apo_lab.statistics.levels import at_levels
from apo_report.names import METHODS
from benchmarks.laboratory.rows import LAB

SHARES = np.array([0.5, 0.7, 0.8, 0.85, 0.9, 0.93])
"""Of the best single answer's pass@1."""
LOST = 0.07


def passages(points: pd.DataFrame, metric: str, along: str, levels: Any) -> np.ndarray:
    """A metric of one run where another one first reaches each level."""
    return at_levels(points[along].to_numpy(float), points[metric].to_numpy(float), np.atleast_1d(levels))


def main() -> None:
    """Print a row for each share and method."""
    runs = pd.read_csv(LAB / "dominance" / "runs.csv.gz").query("stage == 'main'")
    curves: Any = pd.read_csv(LAB / "dominance" / "curves.csv.gz")
    curves = curves.merge(runs[["world", "method", "seed", "base_pass@64"]], on=["world", "method", "seed"])
    curves["lost"] = -curves["pass@64"]
    heads = [f"{share:g}·d" for share in SHARES]
    print("| d | method |", " | ".join(heads), "| falls below 90 % at | 7 points below its base at |")
    print("|:--|:--|", "--:|" * (len(heads) + 2), sep="")
    for world in load_protocol("dominance").worlds.values():
        best = best_single_strategy(world)
        for method in ("grpo", "grpo_kl", "inverse_frequency", "apo"):
            of_arm = curves[(curves["world"] == world.name) & (curves["method"] == method)]
            rows = []
            for _, points in of_arm.groupby("seed"):
                at = passages(points, "pass@64", "pass@1", SHARES * best)
                falls = [-0.9, LOST - points["base_pass@64"].iloc[0]]
                rows.append([*(100 * at), *(passages(points, "pass@1", "lost", falls) / best)])
            cells = [
                _cell(column, decimals) for column, decimals in zip(np.array(rows).T, [1] * 6 + [2] * 2, strict=True)
            ]
            print(f"| {best:.2f} | {METHODS[method]} |", " | ".join(cells), "|")


def _cell(values: np.ndarray, decimals: int) -> str:
    """The mean of the runs that get there, and how many do if not all."""
    found = values[np.isfinite(values)]
    if not len(found):
        return "–"
    return f"{found.mean():.{decimals}f}" + (f" ({len(found)})" if len(found) < len(values) else "")


if __name__ == "__main__":
    main()

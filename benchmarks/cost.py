"""The seconds that `preflight=true` counts, beside those of real runs.

    python train.py algo=grpo trainer.max_steps=6 hydra.run.dir=/tmp/run     # on an idle machine
    python benchmarks/cost.py /tmp/run [more runs …]

What only a run can tell (lengths, shares with a gradient) is taken from the run; the rates are measured now, with as
many threads as the run had: give both the same OMP_NUM_THREADS. Prints the rates and Markdown, a row a phase.
"""

import argparse
import csv
import statistics
from pathlib import Path

from omegaconf import DictConfig, OmegaConf
from timing import print_header, print_table

from apo_lightning.preflight.cost_plan import CostPlan
from apo_lightning.run.sizes import plan_run, plan_time, rank_layout

BAR = 0.30
SMALL = 0.02
"""Phases below this share of a step are not judged."""


def main() -> None:
    parser = argparse.ArgumentParser(description="Counted and measured seconds of a step, as Markdown.")
    parser.add_argument("runs", nargs="+", type=Path, help="folders of finished runs")
    print_header("Counted and measured seconds of a step")
    rows = []
    for folder in parser.parse_args().runs:
        steps = rows_of(folder)
        cfg = as_it_went(OmegaConf.load(folder / ".hydra" / "config.yaml"), steps)
        cost = plan_time(cfg, plan_run(cfg), rank_layout(cfg))
        print(cost.rates.describe(), end="\n\n")
        rows += compared(folder.name, cost, steps)
    columns = ["run", "phase", "counted [s]", "measured, median [s]", "counted/measured", f"within {BAR:.0%}"]
    print_table(columns, rows)


def rows_of(folder: Path) -> list[dict[str, float]]:
    """The logged steps but the first, which warms up."""
    with (folder / "metrics.csv").open() as file:
        rows = [{key: float(value) for key, value in row.items() if value} for row in csv.DictReader(file)]
    steps = [row for row in rows if "time/update" in row]
    if len(steps) < 3:
        raise SystemExit(f"{folder} has {len(steps)} steps: give a run of at least 3")
    return steps[1:]


def as_it_went(cfg: object, steps: list[dict[str, float]]) -> DictConfig:
    """The run's configuration, with lengths and shares as they were."""
    assert isinstance(cfg, DictConfig)
    mean = {key: statistics.fmean(step[key] for step in steps if key in step) for key in steps[0]}
    failed, right = 1 - mean[f"train/pass@{cfg.group_size}"], mean["train/pass@1"]
    signal = min(1 - mean["train/zero_advantage_fraction"], 1 - failed)
    cfg.expected.prompt_tokens = statistics.fmean(prompt_tokens(cfg, step) for step in steps)
    cfg.expected.completion_tokens = mean["train/completion_tokens"]
    cfg.expected.signal_share = signal
    # What is wrong is wrong in groups that are so throughout, or among right ones.
    cfg.expected.error_share, cfg.expected.failed_share = min(1 - right - failed, signal), failed
    return cfg


def prompt_tokens(cfg: DictConfig, step: dict[str, float]) -> float:
    """Mean length of the prompts of an update, from its positions: the last token of a completion is not one."""
    groups = cfg.prompts_per_step * (1 - step["train/zero_advantage_fraction"])
    completions = cfg.prompts_per_step * cfg.group_size
    tokens = completions * step["train/completion_tokens"] * (1 - step["train/skipped_fraction"])
    positions = step["perf/update_tokens_per_second"] * step["time/update"]
    return (positions - (tokens - groups * cfg.group_size)) / groups


def compared(name: str, cost: CostPlan, steps: list[dict[str, float]]) -> list[list[str]]:
    """A row a phase, and one for the step."""
    phases = {**cost.phases(), "step": cost.seconds}
    whole = statistics.median(step["time/step"] for step in steps)
    rows = []
    for phase, counted in phases.items():
        measured = statistics.median(step[f"time/{phase}"] for step in steps)
        ratio = counted / measured if measured else float("inf")
        judged = "–" if measured < SMALL * whole else "yes" if abs(ratio - 1) <= BAR else "NO"
        rows.append([name, phase, f"{counted:.2f}", f"{measured:.2f}", f"{ratio:.2f}", judged])
    return rows


if __name__ == "__main__":
    main()

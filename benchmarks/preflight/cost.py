"""The seconds that `preflight=true` counts, beside those of real runs.

    python train.py trainer.max_steps=8 hydra.run.dir=/tmp/run \
        +callbacks.rates._target_=benchmarks.preflight.cost_rates.RatesBeside +callbacks.rates.sequence_tokens=54
    python -m benchmarks.preflight.cost /tmp/run [more runs …]

What only a run can tell (lengths, shares with a gradient) is taken from the run, step by step, and so are the rates of
the machine, from before and after each step. Without the callback they are measured now, with as many threads as the
run had: give both the same OMP_NUM_THREADS. Prints the rates and Markdown, a row a phase, with medians over the steps.
"""

import argparse
import csv
import itertools
import json
import math
import statistics
from dataclasses import asdict
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from apo_lightning.preflight.cost_plan import CostPlan
from apo_lightning.preflight.rates import Rates
from apo_lightning.run.sizes import plan_run, plan_time
from benchmarks.preflight.cost_rates import RATES_FILE
from benchmarks.shared.timing import print_header, print_table

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
        plans = plans_of(folder, steps)
        print(median_rates(plans).describe(), end="\n\n")
        rows += compared(folder.name, plans, steps)
    columns = ["run", "phase", "counted [s]", "measured [s]", "counted/measured", f"within {BAR:.0%}"]
    print_table(columns, rows)


def rows_of(folder: Path) -> list[dict[str, float]]:
    """The logged steps but the first, which warms up."""
    with (folder / "metrics.csv").open() as file:
        rows = [{key: float(value) for key, value in row.items() if value} for row in csv.DictReader(file)]
    steps = [row for row in rows if "time/update" in row]
    if len(steps) < 3:
        raise SystemExit(f"{folder} has {len(steps)} steps: give a run of at least 3")
    return steps[1:]


def plans_of(folder: Path, steps: list[dict[str, float]]) -> list[CostPlan]:
    """A plan for each step as it went, by the rates beside it, or by those of now."""
    plans: list[CostPlan] = []
    beside = rates_beside(folder / RATES_FILE)
    for step in steps:
        cfg = as_it_went(OmegaConf.load(folder / ".hydra" / "config.yaml"), step)
        if beside or plans:
            rates = beside[int(step["step"])] if beside else plans[0].rates
            cfg.rates = {"_target_": f"{Rates.__module__}.{Rates.__qualname__}", **asdict(rates)}
        plans.append(plan_time(cfg, plan_run(cfg)))
    return plans


def rates_beside(path: Path) -> dict[int, Rates]:
    """The rates around each step: it is seconds whose mean counts. Empty: the run has not measured any."""
    if not path.exists():
        return {}
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    found = {}
    for step, (before, after) in enumerate(itertools.pairwise(lines), start=1):
        numbers = {
            key: statistics.harmonic_mean([before[key], after[key]]) for key, rate in before.items() if _is_number(rate)
        }
        found[step] = Rates(name=before["name"].replace("measured now", "measured around each step"), **numbers)
    return found


def _is_number(value: object) -> bool:
    """False for a device's name, and for rates that it does not have."""
    return isinstance(value, int | float)


def median_rates(plans: list[CostPlan]) -> Rates:
    """Each rate's median over the steps, to be printed."""
    rates = [asdict(plan.rates) for plan in plans]
    numbers = {
        key: statistics.median(of_step[key] for of_step in rates) for key, rate in rates[0].items() if _is_number(rate)
    }
    return Rates(name=rates[0]["name"], **numbers)


def as_it_went(cfg: object, step: dict[str, float]) -> DictConfig:
    """The run's configuration, with lengths and shares as they were in a step."""
    assert isinstance(cfg, DictConfig)
    failed, right = 1 - step[f"train/pass@{cfg.group_size}"], step["train/pass@1"]
    signal = min(1 - step["train/zero_advantage_fraction"], 1 - failed)
    cfg.expected.prompt_tokens = prompt_tokens(cfg, step)
    cfg.expected.completion_tokens = step["train/completion_tokens"]
    cfg.expected.signal_share, cfg.expected.rank_balance = signal, step["perf/rank_balance"]
    # What is wrong is wrong in groups that are so throughout, or among right ones.
    cfg.expected.error_share, cfg.expected.failed_share = min(1 - right - failed, signal), failed
    return cfg


def prompt_tokens(cfg: DictConfig, step: dict[str, float]) -> float | None:
    """Mean length of the prompts of an update, from its positions: the last token of a completion is not one.

    None, the longest allowed, in a step without a signal, whose update has no positions.
    """
    groups = cfg.prompts_per_step * (1 - step["train/zero_advantage_fraction"])
    if not groups:
        return None
    completions = cfg.prompts_per_step * cfg.group_size
    tokens = completions * step["train/completion_tokens"] * (1 - step["train/skipped_fraction"])
    positions = step["perf/update_tokens_per_second"] * step["time/update"]
    return (positions - (tokens - groups * cfg.group_size)) / groups


def compared(name: str, plans: list[CostPlan], steps: list[dict[str, float]]) -> list[list[str]]:
    """A row a phase, and one for all of them; a phase that a step did not have counts 0 there."""
    phases = list(dict.fromkeys(phase for plan in plans for phase in plan.phases()))
    pairs = {
        phase: [(plan.phases().get(phase, 0.0), step[f"time/{phase}"]) for plan, step in zip(plans, steps, strict=True)]
        for phase in phases
    }
    pairs["together"] = [tuple(map(sum, zip(*of_step, strict=True))) for of_step in zip(*pairs.values(), strict=True)]
    whole = statistics.median(seconds for _, seconds in pairs["together"])
    rows = []
    for phase, of_phase in pairs.items():
        ratios = [count / seconds for count, seconds in of_phase if seconds]
        ratio = statistics.median(ratios) if ratios else math.nan
        count, measured = (statistics.median(column) for column in zip(*of_phase, strict=True))
        judged = "–" if measured < SMALL * whole else "yes" if abs(ratio - 1) <= BAR else "NO"
        rows.append([name, phase, f"{count:.2f}", f"{measured:.2f}", f"{ratio:.2f}", judged])
    return rows


if __name__ == "__main__":
    main()

"""Hours of the paper's runs on eight cards, counted as `preflight=true` counts them, and what takes most of a step.

    python -m benchmarks.preflight.paper_hours [any override of train.py, such as rates=h200]

Sizes of the models are given here, so that nothing is downloaded. What the plan supposes of lengths and shares is in
configs/experiment/paper/base.yaml. Prints Markdown: a table of all runs, and of one of them what its time is bound by
and its largest items, as it is set and with the proposals; half a minute.
"""

import json
import sys
import tempfile
from pathlib import Path

from benchmarks import CONFIGS
from benchmarks.shared.models import LLAMA3B, QWEN7B
from benchmarks.shared.timing import print_header, print_table
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig

from apo_lightning.preflight.alternatives import Alternative, alternatives
from apo_lightning.preflight.cost_plan import CostPlan
from apo_lightning.rollout.kv_cache import FILLED
from apo_lightning.run.sizes import plan_run, plan_time, rank_layout

SHAPES = {"llama3b": LLAMA3B, "qwen7b": QWEN7B, "qwen_math7b": QWEN7B}
SHOWN = "qwen7b_apo"
"""The run whose items are listed."""


def main() -> None:
    overrides = sys.argv[1:]
    runs = [path.stem for path in (CONFIGS / "experiment" / "paper").glob("*.yaml") if path.stem != "base"]
    print_header("The paper's runs, counted")
    rows, shown = [], None
    with tempfile.TemporaryDirectory() as folder, initialize_config_dir(str(CONFIGS), version_base="1.3"):
        for run in sorted(runs, key=lambda run: (run.startswith("sensitivity"), run)):
            cfg = composed(run, Path(folder), overrides)
            cost, best = counted(cfg)
            rows.append(row(run, cfg, cost, best))
            shown = (cost, best.cost) if run == SHOWN else shown
    columns = [
        "run",
        "a step [s]",
        "steps",
        "hours",
        "GPU-hours",
        "with preflight's proposals [s]",
        "hours",
        "GiB",
    ]
    print_table(columns, rows)
    if shown is not None:
        print_details(*shown)


def print_details(cost: CostPlan, best: CostPlan) -> None:
    """What one run is bound by, and its ten largest items, as it is set and with the proposals."""
    print(f"\n{SHOWN}\n\n{cost.work.describe()}\n{cost.rates.describe()}\n")
    bounds = list(dict.fromkeys(item.bound for item in cost.items))
    rows = []
    for bound in bounds:
        seconds = [sum(item.seconds for item in plan.items if item.bound == bound) for plan in (cost, best)]
        rows.append([bound, *(f"{part:.1f}" for part in seconds)])
    print_table(["bound by", "as it is set [s]", "with the proposals [s]"], rows)
    for name, plan in (("as it is set", cost), ("with the proposals", best)):
        print(f"\nthe ten largest items of {plan.seconds:.0f} s, {name}\n")
        items = [[item.phase, item.name, f"{item.seconds:.1f}", item.bound] for item in plan.largest(10)]
        print_table(["phase", "item", "seconds", "bound by"], items)


def composed(run: str, folder: Path, overrides: list[str]) -> DictConfig:
    """The run with a model folder that holds nothing but sizes."""
    of = "qwen_math7b" if run.startswith("sensitivity") else run
    name = max((name for name in SHAPES if of.startswith(name)), key=len)
    place = folder / name
    place.mkdir(exist_ok=True)
    (place / "config.json").write_text(json.dumps(SHAPES[name]))
    return compose("train", [f"experiment=paper/{run}", f"model.path={place}", *overrides])


def counted(cfg: DictConfig) -> tuple[CostPlan, Alternative]:
    """The run as it is set, and the fastest of the proposals that a GPU has room for."""
    plan, ranks = plan_run(cfg), rank_layout(cfg)
    cost = plan_time(cfg, plan, ranks)
    found = alternatives(plan.model, plan.run, cost.work, cost.rates, engine_key="engine")
    fitting = [other for other in found if other.memory.peak <= FILLED * plan.run.gpu_bytes]
    return cost, min(fitting, key=lambda other: other.cost.seconds)


def row(run: str, cfg: DictConfig, cost: CostPlan, best: Alternative) -> list[str]:
    steps, ranks = cfg.trainer.max_steps, rank_layout(cfg).world_size
    hours, fewer = (seconds * steps / 3600 for seconds in (cost.seconds, best.cost.seconds))
    memory = f"{best.memory.peak / 2**30:.0f}"
    return [
        *(run, f"{cost.seconds:.0f}", str(steps), f"{hours:.1f}", f"{hours * ranks:.0f}"),
        *(f"{best.cost.seconds:.0f}", f"{fewer:.1f}", memory),
    ]


if __name__ == "__main__":
    main()

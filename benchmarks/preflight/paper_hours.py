"""Hours of the paper's runs on eight GPUs, counted as `preflight=true` counts them, and the largest items of one run.

    python -m benchmarks.preflight.paper_hours [any override of train.py, such as rates=h100 or old_logprobs=rollout]

Sizes of the models are given here, so that nothing is downloaded. Assumed lengths and shares are those of
configs/experiment/paper/base.yaml. Prints Markdown: a table of all runs, and for one of them its time by bound and its
ten largest items; half a minute.
"""

import json
import sys
import tempfile
from pathlib import Path

from hydra import compose, initialize_config_dir
from omegaconf import DictConfig

from apo_lightning.preflight.cost_plan import CostPlan
from apo_lightning.run.sizes import Plan, plan_run, plan_time
from benchmarks import CONFIGS
from benchmarks.shared.models import LLAMA3B, QWEN7B
from benchmarks.shared.timing import print_header, print_table

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
            plan = plan_run(cfg)
            cost = plan_time(cfg, plan)
            rows.append(row(run, cfg, plan, cost))
            shown = cost if run == SHOWN else shown
    print_table(["run", "a step [s]", "steps", "hours", "GPU-hours", "GiB"], rows)
    if shown is not None:
        print_details(shown)


def print_details(cost: CostPlan) -> None:
    """The time of one run by bound, and its ten largest items."""
    print(f"\n{SHOWN}\n\n{cost.work.describe()}\n{cost.rates.describe()}\n")
    seconds: dict[str, float] = {}
    for item in cost.items:
        seconds[item.bound] = seconds.get(item.bound, 0.0) + item.seconds
    print_table(["bound by", "seconds"], [[bound, f"{part:.1f}"] for bound, part in seconds.items()])
    print(f"\nthe ten largest items of {cost.seconds:.0f} s\n")
    items = [[item.phase, item.name, f"{item.seconds:.1f}", item.bound] for item in cost.largest(10)]
    print_table(["phase", "item", "seconds", "bound by"], items)


def composed(run: str, folder: Path, overrides: list[str]) -> DictConfig:
    """The run with a model folder that holds nothing but sizes."""
    of = "qwen_math7b" if run.startswith("sensitivity") else run
    name = max((name for name in SHAPES if of.startswith(name)), key=len)
    place = folder / name
    place.mkdir(exist_ok=True)
    (place / "config.json").write_text(json.dumps(SHAPES[name]))
    return compose("train", [f"experiment=paper/{run}", f"model.path={place}", *overrides])


def row(run: str, cfg: DictConfig, plan: Plan, cost: CostPlan) -> list[str]:
    steps, ranks = cfg.trainer.max_steps, plan.ranks.world_size
    hours, memory = cost.seconds * steps / 3600, plan.memory.peak / 2**30
    return [run, f"{cost.seconds:.0f}", str(steps), f"{hours:.1f}", f"{hours * ranks:.0f}", f"{memory:.0f}"]


if __name__ == "__main__":
    main()

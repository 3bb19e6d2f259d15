"""Published tables of a laboratory's edition from simulated paths, for tests of its page and of its verdicts."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from apo_lab.editions.protocol import AVERAGED, Protocol, averages_of, method_of
from apo_lab.editions.tuning import TUNING, chosen
from apo_lab.statistics.exact import exact_pass_at_k
from apo_lab.statistics.paths import (
    at_passage,
    last_leave_one_block_out,
    leave_one_block_out,
    locked_share,
    passage,
)
from apo_lightning.model.average import PARTS

POINTS, PROBLEMS, SAMPLES = 12, 64, 512
KS = (1, 8, 64)


def write_tables(folder: Path, protocol: Protocol, losses: dict[str, float], registration: str, **changes: Any) -> Path:
    """Write `runs.csv.gz` and `curves.csv.gz` of all runs of a protocol whose method or arm is in `losses`.

    Args:
        folder: gets the files.
        protocol: its stage `tuning` comes first, if it has one.
        losses: method or arm → how fast it loses problems that it does not gain; an average loses a third of it. A
            configuration with a larger coefficient loses a little more.
        registration: of all rows.
        changes: `stages` to write, if not all; `seeds`, the most of each world.
    """
    runs: list[dict[str, Any]] = []
    curves: list[dict[str, Any]] = []
    for stage in protocol.stages:
        if stage.name not in changes.get("stages", [stage.name]):
            continue
        choice = chosen(protocol, pd.DataFrame(runs)) if runs and stage.name != TUNING else {}
        for world, seeds in stage.seeds.items():
            family = protocol.worlds[world].family
            arms = {method: [choice[method, family].variant] for method in stage.methods if (method, family) in choice}
            if stage.name == TUNING:
                arms = {m: [arm.variant for arm in protocol.tuned[m].arms(family)] for m in stage.methods}
            arms |= {arm: [""] for arm in stage.arms}
            averages = {m + AVERAGED: v for m, v in arms.items() if stage.is_averaged}
            averages |= {name: arms[m] for m in stage.averaged_by_part for name in averages_of(m, PARTS[1:])[1:]}
            for name, variants in (arms | averages).items():
                if method_of(name) not in losses:
                    continue
                for place, variant in enumerate(variants):
                    loss = losses[method_of(name)] * (1 / 3 if AVERAGED in name else 1)
                    for seed in seeds[: changes.get("seeds")]:
                        key = {"world": world, "method": name, "variant": variant, "seed": seed}
                        run, curve = _run(loss + 0.02 * place, protocol.worlds[world].level, key)
                        runs.append({**key, "stage": stage.name, **run, "registration": registration})
                        curves += curve
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in (("runs", runs), ("curves", curves)):
        pd.DataFrame(rows).to_csv(folder / f"{name}.csv.gz", index=False)
    return folder


def success_of(loss: float, seed: int, world: str) -> torch.Tensor:
    """p of each problem at each evaluation point: half of them rise, and the others fall by `loss` a point [log]."""
    problems, noise = np.random.default_rng(len(world)), np.random.default_rng([seed, *world.encode()])
    start = problems.normal(-2.2, 0.5, PROBLEMS)
    rises = np.where(np.arange(PROBLEMS) % 2 == 0, 0.35, -loss) * noise.normal(1.0, 0.03)
    steps = np.arange(POINTS)[:, None]
    jitter = noise.normal(0, 0.05, (POINTS, PROBLEMS)) * (steps > 0)
    return torch.from_numpy(1 / (1 + np.exp(-(start + rises * steps + jitter))))


def _run(loss: float, level: float, key: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    success = success_of(loss, key["seed"], key["world"])
    passes = {k: exact_pass_at_k(success, k).mean(1) for k in KS}
    is_average = AVERAGED in key["method"]
    many = exact_pass_at_k(success, 64)
    # APO forgets what GRPO locks.
    jitter = np.random.default_rng(key["seed"]).uniform(-0.1, 0.1, PROBLEMS)
    share = torch.from_numpy((0.25 if "apo" in key["method"] else 0.75) + jitter)
    lost = {"locked": share * (many - many[0]).clamp(max=0), "forgotten": (1 - share) * (many - many[0]).clamp(max=0)}
    lost |= {"opened": (many - many[0]).clamp(min=0), "learnt": torch.zeros_like(many)}
    curve = [
        {
            **key,
            "step": 2 * (POINTS - 1) if is_average else 2 * place,
            "base_weight": 1 - place / (POINTS - 1) if is_average else None,
            **{f"pass@{k}": passes[k][place].item() for k in KS},
            **{name: part[place].mean().item() for name, part in lost.items()},
            "entered": many[place].mean().item(),
            "entered@64": 3 * many[place].mean().item(),
            "forced_pass@1": success[place].mean().item(),
            "alive": 1 - 0.05 * loss * place,
            "strategy_entropy": 2 - loss * place / POINTS,
            "tokens_sampled": SAMPLES * 2 * place,
            "tokens_trained": (3 if "apo" in key["method"] else 2) * SAMPLES * place,
            "seconds": (1.5 if "apo" in key["method"] else 1.0) * place,
        }
        for place in range(POINTS)
    ]
    ends = {name: value for name, value in curve[-1].items() if name not in (*key, "step", "base_weight")}
    run: dict[str, Any] = {**ends, "steps": 2 * (POINTS - 1), "level": level, "reached": passes[1].max().item()}
    for name, k in (("area", 64), ("area_8", 8)):
        found = leave_one_block_out(success, k, level)
        run[name] = found[0].item()
        if name == "area":
            run |= {f"area_without_{block}": value for block, value in enumerate(found[1:].tolist())}
    last = last_leave_one_block_out(success, 64)
    run |= {f"last_without_{block}": value for block, value in enumerate(last[1:].tolist())}
    run |= {f"base_pass@{k}": passes[k][0].item() for k in KS}
    at_level = {
        "passage": passage(success, 64, level),
        "entered": at_passage(success, many, level),
        "locked_share": locked_share(success, lost["locked"], lost["forgotten"], level),
    }
    for name, values in at_level.items():
        if values is not None:
            run |= {f"{name}_without_{block}": value for block, value in enumerate(values[1:].tolist())}
            run[name] = values[0].item()
    return run, curve

"""How even ranks are, and the seconds of an update, with groups by position and with groups balanced.

    python -m benchmarks.performance.rank_balance [--ranks 2,8] [--rounds 2] [any override of train.py]

Runs of `train.py` over CPU processes on the same rollouts: a random model whose completions end anywhere, and a reward
that gives 60 % of the groups a signal. The two kinds take turns. One process runs the same, and rollouts and metrics
of the first step are compared with its own. Prints Markdown; some minutes of two cores. More processes than cores share
the cores, so their seconds show the work and not the waiting.
"""

import argparse
import hashlib
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import lightning.pytorch as pl

from apo_lightning.step import assignment
from apo_lightning.step.balance import Balance, RankCosts
from benchmarks import ROOT
from benchmarks.shared.runs import even_start, rows_of, write_stub
from benchmarks.shared.timing import print_header, print_table

SIZES = (
    *("model=tiny", "model.config.hidden_size=128", "model.config.intermediate_size=512"),
    *("model.config.num_hidden_layers=4", "model.config.num_attention_heads=4", "model.config.num_key_value_heads=4"),
    *(
        "engine=transformers",
        "callbacks=rollout_writer",
        "data=dapo17k",
        "data.validation=null",
        "data.num_validation=0",
    ),
    *("data.max_completion_tokens=128", "prompts_per_step=32", "prompts_per_minibatch=16", "group_size=8"),
    *("tokens_per_microbatch=2048", "trainer.max_steps=2", "scored_fraction=0", "seed=2"),
    *("reward=callable", "reward.function._target_=benchmarks.performance.rank_balance.three_fifths"),
)
BY_POSITION = "+callbacks.off._target_=benchmarks.performance.rank_balance.ByPosition"


def three_fifths(completions: list[str], answer: list[str], **columns: object) -> list[float]:
    """A reward that a random model gets half of the time for three problems of five, and never for the others."""
    has_signal = [hashlib.sha256(gold.encode()).digest()[0] % 5 < 3 for gold in answer]
    return [reward * signal for reward, signal in zip(even_start(completions), has_signal, strict=True)]


def by_position(ranks: Sequence[RankCosts], num_minibatches: int) -> Balance:
    """What runs stays where it was sampled."""
    mean = most = 0.0
    for minibatch in range(num_minibatches):
        tokens = [_tokens(costs, minibatch, num_minibatches) for costs in ranks]
        mean, most = mean + sum(tokens) / len(tokens), most + max(tokens)
    destinations = [[rank] * len(costs.lengths) for rank, costs in enumerate(ranks)]
    return Balance(destinations=destinations, ratio=mean / most if most else math.nan)


def _tokens(costs: RankCosts, minibatch: int, num_minibatches: int) -> int:
    prompts = len(costs.prompt_lengths) // num_minibatches
    group_size = len(costs.lengths) // len(costs.prompt_lengths)
    total = 0
    for p in range(minibatch * prompts, (minibatch + 1) * prompts):
        lengths = [costs.lengths[b] for b in range(p * group_size, (p + 1) * group_size) if costs.runs[b]]
        total += sum(lengths) + costs.prompt_lengths[p] * bool(lengths)
    return total


class ByPosition(pl.Callback):
    """Takes the balance out of a run."""

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        assignment.balanced = by_position


def run(folder: Path, num_ranks: int, overrides: Sequence[str]) -> list[dict[str, str]]:
    """The steps of one run, in so many processes."""
    trainer = ["trainer=cpu"]
    if num_ranks > 1:
        trainer = ["trainer=fsdp_cpu2", f"trainer.devices={num_ranks}"]
        trainer += [f"trainer.strategy.data_parallel_size={num_ranks}"]
    subprocess.run(
        [sys.executable, "train.py", *SIZES, *trainer, *overrides, f"hydra.run.dir={folder}"],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        check=True,
    )
    return rows_of(folder)


def completions(folder: Path) -> list[tuple[str, str, float]]:
    """Of the first step."""
    rows = (json.loads(line) for path in (folder / "rollouts").glob("step_000001*.jsonl") for line in path.open())
    return sorted((row["problem"], row["completion"], row["reward"]) for row in rows)


def num_different(folder: Path, alone: Path) -> str:
    """Of a first step. Later ones sample from weights that were rounded otherwise, which can turn a token."""
    ours, theirs = completions(folder), completions(alone)
    return f"{sum(one != other for one, other in zip(ours, theirs, strict=True))} of {len(theirs)}"


def largest_difference(ours: dict[str, str], theirs: dict[str, str]) -> str:
    """Of the first step's training metrics, relative to those of one process or to 1e-3, whichever is larger."""
    pairs = {
        name: (float(ours[name] or "nan"), float(theirs[name] or "nan"))
        for name in ours
        if name.startswith(("train/", "apo/"))
    }
    found = {name: abs(one - other) / max(1e-3, abs(other)) for name, (one, other) in pairs.items() if one == one}
    name = max(found, key=lambda name: found[name])
    return f"{found[name]:.0e} ({name})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", default="2,8")
    parser.add_argument("--rounds", type=int, default=2)
    given, overrides = parser.parse_known_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        overrides = [f"data.path={write_stub(Path(folder) / 'stub.jsonl')}", *overrides]
        alone = run(Path(folder) / "alone", 1, overrides)
        for num_ranks in map(int, given.ranks.split(",")):
            seconds: dict[str, list[float]] = {"by position": [], "balanced": []}
            for number in range(given.rounds):
                for kind, times in seconds.items():
                    place = Path(folder) / f"{num_ranks}_{kind.replace(' ', '_')}_{number}"
                    off = [BY_POSITION] if kind == "by position" else []
                    steps = run(place, num_ranks, [*overrides, *off])
                    times += [float(step["time/update"]) for step in steps]
                    ratio = statistics.mean(float(step["perf/rank_balance"]) for step in steps)
                    if number == 0:
                        differing = num_different(place, Path(folder) / "alone")
                        difference = largest_difference(steps[0], alone[0])
                        rows.append([str(num_ranks), kind, f"{ratio:.2f}", "", differing, difference])
            for row, times in zip(rows[-2:], seconds.values(), strict=True):
                row[3] = f"{statistics.median(times):.2f}"
    print_header("Even ranks", "lightning")
    print_table(
        [
            "ranks",
            "groups",
            "rank_balance",
            "update, s (median)",
            "rollouts, to one process",
            "metrics, to one process",
        ],
        rows,
    )


if __name__ == "__main__":
    main()

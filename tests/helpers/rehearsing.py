"""Samples of a random model on the problems that `running.RUN` trains on, as `apo evaluate` writes them."""

from pathlib import Path

from apo_lightning.run import evaluate
from composing import composed

SOURCE = "benchmark.arithmetic.source"
SAMPLED = (
    *("model=tiny", "engine=transformers", "num_samples=4", "token_statistics=false"),
    *(f"{SOURCE}.max_operand=20", f"{SOURCE}.num_validation=120", "benchmark.arithmetic.num_problems=120"),
    "benchmark.arithmetic.reward._target_=apo_lightning.rewards.CallableReward",
    "~benchmark.arithmetic.reward.take",
    "+benchmark.arithmetic.reward.correct_threshold=1.0",
    "+benchmark.arithmetic.reward.function._target_=rewarding.even_start",
    "+benchmark.arithmetic.reward.function._partial_=true",
)
"""Held out there and trained on here, but for the few that a run holds out itself."""


def base_samples(folder: Path, *overrides: str) -> Path:
    """A folder with `samples.jsonl`, of which about half are correct."""
    evaluate(composed(*SAMPLED, f"output_dir={folder}", *overrides, config_name="evaluate"))
    return folder / "arithmetic"

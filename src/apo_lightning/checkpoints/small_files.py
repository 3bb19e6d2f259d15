"""The small files of a checkpoint: plain data that is read back without running any code."""

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from apo_lightning.checkpoints.writing import Written
from apo_lightning.types import Completion, Prompt, Rollouts, SamplingRounds, Verdict

TENSORS = "tensors"
"""The folder of the large tensors."""
SHARED = "shared.pt"
"""The file of the state that is equal on all ranks."""
HISTORY = "history.json"
"""The file of what the run has seen of each prompt, where an advantage reads it."""


def rank_file(rank: int) -> str:
    """The name of the file with the state of one rank."""
    return f"rank_{rank:05d}.pt"


def save_plain(content: Any, path: Path, written: Written) -> None:
    """Save numbers, strings, lists, dicts and tensors."""
    with written.open(path) as file:
        torch.save(content, file)


def load_plain(path: Path) -> Any:
    """Load from `save_plain`; runs no code from the file."""
    return torch.load(path, weights_only=True, map_location="cpu")


def rollouts_to_plain(rollouts: Rollouts) -> dict[str, Any]:
    """Rollouts as plain data, without the data set's columns: their values may be of any type."""

    def stripped(part: Rollouts) -> Rollouts:
        return replace(part, prompts=tuple(replace(prompt, columns={}) for prompt in part.prompts))

    if rollouts.rounds is not None:
        rollouts = replace(rollouts, rounds=replace(rollouts.rounds, first=stripped(rollouts.rounds.first)))
    return asdict(stripped(rollouts))


def rollouts_from_plain(plain: Mapping[str, Any]) -> Rollouts:
    """Rebuild rollouts from `rollouts_to_plain` of them."""
    rounds = plain.get("rounds")
    if rounds is not None:
        rounds = SamplingRounds(**{**rounds, "first": rollouts_from_plain(rounds["first"])})
    records = {
        "rounds": rounds,
        "prompts": tuple(Prompt(**prompt) for prompt in plain["prompts"]),
        "completions": tuple(Completion(**completion) for completion in plain["completions"]),
        "verdicts": tuple(Verdict(**verdict) for verdict in plain["verdicts"]),
    }
    return Rollouts(**{**plain, **records})

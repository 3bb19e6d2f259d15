"""The small files of a checkpoint: plain data that runs no code when read."""

import pickle
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from apo_lightning.errors import ConfigError
from apo_lightning.types import Completion, Prompt, Rollouts, SamplingRounds, Verdict

SHARED = "shared.pt"
"""The file of the state that is equal on all ranks."""


def rank_file(rank: int) -> str:
    """The name of the file with the state of one rank."""
    return f"rank_{rank:05d}.pt"


def save_plain(content: Any, path: Path) -> None:
    """Save numbers, strings, lists, dicts and tensors."""
    with path.open("wb") as file:  # given a path, torch reports a full disk as an error of its zip writer
        torch.save(content, file)


def load_plain(path: Path) -> Any:
    """Load from `save_plain`; raises `ConfigError` for a file with more than plain data, and runs nothing of it."""
    try:
        return torch.load(path, weights_only=True, map_location="cpu")
    except pickle.UnpicklingError as error:
        raise ConfigError(f"{path} holds more than plain data, so it is not read: resume another checkpoint") from error


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

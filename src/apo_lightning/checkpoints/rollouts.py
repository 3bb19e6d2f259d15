"""Rollouts that a stopped run had sampled and not yet learnt from, as plain data."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from apo_lightning.types import Completion, Prompt, Rollouts, Verdict


def to_plain(rollouts: Rollouts) -> dict[str, Any]:
    """Numbers, strings, lists and dicts: what is read back without running any code."""
    return asdict(rollouts)


def from_plain(plain: Mapping[str, Any]) -> Rollouts:
    """The rollouts that `to_plain` was given."""
    return Rollouts(
        step=plain["step"],
        prompts=tuple(Prompt(**prompt) for prompt in plain["prompts"]),
        completions=tuple(Completion(**completion) for completion in plain["completions"]),
        texts=tuple(plain["texts"]),
        verdicts=tuple(Verdict(**verdict) for verdict in plain["verdicts"]),
        group_size=plain["group_size"],
        policy_version=plain["policy_version"],
        num_preempted=plain.get("num_preempted", 0),  # absent from checkpoints that are older than the count
    )

"""The steps of a run after a checkpoint, trained again from it, and compared with the completions and numbers there."""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from apo_lightning.checkpoints.contents import load_tensors
from apo_lightning.checkpoints.folder import TENSORS, Checkpoint
from apo_lightning.checkpoints.resume import HORIZON
from apo_lightning.checkpoints.run_state import policy_tensors
from apo_lightning.common.checks import DiffersError, require_alike
from apo_lightning.errors import ConfigError
from apo_lightning.evaluation.scoring import require_likely
from apo_lightning.run.exporting import untrained_policy
from apo_lightning.run.training import train
from apo_lightning.run.verified_run import Line, Subject, ids_of, name_of, read_lines, read_rows

ROUNDING = 1e-3
"""How far numbers of a step may differ on another machine, relative and absolute."""
UPDATE_ROUNDING = 0.01
"""How far the norm of an update by the same completions may differ on another machine, relative."""
NOT_AGAIN = ("time/", "perf/")
"""Metrics that depend on the clock."""


def training(subject: Subject) -> str:
    """Completions, metrics and, where a checkpoint follows, weights."""
    if not subject.cfg.steps:
        raise ConfigError("not asked: give steps=1")
    last, by_step = max(subject.steps), {checkpoint.header.step: checkpoint for checkpoint in subject.checkpoints}
    start = by_step.get(max((step for step in by_step if step < last), default=-1))
    if start is None:
        raise ConfigError("the folder has no checkpoint from before the last step")
    end = min(start.header.step + subject.cfg.steps, last)
    weights, steps, rollouts = _train_again(subject, start, end)
    is_exact, num_completions, num_values = True, 0, 0
    for step in range(start.header.step + 1, end + 1):
        if step in subject.rollouts:
            is_exact &= rollouts[step] == subject.rollouts[step]
            num_completions += _require_same_completions(subject, start, subject.rollouts[step], rollouts[step])
        there = {key: value for key, value in subject.steps[step].items() if not key.startswith(NOT_AGAIN)}
        here = {key: steps[step].get(key) for key in there}
        num_values += require_alike(there, here, f"step {step}: ", tolerance=ROUNDING)
        is_exact &= repr(there) == repr(here)  # NaN is not equal to itself
    if end in by_step:
        is_exact &= _require_same_weights(weights, start, by_step[end])
    of_weights = "the weights of" if end in by_step else "no weights, as no checkpoint is of"
    how = "to the bit" if is_exact else "within rounding"
    return f"{how}: {num_completions} completions, {num_values} metrics, {of_weights} step {end}"


def _train_again(
    subject: Subject, start: Checkpoint, end: int
) -> tuple[Mapping[str, Tensor], Mapping[int, Mapping[str, float]], Mapping[int, Sequence[Line]]]:
    """The weights, and the row and completions of each step."""
    cfg, folder = subject.settings.copy(), subject.scratch / "again"
    cfg.resume, cfg.schedule_horizon, cfg.trainer.max_steps = str(start.folder), start.header.config[HORIZON], end
    module = train(cfg, folder)
    rows = {int(row["step"]): row for row in read_rows(folder / "metrics.csv") if "train/reward" in row}
    files = {int(path.stem.removeprefix("step_")): path for path in folder.glob("rollouts/step_*.jsonl")}
    return policy_tensors(module.policy), rows, {step: read_lines(path) for step, path in files.items()}


def _require_same_completions(subject: Subject, start: Checkpoint, there: Sequence[Line], here: Sequence[Line]) -> int:
    """Compare completions that were sampled under the same seeds.

    Rounding may sample another token. What differs by that is as likely under the policy as its engine said.
    """
    other = []
    for line, own in zip(there, here, strict=True):
        if line["completion"] != own["completion"]:
            other.append(line)
            continue
        require_alike(line, own, f"{name_of(line)}: ", tolerance=ROUNDING)
    if other:
        policy = untrained_policy(subject.run).eval()
        load_tensors(policy_tensors(policy), start.folder / TENSORS)
        require_likely(
            policy,
            [subject.prompts[line["prompt_id"]] for line in other],
            [ids_of(policy.tokenizer, line, "completion") for line in other],
            [-line["mean_surprisal"] * line["num_tokens"] for line in other],
            temperature=subject.settings.temperature,
            names=[*map(name_of, other)],
        )
        raise ConfigError(
            f"{len(other)} of {len(there)} completions of step {there[0]['step']} are sampled differently here, "
            "each as likely as the folder says, so rounding on another machine explains it"
        )
    return len(there)


def _require_same_weights(here: Mapping[str, Tensor], start: Checkpoint, after: Checkpoint) -> bool:
    """Compare trained weights; True: they are equal to the bit."""
    before, there = ({name: torch.zeros_like(tensor) for name, tensor in here.items()} for _ in range(2))
    load_tensors(before, start.folder / TENSORS)
    load_tensors(there, after.folder / TENSORS)
    update, distance = (
        math.sqrt(sum(float((there[name] - tensor).double().square().sum()) for name, tensor in others.items()))
        for others in (before, here)
    )
    if not distance <= UPDATE_ROUNDING * update:
        name = max(here, key=lambda name: float((there[name] - here[name]).abs().max()))
        raise DiffersError(
            f"the weights of {after.folder.name} are {distance:.3g} from those made again, after an update of "
            f"{update:.3g}; most in {name}"
        )
    return all(torch.equal(there[name], tensor) for name, tensor in here.items())

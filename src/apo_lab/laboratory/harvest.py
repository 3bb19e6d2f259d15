"""A finished run's folder, and the decodings of its last policy → rows in the published tables."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from omegaconf import DictConfig, OmegaConf
from torch import Tensor

from apo_lab.editions.protocol import ALIKE, AVERAGED, DECODED, DECODINGS, ENDPOINTS, SPLIT
from apo_lab.laboratory.jobs import Job
from apo_lab.laboratory.published import COST, ENTRANCES, KEY, POINT, Rows
from apo_lab.statistics.entrances import Entrances, change_of_pass_at_k
from apo_lab.statistics.exact import exact_pass_at_k
from apo_lab.statistics.paths import (
    Sets,
    at_passage,
    last_leave_one_block_out,
    leave_one_block_out,
    locked_share,
    passage,
)
from apo_lightning.common.identity import sha256_of, sha256_of_file

K = 64
"""Samples of a problem."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyPath:
    """A path of policies through the plane of pass@1 and pass@64."""

    points: Sequence[Mapping[str, float]]
    """The metrics of each policy; `POINT` and `step`."""
    success: Float[Tensor, "points problems"]
    """p(x) of each policy."""
    entrances: Sequence[Entrances]
    """Of each policy."""
    costs: pd.DataFrame
    """`COST` until each point, indexed by step."""

    def lost(self, base: Entrances) -> dict[str, Float[Tensor, "points problems"]]:
        """By point and problem: the share of entrances that K samples take, and `Change.signed`."""
        count = base.summed(torch.ones_like(base.mass)).clamp(min=1)
        entered = [own.summed(own.values(K)[f"entered@{K}"]) / count for own in self.entrances]
        changes = [change_of_pass_at_k(base, own, K).signed() for own in self.entrances]
        parts = {name: torch.stack([base.summed(change[name]) for change in changes]) for name in changes[0]}
        return {"entered": torch.stack(entered), **parts}


def harvest(job: Job, cfg: DictConfig, identity: Mapping[str, str]) -> Rows:
    """Read what a run and the decodings of its last policy left; `identity` is commit and registration."""
    exact = job.folder / "exact"
    path = _path(exact, exact / "answers.json", _costs(job.folder / "metrics.csv"))
    common = {
        **identity,
        "stage": job.stage,
        "level": job.world.level,
        "config_sha256": config_sha256(cfg),
        "base_sha256": sha256_of_file(next(job.base.glob("*/model.safetensors"))) if job.world.base else "",
        "weights_sha256": sha256_of_file(job.folder / "checkpoints" / "final" / "model.safetensors"),
    }
    key: dict[str, Any] = dict(zip(KEY, job.key, strict=True))
    own, curve = _rows(path, path, job.world.level, with_area=True)
    rows = Rows(runs=[{**key, **common, **own}], curves=[{**key, **row} for row in curve])
    decoded, end = {"": path}, {"step": path.points[-1]["step"], **path.costs.iloc[-1]}
    for name, settings in job.decodings.items():
        decoded[name] = _path(job.folder / "decodings" / name.removeprefix("+"), exact / "answers.json", path.costs)
        after = {**key, "method": key["method"] + name}
        of_decoding, curve = _rows(decoded[name], path, job.world.level, with_area=name == AVERAGED)
        is_temperature = name.endswith("temperature")
        # As in the published tables: a path over temperatures has their number as its steps.
        rows.runs.append({**after, **common, **of_decoding, **({} if is_temperature else {"steps": own["steps"]})})
        column = "temperature" if is_temperature else "base_weight"
        rows.curves.extend(
            {**after, **row, **end, column: setting} for row, setting in zip(curve, settings, strict=True)
        )
    if job.is_decoded:
        plain = {name: value for name, value in own.items() if not name.startswith(ENDPOINTS)}
        for name, values in _of_menu(decoded, job.world.level).items():
            after = {**key, "method": key["method"] + name}
            rows.runs.append({**after, **common, **plain, "passage": values[0].item(), **_without("passage", values)})
    return rows


def _of_menu(decoded: Mapping[str, PolicyPath], level: float) -> dict[str, Sets]:
    """pass@64 at `level` with half of the samples from the base model, and the highest of all `DECODINGS`.

    Of the half, pass@1 is that of the policy, whose sample is the first. What does not reach the level is left out.
    """
    success = decoded[""].success
    own, of_base = (1 - exact_pass_at_k(each, K // 2) for each in (success, success[:1]))
    alike = [passage(path.success, K, level) for name, path in decoded.items() if name in DECODINGS]
    split = at_passage(success, 1 - own * of_base, level)
    found = {SPLIT: split, ALIKE: _highest(alike), DECODED: _highest([*alike, split])}
    return {name: values for name, values in found.items() if values is not None}


def _highest(values: Sequence[Sets | None]) -> Sets | None:
    known = [each for each in values if each is not None]
    return torch.stack(known).amax(0) if known else None


def config_sha256(cfg: DictConfig) -> str:
    """Hash a run's configuration without paths, so that the hash is the same on every machine."""
    plain: Any = OmegaConf.to_container(cfg, resolve=True)
    plain["model"].pop("path")
    for key in ("reference_path", "resume"):
        plain.pop(key, None)
    plain["reference"].pop("path", None)
    # Published rows were hashed with the methods in `apo_lab`: under other names they would not verify.
    text = json.dumps(plain, sort_keys=True, default=str).replace('"apo_methods.', '"apo_lab.')
    return sha256_of([text.encode()])


def _path(folder: Path, answers: Path, costs: pd.DataFrame) -> PolicyPath:
    points = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    files = [np.load(folder / f"step_{int(point['step']):06d}.npz") for point in points]
    logprobs, mass, skill = (
        torch.from_numpy(np.stack([file[name] for file in files])).double() for name in ("logprobs", "mass", "skill")
    )
    listing = json.loads(answers.read_text())
    content = listing["problems"]
    owner = torch.tensor([place for place, row in enumerate(content) for _ in row["answers"]])
    is_valid = torch.tensor([valid for row in content for _, _, valid in row["answers"]])
    masses = torch.where(is_valid, logprobs.exp(), 0.0)
    success = torch.zeros(len(files), len(content), dtype=torch.float64).index_add_(1, owner, masses)
    problem = torch.tensor([place for place, _ in listing["entrances"]])
    entrances = [
        Entrances(problem=problem, mass=p, skill=q, num_problems=len(content)) for p, q in zip(mass, skill, strict=True)
    ]
    return PolicyPath(points=points, success=success.clamp(max=1.0), entrances=entrances, costs=costs)


def _rows(
    path: PolicyPath, run: PolicyPath, level: float, *, with_area: bool
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The endpoints of a path, and a row for each of its points; `run` is the run, which begins with the base model.

    A path that begins elsewhere has no area: there are no levels from the base model's on.
    """
    last, lost = path.points[-1], path.lost(run.entrances[0])
    found = {
        "last": last_leave_one_block_out(path.success, 64),
        "passage": passage(path.success, K, level),
        "entered": at_passage(path.success, lost["entered"], level),
        "locked_share": locked_share(path.success, lost["locked"], lost["forgotten"], level),
    }
    if with_area:
        found |= {name: leave_one_block_out(path.success, k, level) for name, k in (("area", 64), ("area_8", 8))}
    values = {name: each for name, each in found.items() if each is not None}
    row = {
        "steps": int(last["step"]),
        **{f"base_{name}": run.points[0][name] for name in ("pass@1", "pass@8", "pass@64")},
        **{name: last[name] for name in POINT},
        "reached": path.success.mean(1).max().item(),
        **{name: each[0].item() for name, each in values.items() if name != "last"},
        **{key: value for name in ENDPOINTS if name in values for key, value in _without(name, values[name]).items()},
        **path.costs.iloc[-1],
    }
    return row, _curve_rows(path, {name: each.mean(1).tolist() for name, each in lost.items()})


def _without(name: str, values: Sets) -> dict[str, float]:
    return {f"{name}_without_{block}": value for block, value in enumerate(values[1:].tolist())}


def _curve_rows(path: PolicyPath, lost: Mapping[str, Sequence[float]]) -> list[dict[str, Any]]:
    rows = []
    for place, (point, entrances) in enumerate(zip(path.points, path.entrances, strict=True)):
        step = int(point["step"])
        cost = path.costs.loc[step] if step in path.costs.index else dict.fromkeys(COST, 0.0)
        of_entrances = {name: values[place] for name, values in lost.items()} | entrances.metrics(K)
        shown = {name: point[name] for name in POINT} | {name: of_entrances[name] for name in ENTRANCES}
        rows.append({"step": step, **shown, **cost})
    return rows


def _costs(path: Path) -> pd.DataFrame:
    """Tokens sampled, tokens trained and seconds of training until each step."""
    steps = pd.read_csv(path).dropna(subset=["time/step"]).set_index("step")
    completions = steps["reward/num_correct"] + steps["reward/num_incorrect"]
    sampled = completions * steps["train/completion_tokens"]
    trained = sampled * (1 - steps["train/skipped_fraction"])
    return pd.DataFrame({"tokens_sampled": sampled, "tokens_trained": trained, "seconds": steps["time/step"]}).cumsum()

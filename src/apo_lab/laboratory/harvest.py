"""A finished run's folder, and the averages of its last policy with the base model → rows in the published tables."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from hydra.utils import instantiate
from jaxtyping import Float
from omegaconf import DictConfig, OmegaConf
from torch import Tensor

from apo_lab.diagnostics.exact_coverage import ExactCoverage, held_out_prompts
from apo_lab.editions.protocol import AVERAGED
from apo_lab.laboratory.jobs import Job
from apo_lab.laboratory.published import COST, KEY, POINT, Rows
from apo_lab.statistics.passage import passage_leave_one_block_out
from apo_lab.statistics.paths import BlockValues, last_leave_one_block_out, leave_one_block_out
from apo_lightning.common.files import to_json, write_atomically
from apo_lightning.model.average import average
from apo_lightning.model.policy import Policy


def measure_averages(cfg: DictConfig, last: Path, base_weights: Sequence[float], folder: Path) -> None:
    """Measure (1 − w)·θ + w·θ_base for each w, as `ExactCoverage` does, as steps 1, 2, … of `folder`.

    θ is the policy in the folder `last`, θ_base the model that the run's `cfg` names.
    """
    source, spec = instantiate(cfg.data), instantiate(cfg.model, _convert_="all")
    tokenizer = spec.load_tokenizer()
    prompts = held_out_prompts(source, tokenizer, spec.prompt_template)
    coverage = ExactCoverage(source.puzzle, ks=(1, 8, 64))
    base = dict(spec.load_model(0).named_parameters())
    trained = instantiate(cfg.model, path=str(last), _convert_="all").load_model(0).state_dict()
    policy = Policy(spec.load_model(0), tokenizer, torch.float32).eval()
    for place, weight in enumerate(base_weights, start=1):
        policy.model.load_state_dict(trained)
        average(dict(policy.model.named_parameters()), base, weight)
        coverage.score(policy, prompts, place, folder, temperature=cfg.temperature)
    write_atomically(folder / "base_weights.json", to_json([*base_weights]))


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyPath:
    """A path of policies through the plane of pass@1 and pass@64, the base model first."""

    points: Sequence[Mapping[str, float]]
    """The metrics of each policy; `POINT` and `step`."""
    success: Float[Tensor, "points problems"]
    """p(x) of each policy."""
    costs: pd.DataFrame
    """`COST` until each point, indexed by step."""


def harvest(job: Job, cfg: DictConfig, averages: Path | None, identity: Mapping[str, str]) -> Rows:
    """Read what a run and the averages of its last policy left; `identity` is commit and registration."""
    exact = job.folder / "exact"
    path = _path(exact, exact / "answers.json", _costs(job.folder / "metrics.csv"))
    common = {
        **identity,
        "stage": job.stage,
        "level": job.world.level,
        "config_sha256": config_sha256(cfg),
        "base_sha256": file_sha256(next(job.base.glob("*/model.safetensors"))) if job.world.base else "",
        "weights_sha256": file_sha256(job.folder / "checkpoints" / "final" / "model.safetensors"),
    }
    key: dict[str, Any] = dict(zip(KEY, job.key, strict=True))
    rows = Rows(runs=[{**key, **common, **_run_row(path, job.world.level)}], curves=_curve_rows(key, path))
    if averages is not None:
        weights = [1.0, *(json.loads((averages / "base_weights.json").read_text())), 0.0]
        middle = _path(averages, exact / "answers.json", path.costs.iloc[-1:])
        last = path.costs.iloc[-1:].set_axis([path.points[-1]["step"]])
        between = PolicyPath(
            points=[path.points[0], *middle.points, path.points[-1]],
            success=torch.cat([path.success[:1], middle.success, path.success[-1:]]),
            costs=last,
        )
        key["method"] += AVERAGED
        rows.runs.append({**key, **common, **_run_row(between, job.world.level)})
        rows.curves.extend(
            {**row, "step": path.points[-1]["step"], "base_weight": weight, **path.costs.iloc[-1]}
            for row, weight in zip(_curve_rows(key, between), weights, strict=True)
        )
    return rows


def config_sha256(cfg: DictConfig) -> str:
    """Hash a run's configuration without paths, so that the hash is the same on every machine."""
    plain: Any = OmegaConf.to_container(cfg, resolve=True)
    plain["model"].pop("path")
    for key in ("reference_path", "resume"):
        plain.pop(key, None)
    plain["reference"].pop("path", None)
    return hashlib.sha256(json.dumps(plain, sort_keys=True, default=str).encode()).hexdigest()


def file_sha256(path: Path) -> str:
    """Hash a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _path(folder: Path, answers: Path, costs: pd.DataFrame) -> PolicyPath:
    points = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    files = [np.load(folder / f"step_{int(point['step']):06d}.npz")["logprobs"] for point in points]
    content = json.loads(answers.read_text())["problems"]
    owner = torch.tensor([place for place, row in enumerate(content) for _ in row["answers"]])
    is_valid = torch.tensor([valid for row in content for _, _, valid in row["answers"]])
    masses = torch.where(is_valid, torch.from_numpy(np.stack(files)).double().exp(), 0.0)
    success = torch.zeros(len(files), len(content), dtype=torch.float64).index_add_(1, owner, masses)
    return PolicyPath(points=points, success=success.clamp(max=1.0), costs=costs)


def _run_row(path: PolicyPath, level: float) -> dict[str, Any]:
    first, last = path.points[0], path.points[-1]
    many, eight = (leave_one_block_out(path.success, k, level) for k in (64, 8))
    ends, passage = last_leave_one_block_out(path.success, 64), passage_leave_one_block_out(path.success, 64, level)
    return {
        "steps": int(last["step"]),
        **{f"base_{name}": first[name] for name in ("pass@1", "pass@8", "pass@64")},
        **{name: last[name] for name in POINT},
        "reached": path.success.mean(1).max().item(),
        "area": many.value,
        "area_8": eight.value,
        **_without("area", many),
        **_without("last", ends),
        **({} if passage is None else {"passage": passage.value, **_without("passage", passage)}),
        **path.costs.iloc[-1],
    }


def _without(name: str, values: BlockValues) -> dict[str, float]:
    return {f"{name}_without_{block}": value for block, value in enumerate(values.without.tolist())}


def _curve_rows(key: Mapping[str, Any], path: PolicyPath) -> list[dict[str, Any]]:
    rows = []
    for point in path.points:
        step = int(point["step"])
        cost = path.costs.loc[step] if step in path.costs.index else dict.fromkeys(COST, 0.0)
        rows.append({**key, "step": step, "base_weight": None, **{name: point[name] for name in POINT}, **cost})
    return rows


def _costs(path: Path) -> pd.DataFrame:
    """Tokens sampled, tokens trained and seconds of training until each step."""
    steps = pd.read_csv(path).dropna(subset=["time/step"]).set_index("step")
    completions = steps["reward/num_correct"] + steps["reward/num_incorrect"]
    sampled = completions * steps["train/completion_tokens"]
    trained = sampled * (1 - steps["train/skipped_fraction"])
    return pd.DataFrame({"tokens_sampled": sampled, "tokens_trained": trained, "seconds": steps["time/step"]}).cumsum()

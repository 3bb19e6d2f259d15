"""Measurements and run folders with numbers that can be checked by hand."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from apo_lightning.common.identity import sealed
from apo_lightning.evaluation.records import DataCard, Estimate, EvaluationResult, ModelCard, ProblemCount
from apo_report.records import Measurement
from factories import sampling_settings


def estimate(value: float, half_width: float = 0.0) -> Estimate:
    return Estimate(value=value, low=value - half_width, high=value + half_width)


def measured(
    method: str = "APO",
    pass_at: Sequence[float] = (0.25, 0.5),
    *,
    model: str = "tiny",
    benchmark: str = "math500",
    settings: Mapping[str, str] | None = None,
    half_width: float = 0.0,
    solved: Sequence[int] = (),
    seed: str = "",
    weights: str = "",
    sampling: Mapping[str, str] | None = None,
    **others: float,
) -> Measurement:
    """`pass_at` is the curve; `solved` how often each problem was. Other metrics score the same on every problem."""
    n = len(pass_at)
    curve = tuple(estimate(value, half_width) for value in pass_at)
    metrics = {f"pass@{k}": curve[k - 1] for k in (1, n)} | {name: estimate(x) for name, x in others.items()}
    return Measurement(
        model=model,
        method=method,
        settings=settings or {},
        seed=seed,
        weights=weights,
        sampling=sampling or {},
        benchmark=benchmark,
        num_samples=n,
        metrics=metrics,
        pass_at_k=curve,
        problems=tuple(ProblemCount(prompt_id=f"p{i}", num_samples=n, num_correct=c) for i, c in enumerate(solved)),
        by_problem={name: (value,) * len(solved) for name, value in others.items()} if solved else {},
    )


def result(name: str = "tiny", benchmark: str = "math500", **model: object) -> EvaluationResult:
    card: dict = {"name": name, "path": None, "weights_sha256": "a", "dtype": "float32"} | model
    return EvaluationResult(
        benchmark=benchmark,
        model=ModelCard(**card),
        data=DataCard(source="x", sha256="b", num_problems=1, num_available=1),
        settings=sampling_settings(num_samples=2, samples_per_batch=2),
        versions={},
        verdicts={"correct": 1, "incorrect": 1},
        num_truncated=0,
        num_tokens=4,
        metrics={"pass@1": estimate(0.5)},
        pass_at_k=(estimate(0.5), estimate(1.0)),
        problems=(ProblemCount(prompt_id="p0", num_samples=2, num_correct=1),),
    )


def write_run(
    folder: Path,
    *,
    algo: str = "apo",
    seed: int = 1,
    loss: Mapping[str, float] | None = None,
    before: float = 0.25,
    after: float = 0.5,
    config: Mapping[str, object] | None = None,
    solved: Sequence[tuple[int, int]] = (),
    num_samples: int = 1,
    weights: str | None = None,
    problems: str = "1",
) -> Path:
    """A training run's folder as Hydra and the callbacks leave it.

    `solved`: correct samples of each held-out problem, before and after; without it a share `before` and `after` of
    twenty. `config` is laid over the composed one, `problems` is the hash of each held-out set.
    """
    solved = solved or [tuple(num_samples * (i < 20 * share) for share in (before, after)) for i in range(20)]
    hydra = folder / ".hydra"
    hydra.mkdir(parents=True)
    composed = {"seed": seed, "model": {"name": "tiny"}, "algo": {"loss": {"pull_coef": 0.1} | dict(loss or {})}}
    # JSON is YAML.
    (hydra / "config.yaml").write_text(json.dumps(composed | dict(config or {})))
    (hydra / "hydra.yaml").write_text(json.dumps({"hydra": {"runtime": {"choices": {"algo": algo}}}}))
    (folder / "metrics.csv").write_text("step,train/entropy,val/arithmetic/pass@1\n0,,0.25\n1,2.5,\n2,nan,\n1,2.0,\n")
    before, after = (sum(counts) / (len(solved) * num_samples) for counts in zip(*solved, strict=True))
    look = {
        "samples_per_problem": num_samples,
        "samples_per_problem_before": num_samples,
        "step_before": 0,
        "step_after": 2,
        "change": {"mean": after - before, "low": 0.0, "high": 0.5},
        "num_correct": {f"p{place}": pair for place, pair in enumerate(solved)},
    }
    summary = {"held_out": {"arithmetic": look}, "weights_sha256": weights or f"weights of {folder}"}
    (folder / "summary.json").write_text(json.dumps(summary))
    identity = {f"the problems of validation on {name}": problems for name in ("arithmetic", "locks")}
    (folder / "identity.json").write_bytes(sealed({"format": 1, "identity": identity}))
    return folder

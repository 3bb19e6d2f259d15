"""What a training run says of its own held-out problems, as measurements of the policy before and after it."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from apo_lab.reporting.axes import plain
from apo_lab.reporting.identity import short_hash
from apo_lab.reporting.names import BASE, model_name
from apo_lab.reporting.records import Measurement, RunCard
from apo_lightning.errors import ConfigError
from apo_lightning.evaluation.records import Estimate, ProblemCount
from apo_lightning.evaluation.results import estimate_of
from apo_lightning.metrics.functional import pass_at_k_curve
from apo_lightning.metrics.intervals import mean_intervals

STEPS = "steps"
"""The setting under which a run that ended before its last step is listed."""
NO_JUDGE = "reward.num_workers"
"""A key of a reward that no verdict depends on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _ValidationPass:
    """The result of one validation pass over one held-out set."""

    num_samples: int
    metrics: Mapping[str, Estimate]
    pass_at_k: tuple[Estimate, ...] = ()
    problems: tuple[ProblemCount, ...] = ()


def held_out_measurements(run: RunCard, departures: Mapping[str, str]) -> Iterator[Measurement]:
    """The untrained policy, where the run validated at step 0, and the trained one, on each held-out set.

    From `summary.json`; from `metrics.csv`, and then without intervals, what that does not have.

    Args:
        run: a training run.
        departures: where it left its method's defaults.

    Raises:
        ConfigError: a summary lacks what every summary has.
    """
    for name, change in run.summary.get("held_out", {}).items():
        try:
            yield from _before_and_after(run, departures, name, change)
        except (KeyError, TypeError) as error:
            raise ConfigError(f"{run.folder}/summary.json: held_out.{name} lacks {error}: train again") from error
    for name in sorted(set(_logged(run)) - set(run.summary.get("held_out", {}))):
        yield from _from_metrics(run, departures, name)


def _before_and_after(
    run: RunCard, departures: Mapping[str, str], name: str, change: Mapping[str, Any]
) -> Iterator[Measurement]:
    before, after = (_from_summary(name, change, which) for which in ("before", "after"))
    gain = Estimate(
        **{end: change["change"][key] for end, key in (("value", "mean"), ("low", "low"), ("high", "high"))}
    )
    gains = {
        "gain": tuple(
            last.num_correct / last.num_samples - first.num_correct / first.num_samples
            for first, last in zip(before.problems, after.problems, strict=True)
        )
    }
    if change["step_before"] == 0:
        yield _untrained(run, name, before)
    settings = {**departures, **_stopped(run, change["step_after"])}
    yield _trained(run, name, after, settings, gain, gains if after.problems else {})


def _from_summary(name: str, change: Mapping[str, Any], which: str) -> _ValidationPass:
    """The validation pass of a summary, with the whole pass@k curve where it counts each problem's correct samples."""
    num_samples = change.get(f"samples_per_problem_{which}", change["samples_per_problem"])
    logged = {key.removeprefix(f"val/{name}/"): value for key, value in change.get(f"metrics_{which}", {}).items()}
    metrics = {key: _bare(value) for key, value in logged.items() if _k_of(key)}
    metrics = {"pass@1": _bare(change[f"pass@1_{which}"])} | metrics
    place = ("before", "after").index(which)
    counts = {problem: pair[place] for problem, pair in change.get("num_correct", {}).items()}
    if not counts:
        return _ValidationPass(num_samples=num_samples, metrics=metrics)
    correct = torch.tensor(list(counts.values()))
    curve = pass_at_k_curve(torch.full_like(correct, num_samples), correct, range(1, num_samples + 1))
    estimates = tuple(estimate_of(interval) for interval in mean_intervals(curve))
    return _ValidationPass(
        num_samples=num_samples,
        metrics={key: estimates[_k_of(key) - 1] for key in metrics},
        pass_at_k=estimates,
        problems=tuple(
            ProblemCount(prompt_id=problem, num_samples=num_samples, num_correct=count)
            for problem, count in counts.items()
        ),
    )


def _from_metrics(run: RunCard, departures: Mapping[str, str], name: str) -> Iterator[Measurement]:
    """The first and the last validation pass that was logged; how many samples each took is the largest k."""
    series = {key: dict(zip(*run.metrics[f"val/{name}/{key}"], strict=True)) for key in _logged(run)[name]}
    if "pass@1" not in series:
        return
    first, last = min(series["pass@1"]), max(series["pass@1"])
    num_samples = max((k for key in series if (k := _k_of(key))), default=1)
    before, after = (
        _ValidationPass(
            num_samples=num_samples, metrics={k: _bare(values[step]) for k, values in series.items() if step in values}
        )
        for step in (first, last)
    )
    if first == 0:
        yield _untrained(run, name, before)
    if last > first:
        gain = _bare(after.metrics["pass@1"].value - before.metrics["pass@1"].value)
        yield _trained(run, name, after, {**departures, **_stopped(run, int(last))}, gain)


def _untrained(run: RunCard, name: str, validation: _ValidationPass) -> Measurement:
    """The policy before training is told from another by where it was read; random weights by the run's seed."""
    path = run.config.get("model.path", "null")
    is_random = path == "null"
    weights, seed = (f"of seed {run.seed}", run.seed) if is_random else (f"of {path}", "")
    return _measured(run, name, validation, method=BASE, weights=weights, seed=seed)


def _trained(
    run: RunCard,
    name: str,
    validation: _ValidationPass,
    settings: Mapping[str, str],
    gain: Estimate,
    gains: Mapping[str, tuple[float, ...]] | None = None,
) -> Measurement:
    measured = _measured(
        run,
        name,
        validation,
        method=run.label,
        weights=run.summary.get("weights_sha256") or str(run.folder),
        seed=run.seed,
    )
    return replace(measured, settings=settings, metrics={**measured.metrics, "gain": gain}, by_problem=gains or {})


def _measured(
    run: RunCard,
    name: str,
    validation: _ValidationPass,
    *,
    method: str,
    weights: str,
    seed: str,
) -> Measurement:
    return Measurement(
        model=model_name(run.model),
        method=method,
        settings={},
        seed=seed,
        weights=weights,
        sampling=_sampling(run, validation.problems),
        sampling_seeds=(run.seed,),
        benchmark=name,
        num_samples=validation.num_samples,
        metrics=validation.metrics,
        pass_at_k=validation.pass_at_k,
        problems=validation.problems,
        by_problem={},
        held_out=True,
    )


def _sampling(run: RunCard, problems: Sequence[ProblemCount]) -> dict[str, str]:
    """The settings of the measurement, as for an evaluation, from the run's config."""
    config = run.config
    prompt = [f"{key}={value}" for key, value in sorted(config.items()) if _is_prompt(key)]
    reward = [
        f"{key}={value}" for key, value in sorted(config.items()) if key.startswith("reward.") and key != NO_JUDGE
    ]
    ids = sorted(problem.prompt_id for problem in problems)
    found = {
        "temperature": plain(config["temperature"]) if "temperature" in config else None,
        "token limit": config.get("data.max_completion_tokens"),
        "engine": config.get("engine._target_", "").rpartition(".")[2] or None,
        "precision": config.get("model.compute_dtype"),
        "stop tokens": config.get("model.stop_tokens"),
        "prompt": short_hash("\n".join(prompt)) if prompt else None,
        "reward": short_hash("\n".join(reward)) if reward else None,
        "problems": f"{len(ids)} ({short_hash(chr(10).join(ids))})" if ids else None,
    }
    return {name: value for name, value in found.items() if value is not None}


def _is_prompt(key: str) -> bool:
    return key == "model.prompt_template" or (key.startswith("data.") and key.endswith(("instruction", "system")))


def _stopped(run: RunCard, step: int) -> dict[str, str]:
    last = run.config.get("trainer.max_steps", str(step))
    return {} if last == str(step) else {STEPS: str(step)}


def _logged(run: RunCard) -> dict[str, list[str]]:
    """The metrics that were logged of each held-out set: name → keys without `val/<name>/`."""
    found: dict[str, list[str]] = {}
    for key in run.metrics:
        if match := re.fullmatch(r"val/(.+)/([^/]+)", key):
            found.setdefault(match[1], []).append(match[2])
    return found


def _k_of(key: str) -> int:
    """K of `pass@K`; 0 for another metric."""
    match = re.fullmatch(r"pass@(\d+)", key)
    return int(match[1]) if match else 0


def _bare(value: float) -> Estimate:
    return Estimate(value=value, low=math.nan, high=math.nan)

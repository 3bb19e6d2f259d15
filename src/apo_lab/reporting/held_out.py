"""A training run's own held-out problems, as measurements of the policy before and after it."""

import math
import re
from collections.abc import Iterator, Mapping
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


def held_out_measurements(run: RunCard, departures: Mapping[str, str]) -> Iterator[Measurement]:
    """The untrained policy, where the run validated at step 0, and the trained one, on each held-out set.

    Args:
        run: a training run; one without `summary.json` has no measurements.
        departures: where it left its method's defaults.

    Raises:
        ConfigError: a summary lacks what every summary has.
    """
    for name, change in run.summary.get("held_out", {}).items():
        try:
            yield from _before_and_after(run, departures, name, change)
        except (KeyError, TypeError) as error:
            raise ConfigError(f"{run.folder}/summary.json: held_out.{name} lacks {error}: train again") from error


def _before_and_after(
    run: RunCard, departures: Mapping[str, str], name: str, change: Mapping[str, Any]
) -> Iterator[Measurement]:
    before, after = (_scores(name, change, which) for which in ("before", "after"))
    if change["step_before"] == 0:
        # The policy before training is told from another by where it was read; random weights by the run's seed.
        path = run.config.get("model.path", "null")
        is_random = path == "null"
        weights, seed = (f"of seed {run.seed}", run.seed) if is_random else (f"of {path}", "")
        yield _measured(run, name, before, method=BASE, weights=weights, seed=seed)
    ends = change["change"]
    after["metrics"]["gain"] = Estimate(value=ends["mean"], low=ends["low"], high=ends["high"])
    if after["problems"]:
        pairs = zip(before["problems"], after["problems"], strict=True)
        gains = (two.num_correct / two.num_samples - one.num_correct / one.num_samples for one, two in pairs)
        after["by_problem"] = {"gain": tuple(gains)}
    last = str(change["step_after"])
    stopped = {} if run.config.get("trainer.max_steps", last) == last else {STEPS: last}
    weights = run.summary.get("weights_sha256") or str(run.folder)
    settings = {**departures, **stopped}
    yield _measured(run, name, after, method=run.label, settings=settings, weights=weights, seed=run.seed)


def _scores(name: str, change: Mapping[str, Any], which: str) -> dict[str, Any]:
    """Fields of `Measurement`; with intervals and the whole pass@k curve where a summary counts correct samples."""
    num_samples = change.get(f"samples_per_problem_{which}", change["samples_per_problem"])
    logged = {key.removeprefix(f"val/{name}/"): value for key, value in change.get(f"metrics_{which}", {}).items()}
    values = {"pass@1": change[f"pass@1_{which}"]} | {key: value for key, value in logged.items() if _k_of(key)}
    place = ("before", "after").index(which)
    counts = {problem: pair[place] for problem, pair in change.get("num_correct", {}).items()}
    estimates = ()
    if counts:
        correct = torch.tensor(list(counts.values()))
        curve = pass_at_k_curve(torch.full_like(correct, num_samples), correct, range(1, num_samples + 1))
        estimates = tuple(estimate_of(interval) for interval in mean_intervals(curve))
    return {
        "num_samples": num_samples,
        "metrics": {
            key: estimates[_k_of(key) - 1] if counts else Estimate(value=value, low=math.nan, high=math.nan)
            for key, value in values.items()
        },
        "pass_at_k": estimates,
        "problems": tuple(
            ProblemCount(prompt_id=problem, num_samples=num_samples, num_correct=count)
            for problem, count in counts.items()
        ),
    }


def _measured(run: RunCard, name: str, scores: Mapping[str, Any], **policy: Any) -> Measurement:
    return Measurement(
        model=model_name(run.model),
        sampling=_sampling(run, sorted(problem.prompt_id for problem in scores["problems"])),
        sampling_seeds=(run.seed,),
        benchmark=name,
        held_out=True,
        **scores,
        **policy,
    )


def _sampling(run: RunCard, ids: list[str]) -> dict[str, str]:
    """The settings of the measurement, as for an evaluation, from the run's config."""
    config = run.config
    prompt = [f"{key}={value}" for key, value in sorted(config.items()) if _is_prompt(key)]
    reward = [
        f"{key}={value}" for key, value in sorted(config.items()) if key.startswith("reward.") and key != NO_JUDGE
    ]
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


def _k_of(key: str) -> int:
    """K of `pass@K`; 0 for another metric."""
    match = re.fullmatch(r"pass@(\d+)", key)
    return int(match[1]) if match else 0

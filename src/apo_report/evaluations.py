"""Evaluations and training runs' own held-out problems, brought to one form: measurements."""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from apo_lightning.errors import ConfigError
from apo_lightning.evaluation.loading import read_record, read_result
from apo_lightning.evaluation.records import Estimate, EvaluationResult, ModelCard, ProblemCount
from apo_report.coverage import CoverageResult
from apo_report.identity import counted, resolved, short, short_hash
from apo_report.names import BASE, MODELS
from apo_report.records import Evaluated, Evaluations, Measurement, ResultFile, RunCard, bare
from apo_report.runs import Defaults, axes, find_files, may_matter, plain, policy_of, settings

SNAPSHOT_METRICS = ("entropy", "max_prob", "support_coverage")
"""What is drawn along training besides pass@1 and pass@n."""
EXACT_KEY = re.compile(r"val/([^/]+)/exact/(pass@1|pass@64)")
"""What `ExactCoverage` logs of a set of problems, as far as tables have it."""
STEPS = "steps"
"""The setting under which a run that ended before its last step is listed."""
MeasuredAt = Mapping[int, Mapping[str, Any]]
"""Step → the fields of a `Measurement` that hold what was measured there."""


def read_evaluations(folders: Sequence[Path], runs: Iterable[RunCard] = ()) -> Evaluations:
    """Every `results.json` and `coverage.json` under the folders, each with the run it belongs to.

    That is the run in whose folder it lies, else the one that its model card names; None where it was not read.

    Raises:
        ConfigError: a folder does not exist, or a file is malformed or of a newer schema.
    """
    by_folder = {run.folder: run for run in runs}

    def run_of(path: Path, model: ModelCard) -> RunCard | None:
        named = [Path(model.run).resolve()] if model.run else []
        return next((by_folder[folder] for folder in (*path.parents, *named) if folder in by_folder), None)

    def found(name: str, read: Callable[[Path], Any]) -> tuple[Any, ...]:
        read_all = ((path, read(path)) for path in sorted({path.resolve() for path in find_files(folders, name)}))
        return tuple(ResultFile(path=path, result=each, run=run_of(path, each.model)) for path, each in read_all)

    coverage = found("coverage.json", lambda path: read_record(path, CoverageResult))
    return Evaluations(results=found("results.json", read_result), coverage=coverage)


def measurements(
    runs: Sequence[RunCard], evaluations: Evaluations, defaults: Defaults | None = None
) -> tuple[Measurement, ...]:
    """Everything that was measured but snapshots: the evaluations first, then the runs' own held-out problems.

    That of step 0 is of the base model, and counts where another policy was measured as it was.
    Told apart as in `identity.resolved`. Without `defaults` no run counts as a method's default.

    Raises:
        ConfigError: a summary lacks what every summary has.
    """
    keys = axes(runs)
    final, before = (
        [_evaluated(item, keys, defaults) for item in evaluations.results if item.result.model.step == step]
        for step in (None, 0)
    )
    ways = [(item.model, item.benchmark, item.sampling) for item in final]
    bases = [item for item in before if (item.model, item.benchmark, item.sampling) in ways]
    held_out = (found for run in runs for found in held_out_measurements(run, settings(run, keys, defaults)))
    return resolved([*final, *bases, *held_out])


def with_snapshots(runs: Iterable[RunCard], evaluations: Evaluations) -> list[RunCard]:
    """The runs, with the evaluations of their snapshots among the metrics.

    Keys: `snapshot/<benchmark>/<metric>` for pass@1, pass@n, entropy, max_prob and support_coverage.
    """
    found: dict[Path, dict[int, dict[str, float]]] = defaultdict(lambda: defaultdict(dict))
    for item in evaluations.results:
        step, metrics = item.result.model.step, item.result.metrics
        if step is not None and item.run:
            names = metrics.keys() & {"pass@1", f"pass@{item.result.settings.num_samples}", *SNAPSHOT_METRICS}
            found[item.run.folder][step] |= {f"snapshot/{item.result.benchmark}/{n}": metrics[n].value for n in names}
    tables = {folder: pd.DataFrame.from_dict(steps, orient="index") for folder, steps in found.items() if any(steps)}
    return [
        replace(run, metrics=run.metrics.join(tables[run.folder], how="outer")) if run.folder in tables else run
        for run in runs
    ]


def held_out_measurements(run: RunCard, departures: Mapping[str, str]) -> Iterator[Measurement]:
    """The untrained policy, where the run validated at step 0, and the trained one with its departures from defaults.

    Raises:
        ConfigError: a summary lacks what every summary has, or a set was measured that the run's identity has not.
    """
    for name, change in run.summary.get("held_out", {}).items():
        try:
            which = f"{len(change['num_correct'])} ({_problems(run, name)})"
            yield from _of_policies(run, departures, name, which, _counted(change))
        except (KeyError, TypeError) as error:
            raise ConfigError(f"{run.folder}/summary.json: held_out.{name} lacks {error}: train again") from error
    for name, exact in _exact(run.metrics).items():
        yield from _of_policies(run, departures, f"{name}, exact", _problems(run, name), exact)


def _problems(run: RunCard, name: str) -> str:
    """What the problems of a held-out set are, as the run says."""
    if (key := f"the problems of validation on {name}") not in run.identity:
        raise ConfigError(f"{run.folder}/identity.json does not know {key}, which were measured: train again")
    return short(run.identity[key])


def _evaluated(item: Evaluated, keys: Sequence[str], defaults: Defaults | None) -> Measurement:
    # Without `algo` no run trained this policy, though one may have begun as it.
    result, card, run = item.result, item.result.model, item.run if item.result.model.algo else None
    # Of a policy as it was downloaded no seed is known; random weights are those of a seed.
    seed = card.seed if card.algo or card.path is None else None
    return Measurement(
        model=item.model,
        method=item.method,
        settings=settings(run, keys, defaults) if run else _typed(card),
        seed=run.seed if run else "" if seed is None else str(seed),
        weights=result.model.weights_sha256,
        sampling=_sampling(result),
        benchmark=result.benchmark,
        num_samples=result.settings.num_samples,
        metrics=result.metrics,
        pass_at_k=result.pass_at_k,
        problems=result.problems,
        by_problem=result.by_problem,
    )


def _typed(model: ModelCard) -> dict[str, str]:
    """The settings of a run that was not read: what was typed for it."""
    pairs = (override.lstrip("+~").partition("=") for override in model.overrides)
    return {key: plain(value) for key, _, value in pairs if may_matter(key)}


def _sampling(result: EvaluationResult) -> dict[str, str]:
    """All settings that may decide a number, except n, the sampling seed and what changes floating-point sums only."""
    how, data = result.settings, result.data
    found = {
        "temperature": f"{how.temperature:g}",
        "top-p": f"{how.top_p:g}",
        "token limit": str(how.max_completion_tokens),
        "engine": how.engine,
        "precision": result.model.dtype,
        "prompt": short_hash(how.prompt),
        "reward": how.reward,
        "problems": f"{data.num_problems} of {data.num_available} ({short(data.sha256)})",
        "stop tokens": None if how.stop_tokens is None else " ".join(how.stop_tokens) or "none",
        "support K": None if how.support_anchor_size is None else str(how.support_anchor_size),
        "encoder": how.encoder,
    }
    return {name: value for name, value in found.items() if value is not None}


def _counted(change: Mapping[str, Any]) -> MeasuredAt:
    """What a summary has of a held-out set: its curves from counts of right samples, and the gain by problem."""
    ends = (("step_before", "samples_per_problem_before"), ("step_after", "samples_per_problem"))
    found: dict[int, dict[str, Any]] = {}
    for place, (step, count) in enumerate(ends):
        problems = tuple(
            ProblemCount(prompt_id=problem, num_samples=change[count], num_correct=num_correct[place])
            for problem, num_correct in change["num_correct"].items()
        )
        curve = counted(problems)
        metrics = {"pass@1": curve[0], f"pass@{len(curve)}": curve[-1]}
        found[change[step]] = {"num_samples": len(curve), "metrics": metrics, "pass_at_k": curve, "problems": problems}
    gain, num_before, num_after = change["change"], *(change[count] for _, count in ends)
    last = found[change["step_after"]]
    last["metrics"]["gain"] = Estimate(value=gain["mean"], low=gain["low"], high=gain["high"])
    pairs = change["num_correct"].values()
    last["by_problem"] = {"gain": tuple(after / num_after - before / num_before for before, after in pairs)}
    return found


def _exact(metrics: Any) -> dict[str, MeasuredAt]:
    """What `ExactCoverage` logged of each set of problems, first and last; the gain where both are there."""
    found: dict[str, MeasuredAt] = {}
    columns = [match for key in metrics if (match := EXACT_KEY.fullmatch(key))]
    for name in dict.fromkeys(match[1] for match in columns):
        keys = {match[0]: match[2] for match in columns if match[1] == name}
        logged = metrics[list(keys)].dropna().rename(columns=keys).to_dict("index")
        last = max(logged, default=0)
        if last and "pass@1" in logged.get(0, {}):
            logged[last]["gain"] = logged[last]["pass@1"] - logged[0]["pass@1"]
        found[name] = {
            int(step): {
                "num_samples": 64 if "pass@64" in logged[step] else 1,
                "metrics": {key: bare(value) for key, value in logged[step].items()},
                "exact": True,
            }
            for step in sorted({0, last} & logged.keys())
        }
    return found


def _of_policies(
    run: RunCard, departures: Mapping[str, str], name: str, problems: str, found: MeasuredAt
) -> Iterator[Measurement]:
    """What a run measured of a set: of the untrained policy at step 0, of the trained one at another step."""
    config = run.config
    sampling = {
        "temperature": plain(config["temperature"]) if "temperature" in config else None,
        "token limit": config.get("data.max_completion_tokens"),
        "problems": problems,
    }
    known = {setting: value for setting, value in sampling.items() if value is not None}
    for step, measured in found.items():
        stopped = {} if config.get("trainer.max_steps", str(step)) == str(step) else {STEPS: str(step)}
        own = {"method": run.label, "settings": {**departures, **stopped}, "weights": policy_of(run), "seed": run.seed}
        if step == 0:  # told from another by where it was read; random weights are those of the run's seed
            path = config.get("model.path", "null")
            weights, seed = (f"of seed {run.seed}", run.seed) if path == "null" else (f"of {path}", "")
            own = {"method": BASE, "weights": weights, "seed": seed}
        yield Measurement(model=MODELS[run.model], benchmark=name, sampling=known, held_out=True, **own, **measured)

"""Evaluations as they lie on disk, and measurements: evaluations and training runs brought to one form."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from apo_lightning.errors import ConfigError
from apo_lightning.evaluation.loading import read_coverage, read_result
from apo_lightning.evaluation.records import Estimate, ModelCard
from apo_lightning.reporting.axes import Defaults, axes, settings
from apo_lightning.reporting.names import BASE, model_name
from apo_lightning.reporting.records import Covered, Evaluated, Evaluations, Measurement, RunCard
from apo_lightning.reporting.runs import find_files, parse_overrides


def read_evaluations(folders: Sequence[Path], runs: Iterable[RunCard] = ()) -> Evaluations:
    """Every `results.json` and `coverage.json` under the folders, each with the run it belongs to.

    That is the run in whose folder it lies, else the one that its model card names, if it is among `runs`.

    Raises:
        ConfigError: a folder does not exist, or a file is malformed or of a newer schema.
    """
    by_folder = {run.folder: run for run in runs}
    results = tuple(
        Evaluated(path=path, result=result, run=_run_of(path, result.model, by_folder))
        for path in _paths(folders, "results.json")
        for result in [read_result(path)]
    )
    coverage = tuple(
        Covered(path=path, result=result, run=_run_of(path, result.model, by_folder))
        for path in _paths(folders, "coverage.json")
        for result in [read_coverage(path)]
    )
    return Evaluations(results=results, coverage=coverage)


def measurements(
    runs: Sequence[RunCard], evaluations: Evaluations, defaults: Defaults | None = None
) -> tuple[Measurement, ...]:
    """Everything that was measured: the evaluations first, then what the runs' summaries say of held-out problems.

    Args:
        runs: the training runs.
        evaluations: of these runs and of untrained models.
        defaults: what a run uses where nothing is overridden; without it no run counts as a method's default.

    Raises:
        ConfigError: a summary lacks what every summary has.
    """
    cards = {evaluated.path: evaluated.run or _card(evaluated.result.model) for evaluated in evaluations.results}
    trained = [card for card in cards.values() if card is not None]
    keys = axes([*runs, *(card for card in trained if card.folder not in {run.folder for run in runs})], defaults)
    evaluated = (_evaluated(item, cards[item.path], keys, defaults) for item in evaluations.results)
    return (*evaluated, *(found for run in runs for found in _held_out(run, settings(run, keys, defaults))))


def _evaluated(item: Evaluated, card: RunCard | None, keys: Sequence[str], defaults: Defaults | None) -> Measurement:
    result = item.result
    return Measurement(
        model=item.model,
        method=item.method,
        settings=settings(card, keys, defaults) if card else {},
        seed=card.seed if card else "",
        benchmark=result.benchmark,
        num_samples=result.settings.num_samples,
        data_sha256=result.data.sha256,
        metrics=result.metrics,
        pass_at_k=result.pass_at_k,
        problems=result.problems,
    )


def _held_out(run: RunCard, departures: Mapping[str, str]) -> Iterator[Measurement]:
    for name, look in run.summary.get("held_out", {}).items():
        try:
            yield from _looks(run, departures, name, look)
        except (KeyError, TypeError) as error:
            raise ConfigError(f"{run.folder}/summary.json: held_out.{name} lacks {error}: train again") from error


def _looks(run: RunCard, departures: Mapping[str, str], name: str, look: Mapping[str, Any]) -> Iterator[Measurement]:
    def measured(method: str, metrics: Mapping[str, Estimate], where: Mapping[str, str]) -> Measurement:
        return Measurement(
            model=model_name(run.model),
            method=method,
            settings=where,
            seed=run.seed,
            benchmark=name,
            num_samples=look["samples_per_problem"],
            metrics=metrics,
            held_out=True,
        )

    if look["step_before"] == 0:
        yield measured(BASE, {"pass@1": _bare(look["pass@1_before"])}, {})
    change = look["change"]
    gain = Estimate(value=change["mean"], low=change["low"], high=change["high"])
    yield measured(run.label, {"pass@1": _bare(look["pass@1_after"]), "gain": gain}, departures)


def _bare(value: float) -> Estimate:
    return Estimate(value=value, low=math.nan, high=math.nan)


def _card(model: ModelCard) -> RunCard | None:
    """What a model card tells of a training run that is not among those read."""
    if model.algo is None:
        return None
    overrides = parse_overrides(model.overrides)
    return RunCard(folder=Path(model.run or "?").resolve(), algo=model.algo, model=model.name, overrides=overrides)


def _run_of(path: Path, model: ModelCard, runs: Mapping[Path, RunCard]) -> RunCard | None:
    around = next((parent for parent in path.parents if parent in runs), None)
    if around is not None:
        return runs[around]
    return runs.get(Path(model.run).resolve()) if model.run else None


def _paths(folders: Iterable[Path], name: str) -> list[Path]:
    return sorted({path.resolve() for path in find_files(folders, name)})

"""The paper's numbers in the form in which figures take what was measured."""

import math
from collections.abc import Iterable

from apo_lab.reporting.names import method_name, model_name
from apo_lab.reporting.published import AVERAGE, NUM_SAMPLES, PublishedCell
from apo_lab.reporting.records import Measurement
from apo_lightning.evaluation.records import Estimate


def as_measurements(cells: Iterable[PublishedCell]) -> list[Measurement]:
    """The published accuracies, one measurement a model, method, setting and benchmark; intervals are not known.

    The printed averages are left out: a figure takes the mean over the benchmarks that it shows.
    """
    found: dict[tuple[str, str, str, str], dict[str, Estimate]] = {}
    for cell in cells:
        if cell.benchmark in NUM_SAMPLES and cell.benchmark != AVERAGE and cell.metric.startswith("pass@"):
            estimate = Estimate(value=cell.value / 100, low=math.nan, high=math.nan)
            found.setdefault((cell.model, cell.method, cell.setting, cell.benchmark), {})[cell.metric] = estimate
    return [
        Measurement(
            model=model_name(model),
            method=method_name(method),
            settings=dict([setting.split("=", 1)]) if setting else {},
            benchmark=benchmark,
            num_samples=NUM_SAMPLES[benchmark],
            metrics=metrics,
        )
        for (model, method, setting, benchmark), metrics in found.items()
    ]


def as_recall(cells: Iterable[PublishedCell]) -> dict[str, dict[int, float]]:
    """The published recalls at K as fractions: printed model name → K → recall."""
    recall: dict[str, dict[int, float]] = {}
    for cell in cells:
        if cell.metric.startswith("recall@"):
            k = int(cell.metric.removeprefix("recall@"))
            recall.setdefault(model_name(cell.model), {})[k] = cell.value / 100
    return recall

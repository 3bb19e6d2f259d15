"""Snapshots in a row: what a policy could do, and how sure it was of it, at every measured step of its training."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from apo_lab.reporting.averages import mean_over_seeds, series_name
from apo_lab.reporting.evaluations import STEP
from apo_lab.reporting.names import BASE
from apo_lab.reporting.records import Measurement


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """One method on one benchmark, from the model that it began as."""

    block: str
    """Model and way of measuring, as `Measurement.block`."""
    benchmark: str
    method: str
    """The printed name of the method, with the settings in which it departs from its defaults."""
    num_samples: int
    """n completions a problem."""
    base: Measurement | None
    """The policy before training; None where it was not measured."""
    points: tuple[tuple[int, Measurement], ...]
    """(training step, mean over training seeds), by step; the steps that every seed has."""


def trajectories(measurements: Sequence[Measurement]) -> list[Trajectory]:
    """The snapshots of each method and benchmark, averaged over training seeds step by step.

    Args:
        measurements: from `evaluations.snapshot_measurements`.

    Raises:
        ConfigError: measurements of one name and step are not training seeds measured alike.
    """
    bases: dict[tuple[str, str, int], Measurement] = {}
    found: dict[tuple[str, str, int, str], list[tuple[int, Measurement]]] = defaultdict(list)
    for item in mean_over_seeds(measurements):
        plain = replace(item, settings={name: value for name, value in item.settings.items() if name != STEP})
        where = (item.block, item.benchmark, item.num_samples)
        if item.method == BASE:
            bases[where] = plain
        else:
            found[*where, series_name(plain)].append((int(item.settings[STEP]), plain))
    return [
        Trajectory(
            block=block,
            benchmark=benchmark,
            method=method,
            num_samples=num_samples,
            base=bases.get((block, benchmark, num_samples)),
            points=_of_every_seed(points),
        )
        for (block, benchmark, num_samples, method), points in found.items()
    ]


def _of_every_seed(points: Sequence[tuple[int, Measurement]]) -> tuple[tuple[int, Measurement], ...]:
    """A line that changes its seeds on the way would jump where no policy did."""
    num_seeds = max(len(item.policies) for _, item in points)
    return tuple(sorted((p for p in points if len(p[1].policies) == num_seeds), key=lambda point: point[0]))

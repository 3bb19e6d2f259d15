"""Baselines that cost no training: warmer sampling, weights averaged with the base model's, samples from both."""

from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from apo_lab.reporting.laboratory.reading import BASELINES, LabRun, Methods, by_puzzle, pass_table
from apo_lab.reporting.laboratory.statistics import difference_of, mean_of
from apo_lab.reporting.names import method_name
from apo_lab.reporting.records import Table, left, right, row_of
from apo_lab.reporting.tables.cells import EMPTY, points_cell, share_cell, with_best_bold
from apo_lab.statistics.exact import exact_pass_at_k

TEMPERATURES = (1.25, 1.5, 2.0)
BASE_WEIGHTS = (0.25, 0.5, 0.75)
BASE_SHARES = (0.125, 0.5)
KS = (1, 8, 64)


def temperature_name(temperature: float) -> str:
    """Folder of the last policy, sampled at a temperature."""
    return f"temperature_{temperature:g}"


def averaged_name(weight: float) -> str:
    """Folder of the weights averaged with the base model's."""
    return f"averaged_{weight:g}"


def mixed_pass_at_k(run: LabRun, k: int, share: float) -> Float[Tensor, "problems"]:
    """Each problem's pass@k with k·share of the samples from the base model, and the others from the last policy.

        1 − (1 − p_base)^{k·share}·(1 − p)^{k·(1 − share)}

    The run's first evaluation point is the base model; k·share is whole. A single sample is the last policy's.
    """
    from_base = round(k * share) if k > 1 else 0
    base, last = run.scores(0).success.clamp(max=1.0), run.last.success.clamp(max=1.0)
    return 1 - (1 - base) ** from_base * (1 - last) ** (k - from_base)


def baselines_table(runs: Sequence[LabRun]) -> Table:
    """pass@k of GRPO's last policy, changed without training: warmer, averaged or mixed with the base model."""
    rows = []
    for puzzle, methods in by_puzzle(runs).items():
        if "grpo" in methods:
            grpo = pass_table(methods["grpo"], KS[-1])
            for name, tables in _variants(methods):
                against = EMPTY if name == method_name("grpo") else points_cell(difference_of(grpo, tables[-1]))
                means = (share_cell(mean_of(table)) for table in tables)
                rows.append(row_of(name, *means, against, section=puzzle, highlight=name == method_name("apo")))
    return Table(
        name="lab_baselines",
        title="Baselines that cost no training, on GRPO's last policy, in per cent",
        columns=(*left("Baseline"), *right(*(f"pass@{k}" for k in KS), "pass@64 − GRPO")),
        rows=with_best_bold(rows),
        notes=(
            "All exact. Averaged: (1 − w)·θ + w·θ_base. From the base: so many of the 64 samples (the same share of 8) "
            "are the base model's; a single sample is GRPO's.",
        ),
    )


def _variants(methods: Methods) -> Iterator[tuple[str, list[Tensor]]]:
    """Printed name, and pass@k of every seed and problem for each of `KS`."""
    grpo = methods["grpo"]
    yield method_name("grpo"), [pass_table(grpo, k) for k in KS]
    folders = [(f"temperature {t:g}", temperature_name(t)) for t in TEMPERATURES]
    folders += [(f"averaged, w = {w:g}", averaged_name(w)) for w in BASE_WEIGHTS]
    for name, folder in folders:
        if success := _measured(grpo, folder):
            yield name, [exact_pass_at_k(torch.stack(success), k) for k in KS]
    for share in BASE_SHARES:
        tables = [torch.stack([mixed_pass_at_k(run, k, share) for run in grpo]) for k in KS]
        yield f"{round(64 * share)} of 64 from the base", tables
    if "apo" in methods:
        yield method_name("apo"), [pass_table(methods["apo"], k) for k in KS]


def averaged_points(grpo: Sequence[LabRun]) -> list[tuple[float, float]]:
    """(pass@1, pass@64) of GRPO's weights averaged with the base model's, w rising; empty where it was not measured."""
    found = [torch.stack(success) for w in BASE_WEIGHTS if (success := _measured(grpo, averaged_name(w)))]
    return [(table.mean().item(), exact_pass_at_k(table, 64).mean().item()) for table in found]


def _measured(runs: Sequence[LabRun], name: str) -> list[Float[Tensor, "problems"]]:
    """p of each problem under a baseline, of the runs where it was measured."""
    paths = [
        (run, run.folder.parents[1] / f"{BASELINES}{run.method}" / run.folder.name / name / "step_000000.npz")
        for run in runs
    ]
    return [run.scored(path).success for run, path in paths if path.is_file()]

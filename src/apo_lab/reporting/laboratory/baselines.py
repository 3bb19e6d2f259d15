"""Baselines that cost no training: warmer sampling, weights averaged with the base model's, samples from both."""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from apo_lab.reporting.laboratory.reading import BASELINES, LabRun, by_method, puzzles_of
from apo_lab.reporting.laboratory.statistics import difference_of, mean_of
from apo_lab.reporting.names import method_name
from apo_lab.reporting.records import Table, left, right, row_of
from apo_lab.reporting.tables.cells import EMPTY, number_cell, share_cell, with_best_bold
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

    Args:
        run: its first evaluation point is the base model.
        k: samples in all.
        share: of them from the base model; k·share is whole. A single sample is the last policy's.
    """
    from_base = round(k * share) if k > 1 else 0
    base, last = run.scores(0).success.clamp(max=1.0), run.last.success.clamp(max=1.0)
    return 1 - (1 - base) ** from_base * (1 - last) ** (k - from_base)


def baselines_table(runs: Sequence[LabRun]) -> Table:
    """pass@k of GRPO's last policy, changed without training: warmer, averaged or mixed with the base model."""
    rows = []
    for puzzle in puzzles_of(runs):
        methods = by_method(runs, puzzle)
        if "grpo" not in methods:
            continue
        grpo = [_stacked(methods["grpo"], k) for k in KS]
        for name, pass_at, is_apo in _variants(methods["grpo"], methods.get("apo", ())):
            against = EMPTY
            if name != method_name("grpo"):
                against = number_cell(difference_of(grpo[-1], pass_at[-1]), scale=100.0, decimals=2, signed=True)
            means = (share_cell(mean_of(table)) for table in pass_at)
            rows.append(row_of(name, *means, against, section=puzzle, highlight=is_apo))
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


def _variants(grpo: Sequence[LabRun], apo: Sequence[LabRun]) -> Iterator[tuple[str, list[Tensor], bool]]:
    """Printed name, pass@k of every seed and problem for each of `KS`, and whether it is APO's row."""
    yield method_name("grpo"), [_stacked(grpo, k) for k in KS], False
    folders = [(f"temperature {t:g}", temperature_name(t)) for t in TEMPERATURES]
    folders += [(f"averaged, w = {w:g}", averaged_name(w)) for w in BASE_WEIGHTS]
    for name, folder in folders:
        success = [found for run in grpo if (found := _measured(run, folder)) is not None]
        if success:
            yield name, [exact_pass_at_k(torch.stack(success), k) for k in KS], False
    for share in BASE_SHARES:
        tables = [torch.stack([mixed_pass_at_k(run, k, share) for run in grpo]) for k in KS]
        yield f"{round(64 * share)} of 64 from the base", tables, False
    if apo:
        yield method_name("apo"), [_stacked(apo, k) for k in KS], True


def averaged_points(grpo: Sequence[LabRun]) -> list[tuple[float, float]]:
    """(pass@1, pass@64) of GRPO's weights averaged with the base model's, w rising; empty where it was not measured."""
    points = []
    for weight in BASE_WEIGHTS:
        success = [found for run in grpo if (found := _measured(run, averaged_name(weight))) is not None]
        if success:
            table = torch.stack(success)
            points.append((table.mean().item(), exact_pass_at_k(table, 64).mean().item()))
    return points


def _measured(run: LabRun, name: str) -> Float[Tensor, "problems"] | None:
    """p of each problem under a baseline; None where it was not measured."""
    path = run.folder.parents[1] / f"{BASELINES}{run.method}" / run.folder.name / name / "step_000000.npz"
    return run.listing.scores(torch.from_numpy(np.load(path)["logprobs"])).success if path.is_file() else None


def _stacked(runs: Sequence[LabRun], k: int) -> Float[Tensor, "seeds problems"]:
    return torch.stack([run.pass_at(k) for run in runs])

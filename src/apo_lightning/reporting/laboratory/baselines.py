"""A baseline that costs no training: part of the k samples drawn from the base model."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from apo_lightning.reporting.laboratory.reading import LabRun, by_method
from apo_lightning.reporting.laboratory.statistics import difference_of, mean_of
from apo_lightning.reporting.names import method_name
from apo_lightning.reporting.records import Cell, Column, Table, TableRow
from apo_lightning.reporting.tables.cells import EMPTY, number_cell, share_cell, with_best_bold

MIXED = ("grpo", "apo")
"""Methods whose samples are mixed with the base model's."""
BASE_SHARES = (0.0, 0.125, 0.5)
KS = (8, 64)


def mixed_pass_at_k(run: LabRun, k: int, share: float) -> Float[Tensor, "problems"]:
    """Each problem's pass@k with k·share of the samples from the base model, and the others from the last policy.

        1 − (1 − p_base)^{k·share}·(1 − p)^{k·(1 − share)}

    Args:
        run: whose first look is the base model's.
        k: samples in all.
        share: of them from the base model; k·share is whole.
    """
    from_base = round(k * share)
    base, last = run.scores(0).success.clamp(max=1.0), run.last.success.clamp(max=1.0)
    return 1 - (1 - base) ** from_base * (1 - last) ** (k - from_base)


def mixed_table(runs: Sequence[LabRun]) -> Table:
    """What the lost branches cost whoever has kept the base model."""
    rows = []
    for puzzle in dict.fromkeys(run.puzzle for run in runs):
        methods = by_method(runs, puzzle)
        for method in (name for name in MIXED if name in methods):
            for share in BASE_SHARES:
                pass_at = {k: _stacked(methods[method], k, share) for k in KS}
                against = EMPTY
                if "grpo" in methods and (method, share) != ("grpo", 0.0):
                    found = difference_of(_stacked(methods["grpo"], 64, 0.0), pass_at[64])
                    against = number_cell(found, scale=100.0, decimals=2, signed=True)
                rows.append(
                    TableRow(
                        cells=(
                            Cell(text=method_name(method)),
                            Cell(text=f"{round(64 * share)} of 64", value=share),
                            *(share_cell(mean_of(pass_at[k])) for k in KS),
                            against,
                        ),
                        section=puzzle,
                        highlight=method == "apo",
                    )
                )
    return Table(
        name="lab_mixed",
        title="With part of the samples from the base model, at the last step, in per cent",
        columns=(
            Column(name="Method", align="left"),
            Column(name="From the base"),
            *(Column(name=f"pass@{k}") for k in KS),
            Column(name="pass@64 − GRPO"),
        ),
        rows=with_best_bold(rows),
        notes=(
            "Exact, from the two policies' success on each problem. The first sample is the trained policy's, so that "
            "pass@1 is that of the main table.",
        ),
    )


def _stacked(runs: Sequence[LabRun], k: int, share: float) -> Float[Tensor, "seeds problems"]:
    return torch.stack([mixed_pass_at_k(run, k, share) for run in runs])

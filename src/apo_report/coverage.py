"""`coverage.json` as a record, and as a table on the terminal."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from rich.table import Table

from apo_lightning.evaluation.card import interval
from apo_lightning.evaluation.records import SCHEMA_VERSION, DataCard, Estimate, ModelCard


@dataclass(frozen=True, slots=True, kw_only=True)
class CoverageResult:
    """`coverage.json`: how often the next token of a worked solution is among the model's K most likely ones."""

    preset: str
    """Stem of the `coverage=` config: `math`."""
    model: ModelCard
    data: DataCard
    prompt: str
    num_tokens: int
    """Number of solution tokens that were scored."""
    recall: Mapping[int, Estimate]
    """K → token-weighted recall, with an interval from resampling problems."""
    versions: Mapping[str, str | None]
    num_without_solution: int = 0
    """Problems of the set without a worked solution."""
    num_too_long: int = 0
    """Problems skipped, since prompt and solution together are longer than `max_tokens`."""
    reachable: Mapping[int, Estimate] = field(default_factory=dict)
    """K → R_K, the share of solutions all of whose tokens are among the K most likely ones; it does not follow from
    the recall of tokens. The interval is exact (Clopper and Pearson) where each problem has one solution, else over
    problems."""
    schema: int = SCHEMA_VERSION


def recall_table(result: CoverageResult) -> Table:
    """Recall of tokens and share of whole solutions by K, for the terminal."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("K", "recall", "95% interval", "whole solutions", "95% interval"):
        table.add_column(name, justify="right", no_wrap=True)
    for k, recall in result.recall.items():
        whole = result.reachable[k]
        cells = (f"{100 * recall.value:.2f}", interval("pass@1", recall))
        table.add_row(str(k), *cells, f"{100 * whole.value:.2f}", interval("pass@1", whole))
    return table

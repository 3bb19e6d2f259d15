"""How often the next token of a worked solution is among a model's K most likely ones."""

from apo_lab.reporting.names import in_method_order, in_model_order, method_name, model_name
from apo_lab.reporting.published import published
from apo_lab.reporting.records import Cell, Column, Covered, Evaluations, Table, TableRow
from apo_lab.reporting.tables.cells import EMPTY, share_cell


def coverage_table(evaluations: Evaluations) -> Table:
    """Oracle recall at K [%] of every model that was measured, the published row last; a block for each preset.

    Source: the paper's table of oracle coverage.
    """
    found = evaluations.coverage
    sizes = sorted({k for item in found for k in item.result.recall})
    rows = [_row(item, sizes) for item in _in_order(found)]
    if rows:
        rows.append(_published(sizes))
    return Table(
        name="coverage",
        title="Oracle coverage",
        columns=(
            *(Column(name=name, align="left") for name in ("Model", "Method")),
            Column(name="Tokens"),
            *(Column(name=f"Top-{k}") for k in sizes),
        ),
        rows=tuple(rows),
        notes=("Recall in per cent of solution tokens. In brackets: 95 % interval over problems.",) if rows else (),
    )


def _in_order(found: tuple[Covered, ...]) -> list[Covered]:
    models = in_model_order(item.model for item in found)
    methods = in_method_order(item.method for item in found)
    return sorted(found, key=lambda c: (c.result.preset, models.index(c.model), methods.index(c.method), str(c.path)))


def _row(item: Covered, sizes: list[int]) -> TableRow:
    recalls = (share_cell(item.result.recall.get(k)) for k in sizes)
    count = item.result.num_tokens
    cells = (Cell(text=item.model), Cell(text=item.method), Cell(text=f"{count:,}", value=float(count)), *recalls)
    return TableRow(cells=cells, section=f"{item.result.preset} solutions")


def _published(sizes: list[int]) -> TableRow:
    recall = {cell.metric: cell for cell in published("coverage")}
    first = recall["recall@1"]
    names = (Cell(text=model_name(first.model)), Cell(text=method_name(first.method)), EMPTY)
    cells = (recall.get(f"recall@{k}") for k in sizes)
    numbers = (Cell(text=cell.text, value=cell.value) if cell else EMPTY for cell in cells)
    return TableRow(cells=(*names, *numbers), section=f"Published ({first.benchmark}, 1,000 problems)")

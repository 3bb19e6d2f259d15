"""How often the next token of a worked solution is among a model's K most likely ones."""

from apo_lab.reporting.names import in_method_order, in_model_order, method_name, model_name
from apo_lab.reporting.published import published
from apo_lab.reporting.records import Cell, Covered, Evaluations, Table, TableRow, left, right, row_of
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
        columns=(*left("Model", "Method"), *right("Tokens", *(f"Top-{k}" for k in sizes))),
        rows=tuple(rows),
        notes=("Recall in per cent of solution tokens. In brackets: 95 % interval over problems.",) if rows else (),
    )


def _in_order(found: tuple[Covered, ...]) -> list[Covered]:
    models = in_model_order(item.model for item in found)
    methods = in_method_order(item.method for item in found)
    return sorted(found, key=lambda c: (c.result.preset, models.index(c.model), methods.index(c.method), str(c.path)))


def _row(item: Covered, sizes: list[int]) -> TableRow:
    recalls = (share_cell(item.result.recall.get(k)) for k in sizes)
    tokens = Cell(f"{item.result.num_tokens:,}", float(item.result.num_tokens))
    return row_of(item.model, item.method, tokens, *recalls, section=f"{item.result.preset} solutions")


def _published(sizes: list[int]) -> TableRow:
    recall = {cell.metric: cell for cell in published("coverage")}
    first, cells = recall["recall@1"], [recall.get(f"recall@{k}") for k in sizes]
    numbers = (Cell(cell.text, cell.value) if cell else EMPTY for cell in cells)
    section = f"Published ({first.benchmark}, 1,000 problems)"
    return row_of(model_name(first.model), method_name(first.method), EMPTY, *numbers, section=section)

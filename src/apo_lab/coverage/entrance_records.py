"""`entrances.json` as a record, and as tables on the terminal."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rich.table import Table

from apo_lightning.evaluation.records import SCHEMA_VERSION, ModelCard
from apo_lightning.model.fingerprint import versions

Row = Mapping[str, str | int | float]
"""A row of a table, by column."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EntranceResult:
    """`entrances.json`: where a policy lost right answers. Shares and differences of them are in [−1, 1]."""

    puzzle: str
    decision: str
    """The kind of token that is the first decision."""
    k: int
    temperature: float
    model: ModelCard
    num_problems: int
    metrics: Mapping[str, Mapping[str, float]]
    """`Entrances.metrics` and `cover_curve` of `base`, of `policy`, and of `forced`: the policy's skills behind the
    base model's entrances."""
    change: Mapping[str, float]
    """`locked`, `opened`, `forgotten` and `learnt`, which sum to the policy's pass@k minus the base model's."""
    decisions: Sequence[Row]
    """Rows of `by_decision`."""
    shift: Sequence[Row]
    """`kl` [nats] and `total_variation` by `place`, 0 for the first decision."""
    averages: Sequence[Row]
    """`Entrances.metrics` of the averages with the base model, by `part` of the model and `base_weight`."""
    versions: Mapping[str, str | None] = field(default_factory=versions)
    schema: int = SCHEMA_VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class TextTable:
    """A table of text, whose first column names the rows."""

    title: str
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]

    def on_terminal(self) -> Table:
        """For the terminal."""
        table = Table(title=self.title, title_justify="left", box=None, padding=(0, 2, 0, 0), header_style="dim")
        for place, head in enumerate(self.heads):
            table.add_column(head, justify="right" if place else "left", no_wrap=True)
        for row in self.rows:
            table.add_row(*row)
        return table

    def in_markdown(self) -> str:
        """For a file."""
        ruler = ["---", *["--:"] * (len(self.heads) - 1)]
        lines = [f"| {' | '.join(cells)} |" for cells in (self.heads, ruler, *self.rows)]
        return "\n".join([f"## {self.title}", "", *lines, ""])


def entrance_tables(result: EntranceResult) -> list[TextTable]:
    """What was lost, also by first decision; shift by place; Cover@τ; averages by part of the model."""
    k, metrics = result.k, result.metrics
    cover = [key for key in metrics["base"] if key.startswith("cover@")]
    shown = [key for key in metrics["base"] if key not in cover]
    names = {"base": "base", "policy": "policy", "forced": "policy's skills, base's entrances"}
    parts = {"difference": metrics["policy"][f"pass@{k}"] - metrics["base"][f"pass@{k}"], **result.change}
    pairs = ("mass", "entered", "forced_pass@1", f"forced_pass@{k}")
    return [
        TextTable(
            title=f"{result.puzzle}, {result.num_problems} problems [%; entered: a number of entrances]",
            heads=["", *shown],
            rows=[[names[of], *(_cell(key, values[key]) for key in shown)] for of, values in metrics.items()],
        ),
        TextTable(title=f"change of pass@{k} [points]", heads=["", *parts], rows=[["", *map(_points, parts.values())]]),
        TextTable(
            title=f"by {result.decision}: entrances, base → policy [%]; parts of the change of pass@{k} [points]",
            heads=["", "number", *pairs, *result.change],
            rows=[
                [
                    *(str(row["decision"]), str(row["num_entrances"])),
                    *(f"{_cell(key, row[f'base_{key}'])} → {_cell(key, row[f'policy_{key}'])}" for key in pairs),
                    *(_points(row[part]) for part in result.change),
                ]
                for row in result.decisions
            ],
        ),
        TextTable(
            title="shift of the next-token distribution, by place from the first decision",
            heads=["place", "token", "KL [nats]", "total variation"],
            rows=[
                [f"{row['place']:+d}", str(row["kind"]), f"{row['kl']:.4f}", f"{row['total_variation']:.4f}"]
                for row in result.shift
            ],
        ),
        TextTable(
            title="Cover@τ: problems that one sample solves with a probability of at least τ [%]",
            heads=["τ", *(key.removeprefix("cover@") for key in cover)],
            rows=[[of, *(_cell(key, metrics[of][key]) for key in cover)] for of in ("base", "policy")],
        ),
        TextTable(
            title="averages with the base model [%; entered: a number of entrances]",
            heads=["part", "base's weight", *shown],
            rows=[
                [str(row["part"]), f"{row['base_weight']:g}", *(_cell(key, row[key]) for key in shown)]
                for row in result.averages
            ],
        ),
    ]


def _cell(name: str, value: str | int | float) -> str:
    """A share in per cent; a number of entrances as such."""
    return f"{float(value):.2f}" if name.startswith("entered@") else f"{100 * float(value):.1f}"


def _points(part: str | int | float) -> str:
    return f"{100 * float(part):+.2f}"

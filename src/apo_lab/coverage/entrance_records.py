"""`entrances.json` of both measures, exact and from samples, as records and as pages of tables."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from apo_lab.diagnostics.answer_tree import Row
from apo_lightning.evaluation.records import SCHEMA_VERSION, Estimate, ModelCard
from apo_lightning.model.fingerprint import versions


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
class SampledEntranceResult:
    """`entrances.json` of `SampledEntranceCoverage`; shares and differences of them are in [−1, 1]."""

    k: int
    entrance_tokens: int
    num_samples: int
    """Free samples of a problem, from each model."""
    num_forced: int
    """Samples behind each entrance, from each model."""
    temperature: float
    model: ModelCard
    num_problems: int
    num_with_entrance: int
    """Problems that either model has solved."""
    metrics: Mapping[str, Mapping[str, float]]
    """`Entrances.metrics` of `base` and of `policy`, from masses and forced samples, and the pass@1 and pass@k of their
    free samples, unbiased."""
    difference: Estimate
    """Of the policy's pass@k and the base model's, of their free samples."""
    change: Mapping[str, Estimate]
    """`locked`, `opened`, `forgotten`, `learnt` and their sum, `change`, from masses and forced samples."""
    decisions: Sequence[Row]
    """Rows of `by_decision`, by the text of the entrance."""
    versions: Mapping[str, str | None] = field(default_factory=versions)
    schema: int = SCHEMA_VERSION


MOST_DECISIONS = 20
"""Rows of a page; `entrances.csv` has all entrances."""


def sampled_page(result: SampledEntranceResult) -> str:
    """All tables as aligned Markdown: what was lost, with 95 % intervals, and the entrances of the largest parts."""
    k, metrics = result.k, result.metrics
    shown = [*metrics["base"]]
    pairs = ("mass", "forced_pass@1")
    parts = [name for name in result.change if name != "change"]
    largest = sorted(result.decisions, key=lambda row: -sum(abs(float(row[part])) for part in parts))
    decisions = [
        [f"`{row['decision']}`", str(row["num_entrances"])]
        + [f"{_percent(row[f'base_{key}'])} → {_percent(row[f'policy_{key}'])}" for key in pairs]
        + [_points(row[part]) for part in parts]
        for row in largest[:MOST_DECISIONS]
    ]
    changes = {f"pass@{k} of the samples": result.difference, "by entrance": result.change["change"]}
    changes |= {part: result.change[part] for part in parts}
    tables = (
        (
            f"{result.num_problems} problems, {result.num_with_entrance} solved by either model; entrances of "
            f"{result.entrance_tokens} tokens [%; entered: a number]",
            ["", *shown],
            [[name, *(_cell(key, metrics[name][key]) for key in shown)] for name in metrics],
        ),
        (f"change of pass@{k} [points, 95 %]", [*changes], [[*map(_interval, changes.values())]]),
        (f"by entrance: base → policy [%], change of pass@{k} [points]", ["", "number", *pairs, *parts], decisions),
    )
    return "\n".join(f"## {title}\n\n{_markdown([heads, *rows])}\n" for title, heads, rows in tables)


def entrance_page(result: EntranceResult) -> str:
    """All tables as aligned Markdown: what was lost, by first decision, shift, Cover@τ, averages."""
    k, metrics = result.k, result.metrics
    cover = [key for key in metrics["base"] if key.startswith("cover@")]
    shown = [key for key in metrics["base"] if key not in cover]
    names = {"base": "base", "policy": "policy", "forced": "policy's skills, base's entrances"}
    parts = {"difference": metrics["policy"][f"pass@{k}"] - metrics["base"][f"pass@{k}"], **result.change}
    pairs = ("mass", f"entered@{k}", "forced_pass@1", f"forced_pass@{k}")
    whole = [[names[of], *(_cell(key, values[key]) for key in shown)] for of, values in metrics.items()]
    decisions = [
        [str(row["decision"]), str(row["num_entrances"])]
        + [f"{_percent(row[f'base_{key}'])} → {_percent(row[f'policy_{key}'])}" for key in pairs]
        + [_points(row[part]) for part in result.change]
        for row in result.decisions
    ]
    shift = [[f"{r['place']:+}", str(r["kind"]), f"{r['kl']:.4f}", f"{r['total_variation']:.4f}"] for r in result.shift]
    curve = [[of, *(_percent(metrics[of][key]) for key in cover)] for of in ("base", "policy")]
    averages = [
        [str(row["part"]), f"{row['base_weight']:g}", *(_cell(key, row[key]) for key in shown)]
        for row in result.averages
    ]
    of_k = f"change of pass@{k} [points]"
    tables = (
        (f"{result.puzzle}, {result.num_problems} problems [%; entered: a number]", ["", *shown], whole),
        (of_k, [*parts], [[*map(_points, parts.values())]]),
        (f"by {result.decision}: base → policy [%], {of_k}", ["", "number", *pairs, *result.change], decisions),
        ("shift by place from the first decision", ["place", "token", "KL [nats]", "total variation"], shift),
        ("Cover@τ [%]", ["τ", *(key.removeprefix("cover@") for key in cover)], curve),
        ("averages with the base model [%; entered: a number]", ["part", "base's weight", *shown], averages),
    )
    return "\n".join(f"## {title}\n\n{_markdown([heads, *rows])}\n" for title, heads, rows in tables)


def _markdown(rows: Sequence[Sequence[str]]) -> str:
    """Rows of cells, the heads first."""
    widths = [max(3, *map(len, column)) for column in zip(*rows, strict=True)]
    lines = [" | ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    lines.insert(1, " | ".join("-" * (width - 1) + ":" for width in widths))
    return "\n".join(f"| {line} |" for line in lines)


def _cell(name: str, value: str | int | float) -> str:
    """A share in per cent, or a number of entrances."""
    return f"{value:.2f}" if name.startswith("entered@") else _percent(value)


def _percent(share: str | int | float) -> str:
    return f"{100 * float(share):.1f}"


def _points(part: str | int | float) -> str:
    return f"{100 * float(part):+.2f}"


def _interval(estimate: Estimate) -> str:
    return f"{_points(estimate.value)} [{_points(estimate.low)}, {_points(estimate.high)}]"

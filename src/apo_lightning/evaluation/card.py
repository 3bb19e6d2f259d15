"""The presentation of results: `results.json`, `card.md`, and a table for the terminal."""

from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from apo_lightning.common.files import write_atomically
from apo_lightning.evaluation.loading import write_record
from apo_lightning.evaluation.records import Estimate, EvaluationResult
from apo_lightning.evaluation.results import SHARES
from apo_lightning.types import VerdictStatus

MAX_TRUNCATED = 0.05
"""Share of truncated samples above which the token limit distorts the results."""
MAX_UNPARSED = 0.1
"""Share of unparsed samples above which the format of answers distorts the results."""


def write_card(folder: Path, result: EvaluationResult) -> None:
    """Write `results.json` and `card.md`."""
    write_record(folder / "results.json", result)
    write_atomically(folder / "card.md", card(result).encode())


def card(result: EvaluationResult) -> str:
    """Metrics with their intervals and what they were measured on, as Markdown. `results.json` has all settings."""
    model, data, settings = result.model, result.data, result.settings
    trained = "" if model.algo is None else f", trained by {model.algo} ({' '.join(model.overrides) or 'defaults'})"
    verdicts = ", ".join(f"{count} {status}" for status, count in result.verdicts.items())
    lines = [f"# {model.name} on {result.benchmark}", ""]
    lines += [f"> **Look out:** {warning}." for warning in warnings(result)]
    lines += ["", "| metric | value | 95 % interval |", "|---|--:|--:|"]
    lines += [f"| {name} | {shown(name, e.value)} | {interval(name, e)} |" for name, e in result.metrics.items()]
    lines += [
        "",
        f"{data.num_problems} of {data.num_available} problems ({data.source}), {settings.num_samples} samples each, "
        f"at temperature {settings.temperature:g}, top-p {settings.top_p:g} and at most "
        f"{settings.max_completion_tokens} tokens: {verdicts}.",
        "",
        f"Weights {model.path or 'at random'}, sha256 `{model.weights_sha256[:16]}`{trained}.",
    ]
    return "\n".join(lines) + "\n"


def warnings(result: EvaluationResult) -> list[str]:
    """Reasons to doubt the numbers, one clause each."""
    num_samples = max(1, sum(result.verdicts.values()))
    found = []
    if result.num_truncated > MAX_TRUNCATED * num_samples:
        limit = result.settings.max_completion_tokens
        found.append(f"{result.num_truncated / num_samples:.1%} of the samples were cut at {limit} tokens")
    if (unparsed := result.verdicts.get("unparsed", 0)) > MAX_UNPARSED * num_samples:
        found.append(f"no answer was found in {unparsed / num_samples:.1%} of the samples; they count as wrong")
    failures: dict[VerdictStatus, str] = {"timeout": "ran out of time", "error": "failed"}
    for status, failure in failures.items():
        if count := result.verdicts.get(status, 0):
            found.append(f"the verifier {failure} on {count} of {num_samples} samples; they count as wrong")
    return found


def shown(name: str, value: float) -> str:
    """A fraction in per cent; other metrics as they are.

    Example:
        >>> shown("pass@1", 0.4125), shown("entropy", 0.4051), shown("completion_tokens", 318.25)
        ('41.25 %', '0.405', '318.2')
    """
    if name.startswith(SHARES):
        return f"{100 * value:.2f} %"
    return f"{value:.1f}" if name == "completion_tokens" else f"{value:.3f}"


def interval(name: str, estimate: Estimate) -> str:
    """`[38.10, 44.40]`, in the unit of `shown`."""
    low, high = (shown(name, bound).removesuffix(" %") for bound in (estimate.low, estimate.high))
    return f"[{low}, {high}]"


def result_table(results: Sequence[EvaluationResult]) -> Table:
    """A table with one row per benchmark."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("benchmark", no_wrap=True)
    for name in ("samples", "pass@1 [95%]", "pass@n [95%]", "maj@n", "cut", "unread"):
        table.add_column(name, justify="right", no_wrap=True)
    for result in results:
        n, total = result.settings.num_samples, sum(result.verdicts.values())
        table.add_row(
            result.title,
            f"{result.data.num_problems} x {n}",
            *(_with_interval(result.metrics[name]) for name in ("pass@1", f"pass@{n}")),
            f"{100 * result.metrics[f'maj@{n}'].value:.1f}" if f"maj@{n}" in result.metrics else "–",
            f"{result.num_truncated / total:.0%}",
            f"{result.verdicts['unparsed'] / total:.0%}",
        )
    return table


def _with_interval(estimate: Estimate) -> str:
    """A fraction and its interval in per cent: `41.2 [38.1, 44.4]`."""
    return f"{100 * estimate.value:.1f} [{100 * estimate.low:.1f}, {100 * estimate.high:.1f}]"

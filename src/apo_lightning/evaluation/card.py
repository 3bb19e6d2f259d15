"""The presentation of results: `results.json`, `card.md`, and a table for the terminal."""

from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from apo_lightning.common.files import write_atomically
from apo_lightning.evaluation.loading import write_record
from apo_lightning.evaluation.records import Estimate, EvaluationResult, ModelCard
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
    """Metrics, policy, problems, sampling settings and versions, as Markdown."""
    model, data, settings = result.model, result.data, result.settings
    lines = [f"# {model.name} on {result.benchmark}", ""]
    lines += [f"> **Look out:** {warning}." for warning in warnings(result)]
    lines += ["", "| metric | value | 95 % interval |", "|---|--:|--:|"]
    lines += [f"| {name} | {shown(name, e.value)} | {interval(name, e)} |" for name, e in result.metrics.items()]
    num_samples = sum(result.verdicts.values())
    rows = {
        "policy": f"{model.path or 'random weights'}, weights sha256 `{model.weights_sha256[:16]}`, {model.dtype}",
        "trained by": _training(model),
        "problems": f"{data.num_problems} of {data.num_available}, {data.source}, sha256 `{data.sha256[:16]}`",
        "samples": f"{num_samples} ({settings.num_samples} a problem), {result.num_tokens} tokens",
        "sampling": f"temperature {settings.temperature:g}, top-p {settings.top_p:g}, at most "
        f"{settings.max_completion_tokens} tokens, seed {settings.seed}, batches of {settings.samples_per_batch}",
        "engine, reward": f"{settings.engine}, {settings.reward}",
        "verdicts": ", ".join(f"{count} {status}" for status, count in result.verdicts.items()),
        "truncated": f"{result.num_truncated} ({result.num_truncated / num_samples:.1%})",
        "versions": ", ".join(f"{name} {version}" for name, version in result.versions.items() if version),
    }
    lines += ["", "| | |", "|---|---|", *(f"| {name} | {text} |" for name, text in rows.items())]
    lines += ["", "The prompt, `{problem}` standing for the problem:", "", "```text", settings.prompt, "```", ""]
    lines += [f"- {name}: {note}" for name, note in result.notes.items()]
    return "\n".join(lines).rstrip() + "\n"


def in_one_line(result: EvaluationResult) -> str:
    """Shares of solved problems with their intervals, for the model card of an export."""
    n = result.settings.num_samples
    estimates = {name: result.metrics[name] for name in dict.fromkeys(("pass@1", f"pass@{n}", f"maj@{n}"))}
    values = ", ".join(f"{name} {shown(name, e.value)} {interval(name, e)}" for name, e in estimates.items())
    return (
        f"{result.benchmark}, {result.data.num_problems} problems × {n} samples at temperature "
        f"{result.settings.temperature:g}: {values} (95 % intervals over problems)"
    )


def _training(model: ModelCard) -> str:
    if model.algo is None:
        return "not trained here" if model.step is None else f"nothing yet: what {model.run} began as"
    at = "" if model.step is None else f", step {model.step}"
    return f"{model.algo} ({' '.join(model.overrides) or 'defaults'}){at}"


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
            result.benchmark if result.model.step is None else f"{result.benchmark}, step {result.model.step}",
            f"{result.data.num_problems} x {n}",
            *(_with_interval(result.metrics[name]) for name in ("pass@1", f"pass@{n}")),
            f"{100 * result.metrics[f'maj@{n}'].value:.1f}",
            f"{result.num_truncated / total:.0%}",
            f"{result.verdicts['unparsed'] / total:.0%}",
        )
    return table


def _with_interval(estimate: Estimate) -> str:
    """A fraction and its interval in per cent: `41.2 [38.1, 44.4]`."""
    return f"{100 * estimate.value:.1f} [{100 * estimate.low:.1f}, {100 * estimate.high:.1f}]"

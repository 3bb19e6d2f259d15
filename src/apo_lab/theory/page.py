"""The statements as lines for the terminal, and as the body of `docs/theory.md`."""

from collections.abc import Sequence

from apo_lab.theory.statements import Reading, Statement

BEGIN, END = "<!-- statements -->", "<!-- end of statements -->"
"""Marks on the page; the text between them is generated."""


def number(value: float | int) -> str:
    """Format a number with three digits; rounding errors become 0.

    Example:
        >>> number(0.94512), number(3e-16), number(72), number(125004.0)
        ('0.945', '0', '72', '1.25e+05')
    """
    return "0" if abs(value) < 1e-9 else f"{value:.3g}"


def summary(statement: Statement, readings: Sequence[Reading]) -> str:
    """One statement in a line: how many of its readings hold; each that does not has a line of its own."""
    broken = [reading for reading in readings if not reading.holds]
    held = f"{len(readings) - len(broken)}/{len(readings)}"
    lines = [f"{statement.key:4}{statement.title:33}{statement.truth:13}{held:>5} readings hold"]
    lines += [f"    {r.what}: {number(r.measured)}, not {r.relation} {number(r.predicted)}" for r in broken]
    return "\n".join(lines)


def section(statement: Statement, readings: Sequence[Reading]) -> str:
    """One statement as Markdown."""
    rows = [(r.what.replace("|", "\\|"), number(r.measured), f"{r.relation} {number(r.predicted)}") for r in readings]
    lines = [
        f"### {statement.key}. {statement.title}: {statement.truth}",
        "",
        f"*{statement.claim}* ({statement.where})",
        "",
        statement.formula,
        "",
        "| number | measured | predicted |",
        "|---|--:|--:|",
        *(f"| {what} | {measured} | {predicted} |" for what, measured, predicted in rows),
        "",
    ]
    if statement.figure:
        lines += [f"Figure: [{statement.figure}](figures/theory/{statement.figure}.svg)", ""]
    return "\n".join(lines)


def fill(page: str, generated: str) -> str:
    """Replace the text between the marks of a page."""
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n\n{generated}\n{END}{rest.partition(END)[2]}"

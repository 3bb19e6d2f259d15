"""The statements as lines for the terminal, and as the body of `docs/theory.md`."""

from collections.abc import Mapping, Sequence

from apo_lab.theory.statements import Reading, Statement

Checked = Mapping[str, Sequence[Reading]]
"""The readings of each statement's check, by the statement's key."""
BEGIN, END = "<!-- statements -->", "<!-- end of statements -->"
"""Marks on the page; the text between them is generated."""


def number(value: float | int) -> str:
    """Format a number with three digits; rounding errors become 0.

    Example:
        >>> number(0.94512), number(3e-16), number(72), number(125004.0)
        ('0.945', '0', '72', '1.25e+05')
    """
    return "0" if abs(value) < 1e-9 else f"{value:.3g}"


def relation(reading: Reading) -> str:
    """The prediction as text: `= 0.945`, `< 0.8`."""
    return f"{reading.relation} {number(reading.predicted)}"


def summary(statement: Statement, readings: Sequence[Reading]) -> str:
    """One statement in a line: how many of its readings hold; each that does not has a line of its own."""
    broken = [reading for reading in readings if not reading.holds]
    held = f"{len(readings) - len(broken)}/{len(readings)}"
    lines = [f"{statement.key:4}{statement.title:33}{statement.finding:13}{held:>5} readings hold"]
    return "\n".join([*lines, *(f"    {r.what}: {number(r.measured)}, predicted {relation(r)}" for r in broken)])


def markdown(statements: Sequence[Statement], checked: Checked) -> str:
    """The generated part of `docs/theory.md`: every statement with every reading."""
    return "\n".join(section(statement, checked[statement.key]) for statement in statements)


def section(statement: Statement, readings: Sequence[Reading]) -> str:
    """One statement as Markdown."""
    lines = [
        f"### {statement.key}. {statement.title}: {statement.finding}",
        "",
        f"*{statement.claim}* ({statement.where})",
        "",
        statement.formula,
        "",
        "| number | measured | predicted |",
        "|---|--:|--:|",
        *["| " + " | ".join([r.what.replace("|", "\\|"), number(r.measured), relation(r)]) + " |" for r in readings],
        "",
    ]
    if statement.figure:
        lines += [f"Figure: [{statement.figure}](figures/theory/{statement.figure}.svg)", ""]
    return "\n".join(lines)


def fill(page: str, generated: str) -> str:
    """Replace the text between the marks of a page.

    Example:
        >>> fill(f"a {BEGIN} old {END} b", "new").split()
        ['a', '<!--', 'statements', '-->', 'new', '<!--', 'end', 'of', 'statements', '-->', 'b']
    """
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n\n{generated}\n{END}{rest.partition(END)[2]}"

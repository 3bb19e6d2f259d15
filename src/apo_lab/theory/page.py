"""The statements as tables: for the terminal, and as the body of `docs/theory.md`."""

from collections.abc import Mapping, Sequence

from rich.table import Table

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


def statements_table(statements: Sequence[Statement], checked: Checked) -> Table:
    """One row per statement, with its most telling reading and how many of its readings hold."""
    table = Table(
        title="The paper's propositions on the losses that train", title_justify="left", box=None, pad_edge=False
    )
    for column in ("", "claim", "finding", "number", "measured", "predicted", "held"):
        justify = "right" if column in ("measured", "held") else "left"
        table.add_column(column, justify=justify, overflow="fold")
    for statement in statements:
        readings = checked[statement.key]
        shown, held = telling(readings), sum(reading.holds for reading in readings)
        cells = (statement.key, statement.title, statement.finding, shown.what, number(shown.measured), relation(shown))
        table.add_row(*cells, f"{held}/{len(readings)}", style="" if held == len(readings) else "bold red")
    return table


def telling(readings: Sequence[Reading]) -> Reading:
    """The first reading that does not hold, else the last that is not 0, else the first.

    Example:
        >>> zero, half = (Reading(what="x", measured=v, predicted=v) for v in (0.0, 0.5))
        >>> telling([zero, half]).measured
        0.5
    """
    broken = [reading for reading in readings if not reading.holds]
    informative = [reading for reading in readings if number(reading.measured) != "0" and reading.predicted != 0]
    return (broken or informative[-1:] or list(readings))[0]


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

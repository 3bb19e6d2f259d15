"""The statements as tables: for the terminal, and as the body of `docs/theory.md`."""

from collections.abc import Mapping, Sequence

from rich.table import Table

from apo_lab.theory.growth import METHODS, SCENES, growth
from apo_lab.theory.statements import Reading, Statement

Checked = Mapping[str, Sequence[Reading]]
"""What each statement's check handed back, by the statement's key."""
BEGIN, END = "<!-- statements -->", "<!-- end of statements -->"
"""What is between them on the page is made from the list."""


def number(value: float | int) -> str:
    """A number with what is known of it; rounding errors as such.

    Example:
        >>> number(0.94512), number(3e-16), number(72), number(125004.0)
        ('0.945', '0', '72', '1.25e+05')
    """
    return "0" if abs(value) < 1e-9 else f"{value:.3g}"


def relation(reading: Reading) -> str:
    """What was predicted: `= 0.945`, `< 0.8`."""
    return f"{reading.relation} {number(reading.predicted)}"


def statements_table(statements: Sequence[Statement], checked: Checked) -> Table:
    """A row a statement: the reading that differs most from 0 stands for the others."""
    table = Table(
        title="The paper's propositions on the shipped losses", title_justify="left", box=None, pad_edge=False
    )
    for column in ("", "claim", "verdict", "number", "measured", "predicted", "held"):
        table.add_column(column, justify="right" if column in ("measured", "held") else "left", overflow="fold")
    for statement in statements:
        readings = checked[statement.key]
        shown = telling(readings)
        held = sum(reading.holds for reading in readings)
        style = "" if held == len(readings) else "bold red"
        table.add_row(
            statement.key,
            statement.title,
            statement.verdict,
            shown.what,
            number(shown.measured),
            relation(shown),
            f"{held}/{len(readings)}",
            style=style,
        )
    return table


def telling(readings: Sequence[Reading]) -> Reading:
    """A reading that did not hold; else the last that is not about 0; else the first.

    Example:
        >>> zero, half = (Reading(what="x", measured=v, predicted=v) for v in (0.0, 0.5))
        >>> telling([zero, half]).measured
        0.5
    """
    broken = [reading for reading in readings if not reading.holds]
    informative = [reading for reading in readings if number(reading.measured) != "0" and reading.predicted != 0]
    return (broken or informative[-1:] or list(readings))[0]


def growth_table() -> Table:
    """ℓ_k of the suppressed branch in every scene, and f_k/π_k where an error leads."""
    table = Table(title="Growth of a suppressed valid branch", title_justify="left", box=None, pad_edge=False)
    for column in _growth_columns():
        table.add_column(column, justify="left" if column == "method" else "right")
    for row in _growth_rows():
        table.add_row(*row)
    return table


def _growth_columns() -> list[str]:
    return ["method", *[f"A: f/π at {rare:.0e}" for rare in (1e-2, 1e-4, 1e-8)], *[f"ℓ, {scene}" for scene in SCENES]]


def _growth_rows() -> list[list[str]]:
    rows = []
    for method in METHODS:
        forces = [number(growth(method, "A", rare).per_probability) for rare in (1e-2, 1e-4, 1e-8)]
        rates = [f"{growth(method, scene, 1e-8).log_growth:.4f}".replace("-0.0000", "0.0000") for scene in SCENES]
        rows.append([method, *forces, *rates])
    return rows


def markdown(statements: Sequence[Statement], checked: Checked) -> str:
    """The part of `docs/theory.md` that is made: every statement with every number, then the table of growth.

    Readings are given as measured to three digits; identities as 0.
    """
    parts = [section(statement, checked[statement.key]) for statement in statements]
    columns = _growth_columns()
    table = [_row(columns), _row(["---"] + ["--:"] * (len(columns) - 1)), *(_row(row) for row in _growth_rows())]
    scenes = "; ".join(f"{name}: {scene.what}" for name, scene in SCENES.items())
    heading = "## Growth of a suppressed valid branch"
    words = f"ℓ in nats per unit of η at π_k = 1e-8; f/π is the force per unit of probability. {scenes}."
    return "\n".join([*parts, heading, "", words, "", *table, ""])


def section(statement: Statement, readings: Sequence[Reading]) -> str:
    """One statement."""
    lines = [
        f"### {statement.key}. {statement.title}: {statement.verdict}",
        "",
        f"*{statement.claim}* ({statement.where})",
        "",
        f"{statement.formula}.",
        "",
        "| number | measured | predicted |",
        "|---|--:|--:|",
        *[_row([r.what, number(r.measured), relation(r)]) for r in readings],
        "",
    ]
    if statement.figure:
        lines += [f"Figure: [{statement.figure}](figures/theory/{statement.figure}.svg)", ""]
    return "\n".join(lines)


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def fill(page: str, made: str) -> str:
    """The page with what is between the marks replaced.

    Example:
        >>> fill(f"a {BEGIN} old {END} b", "new").split()
        ['a', '<!--', 'statements', '-->', 'new', '<!--', 'end', 'of', 'statements', '-->', 'b']
    """
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n\n{made}\n{END}{rest.partition(END)[2]}"

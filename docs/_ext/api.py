"""The reference of the public names, from the table in `docs/extending.md` and the docstrings."""

import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from sphinx.application import Sphinx

DOCNAME = "reference/api"
ROW = re.compile(r"^\| `(apo_lightning[\w.]*)` \| (`.+`) \| (.+) \|$", re.MULTILINE)


def sections(table: str) -> Iterator[str]:
    """A section for each module of the table, with a directive for each of its names."""
    for module, names, purpose in ROW.findall(table):
        yield f"## {module}\n\n{purpose[0].upper()}{purpose[1:]}.\n"
        directives = [directive(module, name) for name in re.findall(r"`(\w+)`", names)]
        yield "\n".join(["```{eval-rst}", *directives, "```", ""])


def directive(module: str, name: str) -> str:
    """The directive that documents a public name."""
    value = getattr(importlib.import_module(module), name, None)
    if value is None or isinstance(value, ModuleType):
        return f"``{module}.{name}`` is a module.\n"
    if inspect.isclass(value):
        return f".. autoclass:: {module}.{name}\n   :members:\n"
    if callable(value) and hasattr(value, "__code__"):
        return f".. autofunction:: {module}.{name}\n"
    return f".. autodata:: {module}.{name}\n"


def as_rst(docstring: str) -> str:
    r"""A docstring, whose prose is Markdown, as reStructuredText that napoleon reads.

    >>> print(as_rst("The mass of `S`.\n\n    r = |A|\n\nSource: Wang 2026,\n    Eq. 8."))
    The mass of ``S``.
    <BLANKLINE>
    ::
    <BLANKLINE>
        r = |A|
    <BLANKLINE>
    *Source:* Wang 2026, Eq. 8.
    """
    head, *sections = re.split(r"^(?=(?:Args|Attributes|Returns|Raises|Examples?):$)", docstring, flags=re.MULTILINE)
    paragraphs = re.split(r"\n\n+|\n(?=(?:Source|Departure): )", head)
    return "\n\n".join([*map(_paragraph, paragraphs), *map(_section, sections)])


def _paragraph(text: str) -> str:
    if text.startswith(">>>"):
        return text
    if text.startswith("    "):
        return f"::\n\n{text}"
    if note := re.match("(Source|Departure):", text):
        return f"*{note[0]}* {_prose(' '.join(text.removeprefix(note[0]).split()))}"
    return _prose(text)


def _section(text: str) -> str:
    return text if text.startswith("Example") else _prose(text)


def _prose(text: str) -> str:
    """Code has one backtick in Markdown and two here, and then no letter; bars would be substitutions."""
    parts = [part if place % 2 else part.replace("|", r"\|") for place, part in enumerate(text.split("`"))]
    parts[2::2] = [rf"\ {part}" if part[:1].isalnum() else part for part in parts[2::2]]
    return "``".join(parts)


def setup(app: Sphinx) -> dict[str, bool]:
    """Register with Sphinx."""
    table = (Path(__file__).resolve().parents[1] / "extending.md").read_text()

    def read(_: Sphinx, docname: str, source: list[str]) -> None:
        if docname == DOCNAME:
            source[0] += "\n" + "\n".join(sections(table))

    def process(_: Sphinx, kind: str, name: str, value: object, options: object, lines: list[str]) -> None:
        lines[:] = as_rst("\n".join(lines).strip()).splitlines()

    app.connect("source-read", read)
    app.connect("autodoc-process-docstring", process, priority=100)  # before napoleon
    return {"parallel_read_safe": False}

"""Methods, reports and laboratory use the framework's public names only: those of the table in `docs/extending.md`."""

import ast
import importlib
import re
from collections import defaultdict

from composing import ROOT

RESEARCH = ("apo_methods", "apo_report", "apo_lab")
PAGE = ROOT / "docs" / "extending.md"
ROW = re.compile(r"^\| `(apo_lightning[\w.]*)` \| (`.+`) \| (.+) \|$", re.MULTILINE)


def imported() -> dict[str, set[str]]:
    """Module of the framework → the names that our packages of research import from it."""
    found = defaultdict(set)
    for path in sorted(path for name in RESEARCH for path in (ROOT / "src" / name).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "apo_lightning":
                found[node.module] |= {alias.name for alias in node.names}
            elif isinstance(node, ast.Import):
                assert not any(alias.name.startswith("apo_lightning") for alias in node.names), f"{path}: import names"
    return found


def documented() -> dict[str, tuple[set[str], str]]:
    """Module → its public names and what they are for, from the table."""
    rows = ROW.findall(PAGE.read_text())
    return {module: (set(re.findall(r"`(\w+)`", names)), purpose) for module, names, purpose in rows}


def expected_rows() -> str:
    """The rows that the table should have: paste them, and fill in the purpose of a new module."""
    table = documented()
    return "\n".join(
        f"| `{module}` | {', '.join(f'`{name}`' for name in sorted(names, key=str.lower))} | "
        f"{table.get(module, (set(), '?'))[1]} |"
        for module, names in sorted(imported().items())
    )


def test_research_imports_the_names_of_the_table_and_no_others():
    table = {module: names for module, (names, _) in documented().items()}
    assert table == imported(), f"the table of {PAGE.name} should read:\n{expected_rows()}"


def test_every_public_name_exists():
    for module, (names, _) in documented().items():
        for name in names:
            found = hasattr(importlib.import_module(module), name)
            assert found or importlib.import_module(f"{module}.{name}"), f"{module}.{name}"

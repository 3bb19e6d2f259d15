"""Names that stand before an equals sign, and the values behind them."""

import re
from collections.abc import Iterable

from math_answers.nodes import Node
from math_answers.tables import NAMES


def name_of(node: Node) -> str | None:
    """The text of a side that names a value."""
    if node.head in ("symbol", "vector"):
        return node.args[0]
    if node.head == "words":
        is_name = all(part.lower() in NAMES or re.fullmatch("[\u4e00-\u9fff]+", part) for part in node.args)
        return " ".join(node.args).lower() if is_name else None
    if node.head == "call" and node.args[0] == "abs" and (segment := name_of(node.args[1])) and segment.isupper():
        return segment
    if node.head == "call" and (
        node.args[0] in "fghFGHPQE"
        or (len(node.args[0]) == 1 and node.args[1].head == "symbol")
        or node.args[0].startswith("inverse")
        or "'" in node.args[0]
    ):
        is_plain = len(node.args) == 2 and len(node.args[0]) == 1 and node.args[1].head == "symbol"
        return node.args[0] if is_plain and node.args[0] not in "fghFGHPQE" else repr(node)
    if node.head == "multiply":
        parts = [name_of(arg) for arg in node.args]
        text = "".join(part for part in parts if part) if all(parts) else ""
        if len(parts) == 2 and parts[0] == "m" and str(parts[1]).startswith("angle"):
            return text
        return text if 2 <= len(text) <= 4 and text.isupper() and text.isalpha() else None
    return None


def split_name(node: Node) -> tuple[str | None, list[Node]]:
    """The name of an answer like x = 5 and its values; without a name, the sides of a chain."""
    if node.head != "relation" or not set(node.args[0]) <= {"=", "in"}:
        return None, [node]
    sides = node.args[1:]
    names = [name_of(side) for side in sides]
    values = [side for side, name in zip(sides, names, strict=True) if name is None]
    if not values:
        return names[0], [sides[-1]]
    found = next((name for name in names if name is not None), None)
    return found, values


def common_name(node: Node) -> str | None:
    """The one name of all parts of a list: x = 2, x = 3 and x = 2, 3; None where they have none, or several."""
    if node.head not in ("list", "or list"):
        return None
    names = {split_name(part)[0] for part in node.args if part.head == "relation"}
    return names.pop() if len(names) == 1 else None


def names_as_tuple(node: Node) -> Node:
    """x = 5, y = 6 and (x, y) = (5, 6) as their values in the order of their names, with the names."""
    if node.head == "relation" and node.args[0] == ("=",) and node.args[1].head == "tuple":
        names, values = [name_of(one) for one in node.args[1].args], node.args[2]
        if all(names) and values.head == "tuple" and len(values.args) == len(names):
            return _named(zip(names, values.args, strict=True))
    if node.head in ("list", "or list", "tuple") and all(
        part.head == "relation" and part.args[0] != ("in",) for part in node.args
    ):
        split = [split_name(part) for part in node.args]
        if all(name and len(values) == 1 for name, values in split) and len({name for name, _ in split}) == len(split):
            return _named((name, values[0]) for name, values in split)
        if all(name == split[0][0] and len(values) == 1 for name, values in split) and split[0][0]:
            return Node("set", tuple(values[0] for _, values in split))
    if node.head in ("list", "or list") and node.args[0].head == "relation":
        name, values = split_name(node.args[0])
        if name and len(values) == 1 and all(part.head != "relation" for part in node.args[1:]):
            return Node("list", (values[0], *node.args[1:]))
    return node


def _named(pairs: Iterable[tuple[str | None, Node]]) -> Node:
    return Node("named", tuple(sorted(((str(name), value) for name, value in pairs), key=lambda pair: pair[0])))

r"""Whether two trees say the same."""

import itertools
from collections.abc import Callable
from typing import Any

import mpmath

from math_answers import sets
from math_answers.agreement import FEWEST_DIGITS, FEWEST_POINTS, agree, at_change, at_point, changes, same_value
from math_answers.names import common_name, name_of, names_as_tuple, split_name
from math_answers.nodes import Node, TooLargeError, number
from math_answers.tables import FILLERS, NUMERALS, SYNONYMS
from math_answers.values import NUM_POINTS, OPERATIONS, exact, names_in, points

EXPRESSIONS = OPERATIONS | {"number", "symbol", "constant", "call", "vector", "plus_minus"}


def same(gold: Node, answer: Node) -> bool:
    """Whether an answer is the gold one."""
    if gold == answer:
        return True
    gold, answer = (_first_of_approximations(without_unit(node)) for node in (gold, answer))
    if "words" in (gold.head, answer.head) and "choice" not in (gold.head, answer.head):
        if sets.is_set(gold, as_interval=True) and sets.is_set(answer, as_interval=True):
            return sets.same(gold, answer)
        return _same_words(gold, answer)
    if gold.head == "tuple" and answer.head == "call" and len(answer.args) > 2 and answer.args[0].isupper():
        answer = Node("tuple", answer.args[1:])  # P(8, -3)
    if gold.head == "list" and answer.head == "interval" and "[]" in answer.args:
        answer = Node("tuple", answer.args[1:])  # no interval beside a list
    if "choice" in (gold.head, answer.head):
        return _same_choice(gold, answer)
    names = common_name(gold), common_name(answer)
    if all(names) and names[0] != names[1]:
        return False
    gold, answer = names_as_tuple(gold), names_as_tuple(answer)
    if "relation" in (gold.head, answer.head):
        return _same_relation(gold, answer)
    if gold.head == answer.head == "case":
        return _same_case(gold, answer)
    for head in ("date", "clock", "numeral", "congruence", "ratio"):
        if head in (gold.head, answer.head):
            return _SPECIAL[head](gold, answer)
    golds, answers = signs(gold), signs(answer)
    if len(golds) > 1 or len(answers) > 1:
        lists = ("list", "set", "or list")
        golds = _expanded(gold) if gold.head in lists else golds
        answers = _expanded(answer) if answer.head in lists else answers
        return _same_unordered(golds, answers)
    # A pair in parentheses is an interval only beside a set.
    if any(
        sets.is_set(one) and sets.is_set(other, as_interval=True) for one, other in ((gold, answer), (answer, gold))
    ):
        return sets.same(gold, answer)
    if gold.head in EXPRESSIONS and answer.head in EXPRESSIONS:
        return same_value(gold, answer)
    return _same_compound(gold, answer)


def _first_of_approximations(node: Node) -> Node:
    """The exact value of a chain of approximations; x ≈ 2 says x = 2."""
    if node.head != "relation" or set(node.args[0]) != {"approx"}:
        return node
    sides = node.args[1:]
    return without_unit(sides[0]) if name_of(sides[0]) is None else Node("relation", (("=",), *sides[:2]))


def num_parts(node: Node) -> int:
    """Number of parts of a list or a set; 1 for any other answer, also for a point or an interval."""
    node = names_as_tuple(without_unit(node))
    if node.head == "relation" and len(values := split_name(node)[1]) == 1:
        node = values[0]
    if node.head == "named":
        return len(node.args)
    return len(_expanded(node)) if node.head in ("list", "or list", "set") else len(signs(node))


def without_unit(node: Node) -> Node:
    """Units are not compared; a degree inside of a sine is."""
    while node.head == "quantity":
        node = node.args[0]
    return node


def signs(node: Node) -> list[Node]:
    """The values of an expression with ±: each sign is chosen apart. Of a list, those of its parts."""
    if node.head == "or list" or node.head == "list":
        return [node]
    if not isinstance(node, Node) or not _has_sign(node):
        return [node]
    if node.head == "plus_minus":
        return [Node("multiply", (number(sign), one)) for one in signs(node.args[1]) for sign in (1, -1)]
    choices = [signs(arg) if isinstance(arg, Node) else [arg] for arg in node.args]
    return [Node(node.head, chosen) for chosen in itertools.islice(itertools.product(*choices), 64)]


def _has_sign(node: Any) -> bool:
    return isinstance(node, Node) and (node.head == "plus_minus" or any(map(_has_sign, node.args)))


# ---------------------------------------------------------------------- words


def _letters(node: Node, in_product: bool) -> str | None:
    """What stands there, in letters and digits; in lower case where no product of letters is compared."""
    if node.head == "words":
        named = node.args[:1] if node.args[1:2] in (("is",), ("are",)) and len(node.args[0]) == 1 else ()  # a is even
        parts = [part for part in node.args if part.lower() not in FILLERS or part in named or len(node.args) == 1]
        text = "".join(part for part in parts if part not in "()'!?")
        return SYNONYMS.get(text.lower(), text if in_product else text.lower())
    if node.head == "symbol" and len(node.args[0]) == 1:
        return node.args[0] if in_product else node.args[0].lower()
    if node.head == "constant":
        return {"infinity": "infinity", "e": "e", "i": "i"}.get(node.args[0])
    if node == Node("set", ()):
        return "emptyset"
    if node.head == "multiply":
        if node.args[0] == number(-1):
            rest = _letters(node.args[1], in_product) if len(node.args) == 2 else None
            return None if rest is None else f"-{rest}"
        parts = [_letters(arg, in_product) for arg in node.args]
        return None if None in parts else "".join(map(str, parts))
    return None


def _same_words(gold: Node, answer: Node) -> bool:
    one, other = (_letters(node, "multiply" in (gold.head, answer.head)) for node in (gold, answer))
    return one is not None and one == other


def _same_choice(gold: Node, answer: Node) -> bool:
    """The label and the value of a choice; either alone says which it is."""
    if gold.head == answer.head:
        return all(map(same, gold.args, answer.args))
    choice, other = (gold, answer) if gold.head == "choice" else (answer, gold)
    return any(same(other, part) for part in choice.args)


# ---------------------------------------------------------------------- relations


def _same_relation(gold: Node, answer: Node) -> bool:
    gold, answer = _ascending(gold), _ascending(answer)
    (name, values), (other, answers) = split_name(gold), split_name(answer)
    if gold.head == "relation" and answer.head == "relation":
        if sets.is_set(gold) and sets.is_set(answer) and not {"="} & {*gold.args[0], *answer.args[0]}:
            return sets.same(gold, answer)
        if name and name == other and len(values) == 1 and all(same(values[0], one) for one in answers):
            return True
        if name and other and name != other and exact(values[0]) is not None:
            return False
        if set(gold.args[0]) == {"="} == set(answer.args[0]) and len(gold.args) == len(answer.args) == 3:
            return _same_equation(gold, answer)
        return gold.args[0] == answer.args[0] and all(map(same_or_equal, gold.args[1:], answer.args[1:]))
    if gold.head == "relation":
        if sets.is_set(gold) and sets.is_set(answer, as_interval=True):
            return sets.same(gold, answer)
        return bool(name) and len(values) == 1 and same(values[0], answer)
    if set(answer.args[0]) <= {"=", "in"}:
        is_chain = exact(gold) is not None if gold.head in EXPRESSIONS else False
        return (bool(other) or is_chain) and all(same(gold, one) for one in answers)
    if sets.is_set(gold, as_interval=True) and sets.is_set(answer):
        return sets.same(gold, answer)
    return False


def _ascending(node: Node) -> Node:
    """Q > R > P as P < R < Q."""
    if node.head != "relation" or not set(node.args[0]) <= {">", ">="}:
        return node
    operators = tuple(operator.replace(">", "<") for operator in reversed(node.args[0]))
    return Node("relation", (operators, *reversed(node.args[1:])))


def same_or_equal(one: Node, other: Node) -> bool:
    """Whether two sides are the same."""
    return one == other or (one.head in EXPRESSIONS and other.head in EXPRESSIONS and same_value(one, other))


def _same_equation(gold: Node, answer: Node) -> bool:
    """Whether the differences of their sides are multiples of one another."""
    if not all(side.head in EXPRESSIONS for side in (*gold.args[1:], *answer.args[1:])):
        return all(map(same, gold.args[1:], answer.args[1:]))
    one, other = (Node("add", (n.args[1], Node("multiply", (number(-1), n.args[2])))) for n in (gold, answer))
    try:
        if exact(one) is not None or exact(other) is not None:
            return False
    except TooLargeError:
        return False
    names = {name: kind for kind, name in itertools.chain(names_in(one), names_in(other))}
    if not names:
        return False
    found = [at_point(one, other, point, _ratio) for point in itertools.islice(points(names), 2 * NUM_POINTS)]
    found += [at_change(one, other, point, _ratio) for point in changes(one, other, names)]
    if False in found:
        return False
    with mpmath.workdps(FEWEST_DIGITS):
        ratios = [ratio for ratio in found if ratio is not None and ratio is not True]
        return len(ratios) >= FEWEST_POINTS and all(
            abs(ratio / ratios[0] - 1) < mpmath.mpf(10) ** -30 for ratio in ratios
        )


def _ratio(left: Any, right: Any, precision: int) -> Any:
    """Left ÷ right; True where both vanish, False where one does."""
    if isinstance(left, list) or isinstance(right, list):
        return False
    tiny = mpmath.mpf(10) ** (-precision // 2)
    vanish = abs(left) < tiny, abs(right) < tiny
    return left / right if not any(vanish) else all(vanish)


# ---------------------------------------------------------------------- several parts


def _column_as_tuple(node: Node) -> Node:
    is_column = node.head == "matrix" and node.args[0] == 1 and not node.args[-1]
    return Node("tuple", node.args[1:-1]) if is_column else node


def _in_unit_vectors(point: Node) -> Node:
    """A point of three as a sum of unit vectors."""
    units = (Node("vector", (f"unit vector {name}",)) for name in "ijk")
    return Node("add", tuple(Node("multiply", pair) for pair in zip(point.args, units, strict=True)))


def _same_compound(gold: Node, answer: Node) -> bool:
    gold, answer = _column_as_tuple(gold), _column_as_tuple(answer)
    for one, other in ((gold, answer), (answer, gold)):
        has_units = one.head in EXPRESSIONS and any(name.startswith("unit") for _, name in names_in(one))
        if has_units and other.head == "tuple" and len(other.args) == 3:
            return agree(one, _in_unit_vectors(other))
    if "named" in (gold.head, answer.head):
        return _same_named(gold, answer)
    if gold.head == "set" and len(gold.args) == 1 and answer.head in EXPRESSIONS:
        return same(gold.args[0], answer)
    if answer.head == "set" and len(answer.args) == 1 and gold.head in EXPRESSIONS:
        return same(gold, answer.args[0])
    heads = {gold.head, answer.head}
    is_ordered = heads == {"tuple", "list"} or (heads == {"list"} and all(map(_is_phrase, (*gold.args, *answer.args))))
    if heads <= {"list", "set", "or list"} and not is_ordered:
        return _same_unordered(_expanded(gold), _expanded(answer), counts="set" not in heads)
    return (
        (is_ordered or len(heads) == 1)
        and len(gold.args) == len(answer.args)
        and all(
            same(a, b) if isinstance(a, Node) and isinstance(b, Node) else a == b
            for a, b in zip(gold.args, answer.args, strict=True)
        )
    )


def _expanded(node: Node) -> list[Node]:
    return [one for part in node.args for one in signs(without_unit(part))]


def _same_named(gold: Node, answer: Node) -> bool:
    if gold.head == answer.head:
        return [name for name, _ in gold.args] == [name for name, _ in answer.args] and all(
            same(one, other) for (_, one), (_, other) in zip(gold.args, answer.args, strict=True)
        )
    named, other = (gold, answer) if gold.head == "named" else (answer, gold)
    if other.head not in ("tuple", "list") or len(other.args) != len(named.args):
        return False
    if gold.head == "list" and len({name.partition("_")[0] for name, _ in named.args}) == 1:
        return _same_unordered(_expanded(gold), [value for _, value in named.args], counts=True)  # x_1 = 3, x_2 = 2
    for (name, value), part in zip(named.args, other.args, strict=True):
        own_name, values = split_name(part)
        if own_name not in (None, name) or len(values) != 1:
            return False
        if not (same(value, values[0]) if gold.head == "named" else same(values[0], value)):
            return False
    return True


def _is_phrase(node: Node) -> bool:
    """Words that are no label of a choice: their order may say something."""
    return node.head == "words" and len("".join(node.args)) > 1


def _same_unordered(golds: list[Node], answers: list[Node], counts: bool = False) -> bool:
    """Each part has a part of the other; where `counts`, one of its own."""
    if max(len(golds), len(answers)) > 40 or (counts and len(golds) != len(answers)):
        return False
    rest = list(answers)
    for one in golds:
        found = next((other for other in rest if same(one, other)), None)
        if found is None:
            return False
        if counts:
            rest.remove(found)
    return counts or all(any(same(one, other) for one in golds) for other in answers)


# ---------------------------------------------------------------------- others


def _same_numeral(gold: Node, answer: Node) -> bool:
    def parts(node: Node) -> tuple[str, str | None] | None:
        if node.head == "numeral":
            return node.args[0], str(NUMERALS.get(node.args[1], node.args[1]))
        if node.head == "number" and node.args[0].denominator == 1:
            return str(node.args[0]), None
        return None

    one, other = parts(gold), parts(answer)
    return one is not None and other is not None and one[0] == other[0] and other[1] in (one[1] or "10", None)


def _same_case(gold: Node, answer: Node) -> bool:
    """A value and its condition, in which names count: x ≥ 0 alone may be a set, which has no name."""
    (_, one), (_, other) = gold.args, answer.args
    return set(names_in(one)) == set(names_in(other)) and all(map(same, gold.args, answer.args))


def _same_congruence(gold: Node, answer: Node) -> bool:
    if gold.head != answer.head or not all(map(same_or_equal, gold.args[::2], answer.args[::2])):
        return False
    one, other, modulus = exact(gold.args[1]), exact(answer.args[1]), exact(gold.args[2])
    if one is None or other is None or not modulus:
        return same_or_equal(gold.args[1], answer.args[1])
    return (one - other) % modulus == 0


def _same_ratio(gold: Node, answer: Node) -> bool:
    def parts(node: Node) -> tuple[Node, ...] | None:
        if node.head == "clock" and not node.args[2] and len(node.args[1]) == 2:
            return number(node.args[0]), number(int(node.args[1]))
        return node.args if node.head == "ratio" else None

    one, other = parts(gold), parts(answer)
    if one is None or other is None or len(one) != len(other):
        return False
    place = next((i for i, part in enumerate(one) if exact(part) != 0), None)
    if place is None or exact(other[place]) == 0:
        return False
    return all(
        same_value(Node("multiply", (a, other[place])), Node("multiply", (b, one[place])))
        for a, b in zip(one, other, strict=True)
    )


_SPECIAL: dict[str, Callable[[Node, Node], bool]] = {
    "date": lambda one, two: one == two,
    "clock": lambda one, two: _same_ratio(one, two) if one.head == "ratio" else one == two,
    "numeral": _same_numeral, "congruence": _same_congruence, "ratio": _same_ratio,
}  # fmt: skip

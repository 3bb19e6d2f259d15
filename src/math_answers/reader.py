r"""Tokens → a tree. What the grammar has no place for raises, so that nothing of an answer is dropped.

answer   = set (separator set)*                  separators: , ; and or
set      = relation ((∪ | ∩ | ∖) relation)*
relation = quantity ((= | < | …) quantity)*       a:b:c is a ratio
quantity = sum unit                              or words
"""

import re
from functools import lru_cache

from math_answers.commands import Commands
from math_answers.lexer import Token, tokens
from math_answers.nodes import Node, UnreadError, number
from math_answers.stream import END, decimal
from math_answers.tables import (
    CHINESE_SCALES,
    FILLERS,
    LONE_UNITS,
    NOUNS,
    NUMERALS,
    RELATIONS,
    SCALES,
    SIZES_OF_UNITS,
    UNITS,
)
from math_answers.text import MAX_CHARS, clean, unwrap
from math_answers.values import names_in, replaced

_SCALES = SCALES | CHINESE_SCALES
_OPERATIONS = frozenset(
    """plus minus times over divided more less than squared cubed half quarter quarters third thirds negative factorial
    point below above doubled tripled mod modulo base choose sqrt to of is not off""".split()  # noqa: SIM905
)
"""Words that are no unit, whatever the gold says."""
_JOINERS = frozenset(["and", "or", "和", "或", "与", "及", "to"])
_CLOCK = re.compile(r"([0-9]{1,2})(?:\s*:\s*([0-5][0-9](?:\s*:\s*[0-5][0-9])?))?(?:[\s~]*([apAP])\.?\s?[mM]\.?)?")
_NO_UNIT = re.compile(r"[半多余不或和与及且至到负倍]|分之|左右|以[上下]")
"""What changes a number in Chinese."""
_DAY = re.compile(r"([0-9]{1,4})(?:st|nd|rd|th)?")
_MONTHS = frozenset(
    "january february march april may june july august september october november december".split()  # noqa: SIM905
)


@lru_cache(maxsize=8192)
def read(answer: str, units: frozenset[str] | None = frozenset()) -> Node:
    """The tree of an answer; raises UnreadError where anything in it is on no closed list.

    `units` are words of units beside those of the closed list: those of the gold. None: any, as in a gold.
    """
    if len(answer) > MAX_CHARS:
        raise UnreadError("too long")
    text = unwrap(clean(unwrap(answer)))
    if not text:
        raise UnreadError("empty")
    if match := _CLOCK.fullmatch(re.sub(r"\\!|\\[,;: ]|\\(?:text|mathrm)\s*\{([^{}]*)\}", r"\1", text).strip()):
        half = match[3].lower() if match[3] else ""
        if half or match[2]:
            return Node("clock", (int(match[1]), match[2] or "00", half))
    if date := _date(text):
        return date
    found = Reader(tokens(text), units).answer()
    # With a j it is a unit vector; alone it is the imaginary unit in bold.
    units_of = {name for kind, name in names_in(found) if name.startswith("unit")}
    return (
        replaced(found, Node("vector", ("unit vector i",)), Node("constant", ("i",)))
        if units_of == {"unit vector i"}
        else found
    )


def _date(text: str) -> Node | None:
    """A month with a day, a year or both, in any order."""
    text = re.sub(r"\\[,;: ]", " ", text)
    words = re.sub(r"\\(?:text|mathrm|textbf)\s*\{([^{}]*)\}", r"\1 ", text).replace(",", " ").replace(".", " ").split()
    months = [month for word in words for month in _MONTHS if len(word) >= 3 and month.startswith(word.lower())]
    numbers = [match[1] for word in words if (match := _DAY.fullmatch(word))]
    if len(months) != 1 or not numbers or 1 + len(numbers) != len(words):
        return None
    return Node("date", (months[0], *sorted(map(int, numbers))))


class Reader(Commands):
    """The upper half of the grammar."""

    # ---------------------------------------------------------------- answers of several parts

    def answer(self) -> Node:
        """The whole answer."""
        found = self.items(())
        if self.next is not END:
            raise UnreadError(f"{self.next.text!r} behind the answer")
        return found

    def items(self, closing: tuple[str, ...]) -> Node:
        """One item, or a list; stops at a closing bracket or the end."""
        parts, words = [self.set_expression()], []
        while self.next is not END and not self.is_next(*closing):
            word = self.separator()
            if word is None:
                break
            words.append(word)
            if self.takes("ldots", "dots", "cdots"):
                parts.append(Node("ellipsis", ("…",)))
                continue
            if self.next is END or self.is_next(*closing):
                break  # a comma at the end
            parts.append(self.set_expression())
        if len(parts) == 1:
            return parts[0]
        if all(part.head == "relation" and _is_inequality(part) for part in parts) and words[-1] in ("and", "or", ","):
            return Node("and" if words[-1] != "or" else "or", tuple(parts))
        return Node("or list" if "or" in words else "list", tuple(parts))

    def separator(self) -> str | None:
        """What separates two parts: a comma, and, or; None where nothing does."""
        kind = None
        while True:
            if self.takes(",", ";"):
                kind = kind or ","
            elif self.next.kind == "word" and self.next.text.lower() in _JOINERS - {"to"}:
                word = self.take().text.lower()
                kind = "or" if word in ("or", "或") else "and"
            elif self.is_next("vee", "lor", "wedge", "land"):
                kind = "or" if self.take().text in ("vee", "lor") else "and"
            else:
                return kind

    def set_expression(self) -> Node:
        """A union, intersection or difference, or what is none."""
        left = self.relation()
        while token := self.takes("cup", "cap", "setminus", "backslash", "bigcup", "bigcap"):
            head = {"cup": "union", "cap": "intersection"}.get(token.text.removeprefix("big"), "difference")
            left = Node(head, (left, self.relation()))
        return left

    def relation(self) -> Node:
        """A chain of sides, or a single one."""
        sides, operators = [self.quantity()], []
        while operator := self.relation_operator():
            operators.append(operator)
            sides.append(self.quantity())
        if operators and set(operators) <= {":"}:
            return Node("ratio", tuple(sides))
        if ":" in operators:
            raise UnreadError("a colon")
        if "equiv" in operators:
            return self.congruence(operators, sides)
        return Node("relation", (tuple(operators), *sides)) if operators else sides[0]

    def congruence(self, operators: list[str], sides: list[Node]) -> Node:
        """a ≡ b (mod m)."""
        if len(sides) == 2 and sides[1].head == "call" and sides[1].args[0] == "mod":
            return Node("congruence", (sides[0], *sides[1].args[1:]))
        is_bracketed = len(sides) == 2 and self.takes("(") is not None
        if len(sides) == 2 and (
            self.takes("pmod", "bmod", "mod") or (self.next.kind == "word" and self.take().text == "mod")
        ):
            modulus = self.argument() if self.is_next("{") else self.factor()
            if is_bracketed:
                self.expect(")")
            return Node("congruence", (*sides, modulus))
        raise UnreadError("a congruence without its modulus")

    def relation_operator(self) -> str | None:
        """The operator between two sides; None where there is none."""
        token = self.next
        if token.kind == "mark" and token.text in ("=", "<", ">"):
            self.take()
            if token.text in "<>" and self.is_next("="):
                self.take()
                return token.text + "="
            return token.text
        if token.text == "approx" and self.may_be_near():
            self.take()
            return "approx"
        if token.kind == "command" and f"\\{token.text}" in RELATIONS:
            self.take()
            return RELATIONS[f"\\{token.text}"]
        if (
            token.kind == "mark"
            and token.text == ":"
            and not self.colon_ends
            and self.peek().kind in ("number", "letter", "mark", "command")
        ):
            self.take()
            return ":"
        if token.kind == "word" and token.upright and token.text == "to":
            self.take()
            return ":"
        return None

    # ---------------------------------------------------------------- quantities and words

    def quantity(self) -> Node:
        """A sum with its unit, or words."""
        if self.at == 0 and self.may_be_near():
            self.takes("approx")
        self.skip_fillers()
        while self.is_next("$", "€", "£", "¥") or (
            self.next.kind == "word" and self.next.text in ("USD", "EUR", "GBP", "US")
        ):
            self.take()
        if self.peek() is not END:
            self.split_unit(is_due=True)
        if self.next.kind == "letter" and self.peek().kind == "word" and self.peek().text in ("is", "are"):
            return self.words()
        if self.next.kind == "word" and self.next.text.lower() not in NUMERALS:
            return self.words()
        if self.next.kind == "number" and self.peek().kind == "word" and self.peek().text.lower() in _MONTHS:
            return self.words()
        outer, self.quantity_depth = self.quantity_depth, self.depth + 1
        value = self.sum()
        self.quantity_depth = outer
        is_scaled = False
        while True:
            if self.takes("%"):
                unit = "%"
            elif self.next.kind == "word" and self.next.text.lower() in _SCALES:
                if is_scaled:
                    raise UnreadError("two scales")
                value, is_scaled = Node("multiply", (value, number(_SCALES[self.take().text.lower()]))), True
                continue
            elif self.next.kind == "word" and self.next.text.lower() not in _JOINERS:
                unit = self.unit()
            elif self.is_next("$", "€", "£", "¥"):
                unit = self.take().text
            elif fraction := self.unit_fraction():
                unit = " ".join(self.unit_word(token) for token in fraction if token.kind == "word")
                self.at += 1 + len(fraction)
            else:
                return value
            if value.head == "quantity":
                value = value.args[0]
            value = self.with_smaller_unit(value, unit)
            if self.next.kind in ("number",) or (self.next.kind == "letter" and not self.next.upright):
                raise UnreadError(f"{self.next.text!r} behind a unit")

    def may_be_near(self) -> bool:
        """A gold, and of an answer a decimal, may be an approximation; about 42 is not 42."""
        return self.units is None or "." in self.peek().text

    def skip_fillers(self) -> None:
        """Words in front of an answer that say nothing: "the answer is"."""
        end = 0
        while self.peek(end).kind == "word" and self.peek(end).text.lower() in FILLERS and self.peek(end).text != "A":
            end += 1
        if end and self.peek(end).text == ":":
            end += 1
        if (
            end
            and self.peek(end).kind in ("word", "number", "letter", "command", "mark", "digits")
            and self.peek(end).text not in (",", ")")
        ):
            self.at += end

    def unit(self) -> str:
        """Words of a closed list, with exponents and slashes."""
        parts = [self.unit_word(self.take())]
        while True:
            if self.takes("^"):
                if self.takes("{"):
                    self.takes("-")
                    self.take()
                    self.expect("}")
                else:
                    self.takes("-")
                    if self.take().kind != "number":
                        raise UnreadError("the exponent of a unit")
            elif self.is_next("/", "cdot") and self.peek().kind in ("word", "letter"):
                self.take()
                parts.append(self.unit_word(self.take()))
            elif self.is_next("/") and self.peek().text == "(" and self.peek(2).kind == "word":
                self.at += 2
                parts.append(self.unit())
                self.expect(")")
            elif self.next.kind == "word" and self.next.text.lower() not in _JOINERS and self.next.text not in SCALES:
                parts.append(self.unit_word(self.take()))
            elif self.next.kind == "letter" and self.next.text in LONE_UNITS and self.next.space:
                parts.append(self.take().text)
            else:
                return " ".join(parts)

    def with_smaller_unit(self, value: Node, unit: str) -> Node:
        """The quantity; 2 hours and 30 minutes is 150 minutes."""
        ahead = int(self.next.kind == "word" and self.next.text == "and")
        part, smaller = self.peek(ahead), self.peek(ahead + 1).text
        words = (unit.removesuffix("s") or "s", smaller.removesuffix("s") or "s")
        large, small = max(tuple(table.get(word, 0) for word in words) for table in SIZES_OF_UNITS)
        if part.kind != "number" or large <= small or not small:
            return Node("quantity", (value, unit))
        self.at += ahead + 2
        total = Node("add", (Node("multiply", (value, number(large // small))), decimal(part.text)))
        return self.with_smaller_unit(total, smaller)

    def unit_word(self, token: Token) -> str:
        """A word that is a unit; raises for any other."""
        text = token.text
        is_listed = text in UNITS or text.lower() in UNITS | NOUNS or text in LONE_UNITS
        is_of_gold = token.upright and len(text) > 1 and text.isalpha() and text.lower() not in _OPERATIONS
        if is_listed or (re.fullmatch("[\u4e00-\u9fff]+", text) and not _NO_UNIT.search(text)):
            return text
        if is_of_gold and (self.units is None or text.lower() in self.units):
            return text
        raise UnreadError(f"the word {text!r} behind a value")

    def words(self) -> Node:
        """A phrase, with its numbers, to the next separator."""
        found, depth = [], 0
        while self.next.kind in ("word", "number", "letter") or self.is_next("(", ")", "'", "!", "?"):
            if self.next.kind == "word" and self.next.text.lower() in ("and", "or"):
                break
            depth += {"(": 1, ")": -1}.get(self.next.text, 0)
            if depth < 0:
                break
            found.append(self.take().text)
        return Node("words", tuple(found))


def _is_inequality(node: Node) -> bool:
    return bool(set(node.args[0]) <= {"<", ">", "<=", ">=", "!="})

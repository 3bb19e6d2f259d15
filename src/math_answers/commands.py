r"""Commands of LaTeX, functions among them."""

import re
from collections.abc import Callable

from math_answers.brackets import Brackets
from math_answers.expressions import FRACTIONS, signed
from math_answers.lexer import Token
from math_answers.nodes import Node, UnreadError, number
from math_answers.stream import END, decimal
from math_answers.tables import ACCENTS, FUNCTIONS, GREEK, VECTORS
from math_answers.values import names_in


class Commands(Brackets):
    """What stands behind a backslash, or is a known name in plain notation."""

    relation: Callable[[], Node]

    def command(self, name: str) -> Node:
        """What a command stands for."""
        if name in FRACTIONS:
            top, bottom = self.argument(), self.argument()
            if (above := _differential(top)) and (below := _differential(bottom)):
                return Node("symbol", (f"{above}/{below}",))
            return Node("divide", (top, bottom))
        if name in ("binom", "dbinom", "tbinom"):
            return Node("call", ("binomial", self.argument(), self.argument()))
        if name == "sqrt":
            return self.root()
        if name in ("pi", "infty"):
            return Node("constant", ({"infty": "infinity"}.get(name, name),))
        if name == "imath":
            return Node("constant", ("i",))
        if name in ("cdots", "ldots", "dots"):
            return Node("ellipsis", ("…",))  # without a value: the same in the same place alone
        if name in ("emptyset", "varnothing"):
            return Node("set", ())
        if name in GREEK and not (name == "zeta" and self.is_next("(")):
            return self.called(name) if self.is_applied(name) else Node("symbol", (name,))
        if name in VECTORS or name in ACCENTS:
            return self.accented(name)
        if name in ("lvert", "mid", "vert"):
            return self.absolute(("rvert", "mid", "vert", "|"))
        if name in ("|", "lVert", "Vert"):
            return self.absolute(("|", "rVert", "Vert"), "norm")
        if name in ("lfloor", "lceil"):
            value = self.sum()
            self.expect("rfloor" if name == "lfloor" else "rceil")
            return Node("call", ("floor" if name == "lfloor" else "ceiling", value))
        if name in ("{", "lbrace"):
            return self.set()
        if name in ("langle", "lparen", "lbrack"):
            return self.bracketed(name)
        if name == "begin":
            return self.environment()
        if name in ("sum", "prod"):
            return self.finite_sum(name)
        if name in FUNCTIONS:
            return self.function(name)
        if name in ("angle", "triangle", "measuredangle") and self.next.kind == "letter":
            points = ""
            while self.next.kind == "letter" and self.next.text.isupper():
                points += self.take().text
            return Node("symbol", (f"{name} {points}",))
        raise UnreadError(rf"\{name}")

    def argument(self) -> Node:
        r"""A group in braces, or the next digit, letter or command."""
        if self.takes("{"):
            # No list stands here: a comma separates thousands.
            outer, self.depth_of_lists = self.depth_of_lists, 0
            value = self.sum()
            self.depth_of_lists = outer
            self.expect("}")
            return value
        token = self.next
        if token.kind == "number" and len(token.text) > 1 and token.text[0].isdigit():
            if not token.text.isdigit():
                raise UnreadError(f"{token.text} without braces")
            # \frac12 takes one digit each.
            self.tokens[self.at] = Token("number", token.text[1:], False, token.upright)
            return number(int(token.text[0]))
        return self.base()

    def root(self) -> Node:
        """A root, of degree 2 without another."""
        degree = number(2)
        if self.takes("["):
            degree = self.sum()
            self.expect("]")
        if self.is_next("(") and degree == number(2):
            value = self.base()
        elif self.next.kind == "number" and not self.is_next("{"):
            value = decimal(self.take().text)
        else:
            value = self.argument()
        return Node("call", ("root", value, degree))

    def accented(self, name: str) -> Node:
        """A letter under an accent, a vector, a conjugate."""
        if name == "mathbb":
            content = self.index()
            if content in "RQZNC":
                return self.number_set(content)
            raise UnreadError(rf"\mathbb{{{content}}}")
        if name in ("overline", "bar") and self.is_next("{") and not self.is_name_in_braces():
            if (value := self.argument()).head == "number":
                raise UnreadError("a bar over a number")
            return conjugate(value)
        content = self.index()
        if name == "hat" and content in ("i", "j", "k", "imath", "jmath"):
            return Node("vector", (f"unit vector {content[0]}",))
        if not re.fullmatch(r"[A-Za-z]+", content):
            raise UnreadError(rf"\{name} over {content}")
        name = {"bar": "overline", "overrightarrow": "vec"}.get(name, name)
        if self.is_applied(f"{name} {content}"):
            return self.called(f"{name} {content}")
        return Node("vector" if name == "vec" else "symbol", (f"{name} {content}",))

    def is_name_in_braces(self) -> bool:
        """A letter, a Greek one, or the points of a segment."""
        end = 1 + (self.peek(1).kind == "command" and self.peek(1).text in GREEK)
        while self.peek(end).kind in ("letter", "word") and (self.peek(end).text.isupper() or end == 1):
            end += 1
        return end > 1 and self.peek(end).text == "}"

    def finite_sum(self, name: str) -> Node:
        """A sum or product between limits."""
        self.expect("_")
        self.expect("{")
        variable = self.relation()
        self.expect("}")
        self.expect("^")
        high = self.exponent()
        body = self.product()
        if (
            variable.head != "relation"
            or variable.args[0] != ("=",)
            or variable.args[1].head not in ("symbol", "constant")
        ):
            raise UnreadError(rf"\{name}")
        if any(variable.args[1].args[0] in index.partition("_")[2] for _, index in names_in(body)):
            raise UnreadError("a sum of terms with an index")
        return Node("call", (name, variable.args[1], variable.args[2], high, body))

    def function(self, name: str) -> Node:
        """A function with its power, base and arguments."""
        if name == "sqrt":
            return self.root()
        base = power = None
        if name == "log" and self.takes("_"):
            if self.takes("{"):
                base = self.sum()
                self.expect("}")
            else:
                base = self.argument()
        if self.is_next("^") and not self.degree():
            self.take()
            power = self.exponent()
        if self.is_next("{") and self.peek(2).text in ("=",):
            raise UnreadError(rf"\{name}")
        arguments = self.call_arguments(name)
        if power == number(-1):
            if f"arc{name}" not in FUNCTIONS:
                raise UnreadError(rf"\{name}^{{-1}}")
            return Node("call", (f"arc{name}", *arguments))
        if name == "lg":
            name, base = "log", number(10)
        if name == "log":
            arguments = [*arguments, *([base] if base is not None else [])]
        value = Node("call", (name, *arguments))
        return value if power is None else Node("power", (value, power))

    def call_arguments(self, name: str) -> list[Node]:
        """What a function is applied to."""
        if self.takes("("):
            return self.inside(")")
        if name in ("max", "min", "gcd", "lcm") and self.takes("{", "lbrace"):
            return self.inside("}")
        if self.is_next("[") or self.next is END:
            raise UnreadError(rf"the argument of {name}")
        sign = self.takes("-")
        value = signed(sign, self.factor())
        # sin 2x: what follows without a sign or a space of LaTeX, up to the next function.
        while self.starts_factor() and not (
            self.next.gap
            or (self.next.kind == "command" and self.next.text in FUNCTIONS | {"sqrt"})
            or self.is_next("(")
        ):
            value = self.juxtaposed(value)
        return [value]


def conjugate(node: Node) -> Node:
    """The complex conjugate, which sums, products and powers pass on to their parts."""
    if node == Node("constant", ("i",)):
        return Node("multiply", (number(-1), node))
    if node.head == "symbol":
        name = node.args[0]
        return Node("symbol", (name.removeprefix("overline ") if name.startswith("overline ") else f"overline {name}",))
    return Node(node.head, tuple(conjugate(arg) if isinstance(arg, Node) else arg for arg in node.args))


def _differential(node: Node) -> str | None:
    """The text of dy or d²y, whose d is no factor."""
    if node.head != "multiply" or not all(part.head in ("symbol", "power") for part in node.args):
        return None
    first = node.args[0].args[0] if node.args[0].head == "power" else node.args[0]
    return repr(node) if first == Node("symbol", ("d",)) else None

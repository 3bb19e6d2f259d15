r"""Points, intervals, sets and matrices."""

from collections.abc import Callable

from math_answers.expressions import Expressions
from math_answers.nodes import Node, UnreadError, number
from math_answers.stream import END

_PRINTED = {"lparen": "(", "rparen": ")", "lbrack": "[", "rbrack": "]", "langle": "(", "rangle": ")"}
_ENVIRONMENTS = frozenset(["pmatrix", "bmatrix", "vmatrix", "matrix", "cases", "array", "smallmatrix"])

_CONDITIONALS = frozenset(["if", "for", "when"])
_CONDITIONS = frozenset(["relation", "and", "or", "words"])


class Brackets(Expressions):
    """What stands between brackets of all kinds."""

    separator: Callable[[], str | None]
    set_expression: Callable[[], Node]
    quantity: Callable[[], Node]
    relation_operator: Callable[[], str | None]

    def bracketed(self, opening: str) -> Node:
        """A group, a point, an interval."""
        is_of_rows = opening == "[" and self.is_next("[")
        closings = (")", "]", "rangle", "rparen", "rbrack")
        found = self.enclosed(closings if is_of_rows else (*closings, "["))
        closing = self.take().text
        opening, closing = _PRINTED.get(opening, opening), _PRINTED.get(closing, closing)
        if closing not in (")", "]", "["):
            raise UnreadError("a bracket that is not closed")
        turned = opening == "]" or closing == "["  # ]2, 5[ is (2, 5)
        opening, closing = {"]": "("}.get(opening, opening), {"[": ")"}.get(closing, closing)
        if found.head != "list":
            if opening + closing in ("()", "[]"):
                is_label = found.head in ("words", "symbol") and len(found.args) == 1 and len(found.args[0]) == 1
                is_choice = found.head == "words" or (self.at == 3 and found.args[:1] in zip("ABCDEFGHIJ"))
                return self.choice(found) if is_label and is_choice and opening == "(" else found
            raise UnreadError("brackets of two kinds")
        if is_of_rows and closing == "]" and all(part.head in ("interval", "tuple") for part in found.args):
            rows = [part.args[1:] if part.head == "interval" else part.args for part in found.args]
            if len({len(row) for row in rows}) == 1:
                return Node("matrix", (len(rows[0]), *(cell for row in rows for cell in row), False))
        if len(found.args) == 2 and (turned or opening + closing != "()"):
            return Node("interval", (opening + closing, *found.args))
        if opening + closing not in ("()", "[]"):
            raise UnreadError("brackets of two kinds")
        return Node("tuple", found.args)

    def choice(self, letter: Node) -> Node:
        """The label of a choice, with its value where that follows."""
        if self.next is END or self.is_next(",", ";", ")", "]"):
            return letter
        value = self.set_expression()
        if value.head in ("words", "choice", "symbol"):
            raise UnreadError("two choices")
        return Node("choice", (letter, value))

    def braces(self) -> Node:
        """A group, a set, or a binomial."""
        if self.takes("}"):
            return self.base() if self.next is not END else Node("set", ())
        found = self.enclosed(("}", "choose"))
        if self.takes("choose"):
            found = Node("call", ("binomial", found, self.sum()))
        self.expect("}")
        return Node("set", found.args) if found.head == "list" else found

    def number_set(self, name: str) -> Node:
        """All reals, or those above 0."""
        x, operator, bound = Node("symbol", ("x",)), None, number(0)
        if name == "R" and self.is_next("_") and self.peek(1).text == "{":
            self.at += 2
            operator, bound = self.relation_operator(), self.sum()
            self.expect("}")
        elif name == "R" and self.is_next("^") and self.peek(1).text in ("+", "-"):
            operator = "<" if self.peek(1).text == "-" else ">"
            self.at += 2
        if operator is not None:
            return Node("builder", (x, Node("relation", ((operator,), x, bound))))
        return Node("words", ("all real numbers",)) if name == "R" else Node("symbol", (f"set {name}",))

    def set(self) -> Node:
        """A set by its elements or by a condition."""
        if self.takes("}", "rbrace"):
            return Node("set", ())
        self.colon_ends = True
        first = self.enclosed(("}", "rbrace", "mid", "|", ":"), bars=1)
        self.colon_ends = False
        if self.takes("mid", "|", ":"):
            condition = self.enclosed(("}", "rbrace"), bars=1)
            if first.head == "relation" and first.args[0] == ("in",) and first.args[2].head == "words":
                first = first.args[1]
            found = Node("builder", (first, condition))
        else:
            found = Node("set", first.args if first.head == "list" else (first,))
        if not self.takes("}", "rbrace"):
            raise UnreadError("a set that is not closed")
        return found

    def environment(self) -> Node:
        """A matrix, or cases."""
        name = self.index()
        if name.rstrip("*") not in _ENVIRONMENTS:
            raise UnreadError(rf"\begin{{{name}}}")
        if name == "array":
            self.index()
        self.depth_of_lists += 1
        rows, row = [], []
        while True:
            if self.is_next("end"):
                self.take()
                break
            if name == "cases" and row and self.next.text.lower() in _CONDITIONALS:
                self.take()
            row.append(self.items(("&", "\\\\", "end")) if name == "cases" else self.quantity())
            if name == "cases":
                self.separator()
            if self.takes("&"):
                continue
            rows.append(tuple(row))
            row = []
            if not self.takes("\\\\", "cr") and not self.is_next("end"):
                raise UnreadError("a row of a matrix")
        self.depth_of_lists -= 1
        if self.index() != name or row:
            raise UnreadError("a matrix that is not closed")
        if name == "cases":
            if any(len(line) > 2 or (line[1:] and line[1].head not in _CONDITIONS) for line in rows):
                raise UnreadError("a row of cases")
            lines = [Node("case", line) if len(line) == 2 else line[0] for line in rows]
            return Node("list", tuple(lines)) if len(lines) > 1 else lines[0]
        if len({len(line) for line in rows}) != 1:
            raise UnreadError("rows of several lengths")
        return Node("matrix", (len(rows[0]), *(cell for line in rows for cell in line), name == "vmatrix"))

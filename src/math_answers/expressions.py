r"""Sums, products, powers and what stands in them.

sum      = product ((+ | − | ±) product)*
product  = factor ((· | × | ÷ | / | nothing) factor)*
factor   = base (^ exponent | ! | ' | _ index | °)*
"""

import re
from collections.abc import Callable
from fractions import Fraction

from math_answers.lexer import Token
from math_answers.nodes import Node, UnreadError, number
from math_answers.stream import END, MOST_DEPTH, Stream, decimal
from math_answers.tables import ACCENTS, FUNCTIONS, GREEK, NUMERALS, PARTS, UNITS, VECTORS

MOST_OPERATORS = 100
_TIMES = {"cdot": "dot", "times": "cross", "*": "dot"}
_OPERATORS = frozenset(["cdot", "times", "*", "div", "/", "bmod", "mod"])
_BEHIND_A_UNIT = frozenset([",", ";", ")", "]", "\\\\", "&", "end", "^", "/", "=", "<", ">", "cdot"])
FRACTIONS = ("frac", "dfrac", "tfrac", "cfrac", "nicefrac", "sfrac")
_UNIT_FRACTION = re.compile(r"\{w+\}\{w+(?:\^9)?\}")
_BEGINNINGS = frozenset(
    """sqrt pi infty binom dbinom tbinom lfloor lceil angle triangle lvert lVert begin sum prod { langle lparen imath
    lbrace""".split()  # noqa: SIM905
).union(FUNCTIONS, GREEK, ACCENTS, VECTORS, FRACTIONS)
"""Commands that a factor begins with."""
_CALLED = frozenset("fghFGHPQ")
"""Letters that are functions where a parenthesis follows."""


class Expressions(Stream):
    """The lower half of the grammar."""

    items: Callable[[tuple[str, ...]], Node]
    bracketed: Callable[[str], Node]
    braces: Callable[[], Node]
    command: Callable[[str], Node]

    def sum(self) -> Node:
        """A sum, or a single term."""
        self.depth += 1
        if self.depth > MOST_DEPTH:
            raise UnreadError("too many brackets")
        sign = self.takes("+", "-", "pm", "mp")
        terms = [signed(sign, self.product())]
        while sign := self.takes("+", "-", "pm", "mp"):
            second = self.takes("-") if sign.text == "+" else None  # 6 + -5
            terms.append(signed(sign, signed(second, self.product())))
        self.depth -= 1
        return terms[0] if len(terms) == 1 else Node("add", tuple(terms))

    def product(self) -> Node:
        """A product, or a single factor."""
        value, operators = self.factor(), 0
        while True:
            operators += self.next.kind in ("mark", "command") and self.next.text in _OPERATORS
            if operators > MOST_OPERATORS:
                raise UnreadError("too long a product")
            if token := self.takes("cdot", "times", "*"):
                sign = self.takes("-", "+")
                right = self.factor()
                while self.starts_factor():
                    right = self.juxtaposed(right)
                head = _TIMES[token.text]
                value = Node(head, (*(value.args if value.head == head else (value,)), signed(sign, right)))
            elif self.takes("div", "/"):
                sign = self.takes("-", "+")
                value = Node("divide", (value, signed(sign, self.factor())))
            elif self.takes("bmod", "mod"):
                value = Node("call", ("mod", value, self.factor()))
            elif self.starts_factor():
                value = self.juxtaposed(value)
            else:
                return value

    def starts_factor(self) -> bool:
        """Whether a factor follows without a sign."""
        self.split_unit()
        token = self.next
        if token.kind in ("number", "letter"):
            return True
        if token.kind == "word":
            return False
        if token.text == "(" and self.peek().text in ("bmod", "mod"):
            return False
        if token.kind == "mark":
            if token.text == "[" and (self.peek() is END or self.peek().text in (")", "]", ",", ";", "cup", "cap")):
                return False
            return token.text in ("(", "{", "[") or (token.text == "|" and not self.bars)
        if token.kind == "command":
            name = token.text
            if name in FRACTIONS and self.unit_fraction():
                return False
            return name in _BEGINNINGS or (name in ("mid", "vert") and not self.bars)
        return False

    def unit_fraction(self) -> list[Token]:
        r"""The tokens of \frac{\text{km}}{\text{h}}, of words that are no values; none where it does not come."""
        behind = [self.peek(place) for place in range(1, 14)] if self.is_next(*FRACTIONS) else []
        signs = {"word": "w", "number": "9", "mark": ""}
        shape = "".join(signs.get(t.kind, "?") or t.text if t.upright or t.kind != "word" else "?" for t in behind)
        match = _UNIT_FRACTION.match(shape)
        return behind[: match.end()] if match else []

    def split_unit(self, *, is_due: bool = False) -> None:
        """A short unit inside of an expression is a product of letters: mg sin θ."""
        token = self.next
        if token.text == "h" and token.kind == "letter" and self.peek().kind == "number" and self.peek(2).text == "min":
            self.tokens[self.at] = Token("word", "h", token.space, upright=True)  # 2 h 30 min
        if token.kind != "word" or token.upright or token.text not in UNITS or len(token.text) > 3:
            return
        behind = self.peek()
        ends = behind is END or behind.kind == "word" or behind.text in _BEHIND_A_UNIT
        ends |= behind.kind == "number" and self.peek(2).kind == "word"  # 2 hr 30 min
        if is_due or self.depth != self.quantity_depth or not ends:
            letters = [Token("letter", letter, token.space and not i) for i, letter in enumerate(token.text)]
            self.tokens[self.at : self.at + 1] = letters

    def juxtaposed(self, value: Node) -> Node:
        """The product of a value and the next factor, written without a sign; 1 1/2 is a mixed number."""
        behind = self.tokens[self.at - 1]
        is_bare, is_whole = behind.kind == "number", value.head == "number" and value.args[0].denominator == 1
        if self.next.kind == "number" and _ends_in_number(value) and behind.text != ")":
            top, slash, bottom = self.next, self.peek(1), self.peek(2)
            is_fraction = slash.text == "/" and bottom.kind == "number" and (top.text + bottom.text).isdigit()
            if top.space and is_whole and is_fraction and 0 < int(top.text) < int(bottom.text):
                self.at += 3
                return number(value.args[0] + Fraction(int(top.text), int(bottom.text)))
            raise UnreadError("two numbers beside one another")
        is_fraction, is_bracketed = self.is_next(*FRACTIONS), self.is_next("(")
        right = self.factor()
        is_ratio = right.head == "divide" and right.args[0].head == right.args[1].head == "number"
        if is_fraction and is_bare and is_whole and is_ratio:
            top, bottom = (part.args[0] for part in right.args)
            if not 0 < top < bottom or top.denominator * bottom.denominator > 1:
                raise UnreadError("a number and a fraction above 1")
            return number(value.args[0] + top / bottom)
        if right.head == value.head == "number" and is_bare and not (is_fraction or is_bracketed):
            raise UnreadError("two numbers beside one another")
        return _times(value, right)

    def factor(self) -> Node:
        """A base with its exponents, primes, factorials, degrees and indices."""
        return self.postfixed(self.base())

    def postfixed(self, value: Node) -> Node:
        """A base with what stands behind it."""
        while True:
            if self.is_next("^"):
                if self.degree():
                    value = self.minutes(Node("quantity", (value, "degree")))
                    if self.next.kind == "letter" and self.next.text in "CF" and self.peek() is END:
                        self.take()
                else:
                    self.take()
                    if value.head in ("tuple", "interval", "matrix") and self.takes_transpose():
                        value = _transposed(value)
                    elif value.head == "symbol" and self.is_next("prime", "*"):
                        value = Node("symbol", (f"{value.args[0]}{self.take().text}",))
                    else:
                        value = Node("power", (value, self.exponent()))
            elif self.takes("degree"):
                value = self.minutes(Node("quantity", (value, "degree")))
            elif self.is_next("!") and not self.next.upright:
                self.take()
                name = "double factorial" if self.takes("!") else "factorial"
                if self.is_next("!", "="):
                    raise UnreadError(f"a {name} before {self.next.text!r}")
                value = Node("call", (name, value))
            elif self.is_next("'") and value.head == "symbol":
                self.take()
                value = Node("symbol", (value.args[0] + "'",))
                if value.args[0].rstrip("'") in _CALLED and self.is_next("(") and not self.next.space:
                    return self.called(value.args[0])
            elif self.is_next("_") and value.head in ("number", "digits"):
                self.take()
                digits = value.args[0] if value.head == "digits" else _digits(value)
                return Node("numeral", (digits, self.index().strip("()")))
            elif self.is_next("_") and value.head in ("symbol", "vector"):
                self.take()
                value = Node(value.head, (f"{value.args[0]}_{self.index()}",))
            else:
                return value

    def degree(self) -> bool:
        r"""Takes ^\circ and ^{\\circ}."""
        if self.peek().kind == "command" and self.peek().text in ("circ", "degree"):
            self.at += 2
            return True
        if self.peek().text == "{" and self.peek(2).text == "circ" and self.peek(3).text == "}":
            self.at += 4
            return True
        return False

    def takes_transpose(self) -> bool:
        """Takes the T of a transpose, alone or in braces."""
        is_braced = self.is_next("{")
        if self.peek(is_braced).text not in ("T", "top", "intercal") or (is_braced and self.peek(2).text != "}"):
            return False
        self.at += 3 if is_braced else 1
        return True

    def minutes(self, value: Node) -> Node:
        """30° 15' is 30.25°."""
        for marks, parts in (("'", 60), ("''", 3600)):
            if (
                self.next.kind == "number"
                and all(self.peek(1 + i).text == "'" for i in range(len(marks)))
                and (value.args[0].head == "number" and self.peek(1 + len(marks)).text != "'")
            ):
                angle = value.args[0].args[0] + Fraction(self.take().text) / parts
                self.at += len(marks)
                value = Node("quantity", (number(angle), "degree"))
        return value

    def exponent(self) -> Node:
        """What stands above."""
        if self.takes("{"):
            value = self.sum()
            self.expect("}")
            return value
        sign = self.takes("-", "+")
        return signed(sign, self.base())

    def index(self) -> str:
        """What is written below, as text."""
        if not self.takes("{"):
            token = self.take()
            if token.kind not in ("number", "letter", "command", "word"):
                raise UnreadError("an index")
            return token.text
        found, depth = [], 1
        while True:
            token = self.take()
            if token is END:
                raise UnreadError("an index that is not closed")
            depth += {"{": 1, "}": -1}.get(token.text, 0)
            if depth == 0:
                return "".join(found)
            if token.text not in ("{", "}"):
                found.append(token.text)

    def base(self) -> Node:
        """A number, a symbol, a group or a command."""
        self.takes("$", "€", "£", "¥")
        self.split_unit(is_due=True)
        self.depth_of_values += 1
        if self.depth_of_values > MOST_DEPTH:
            raise UnreadError("too many brackets")
        value = self.value(self.take())
        self.depth_of_values -= 1
        return value

    def value(self, token: Token) -> Node:
        """A base from its first token."""
        if token.kind == "number":
            return self.repeating(token)
        if token.kind == "digits":
            return Node("digits", (token.text,))
        if token.kind == "letter":
            return self.letter(token.text)
        if token.kind == "word" and token.text.lower() in NUMERALS:
            return self.in_words(NUMERALS[token.text.lower()])
        if token.kind == "word" and len(token.text) == 1 and token.text.isalpha():
            return Node("symbol", (token.text,))
        if token.kind == "mark":
            if token.text in ("(", "[", "]"):
                return self.bracketed(token.text)
            if token.text == "{":
                return self.braces()
            if token.text == "|":
                return self.absolute(("|", "mid", "vert", "rvert"))
        if token.kind == "command":
            return self.command(token.text)
        raise UnreadError(f"{token.text or 'the end'!r} where a value is due")

    def in_words(self, value: int) -> Node:
        """A number from its first word: twenty-one, two thirds."""
        unit = NUMERALS.get(self.next.text.lower(), 0) if self.next.kind == "word" else 0
        if value in range(20, 100, 10) and 0 < unit < 10:
            self.take()
            value += unit
        is_part = self.next.kind == "word" and self.next.text.lower() in PARTS
        return number(Fraction(value, PARTS[self.take().text.lower()] if is_part else 1))

    def repeating(self, token: Token) -> Node:
        r"""0.1\overline{6}, 0.\dot{3} and 0.16(6)."""
        if "." in token.text and "e" not in token.text:
            digits = None
            if self.is_next("dot") and [self.peek(i).text for i in (1, 3, 4, 5, 7)] == ["{", "}", "dot", "{", "}"]:
                digits, self.at = self.peek(2).text + self.peek(6).text, self.at + 8
            elif self.is_next("overline", "bar", "dot") and self.peek(1).text == "{" and self.peek(3).text == "}":
                digits, self.at = self.peek(2).text, self.at + 4
            elif (
                self.is_next("(")
                and not self.next.space
                and self.peek(1).kind == "number"
                and self.peek(2).text == ")"
                and self.peek(3).text not in ("(",)
            ):
                digits, self.at = self.peek(1).text, self.at + 3
            if digits is not None:
                if not digits.isdigit():
                    raise UnreadError("repeating digits")
                whole, _, start = token.text.partition(".")
                nines = 10 ** len(digits) - 1
                tail = Fraction(int(start or "0") * nines + int(digits), 10 ** len(start) * nines)
                return number(int(whole or "0") + tail)
        if self.is_next(",") and len(token.text) <= 3 and token.text.isdigit() and not self.depth_of_lists:
            return self.thousands(token)
        return decimal(token.text)

    def thousands(self, token: Token) -> Node:
        """1,234,567, which is one number outside of brackets where no space stands in it."""
        text, ahead = token.text, 0
        while self.peek(ahead).text == "," and self.peek(ahead + 1).kind == "number" and not self.peek(ahead + 1).space:
            digits = self.peek(ahead + 1).text
            whole = digits.partition(".")[0]
            if len(whole) != 3:
                return decimal(token.text)
            text, ahead = text + digits, ahead + 2
            if "." in digits:
                break
        is_one = ahead and self.peek(ahead).text != "," and not token.text.startswith("0")
        self.at += ahead if is_one else 0
        return decimal(text if is_one else token.text)

    def letter(self, name: str) -> Node:
        """A symbol, a constant or a function of what stands in parentheses."""
        if name in _CALLED and "".join(self.peek(ahead).text for ahead in range(6)) == "^{-1}(":
            self.at += 5
            return self.called(f"inverse {name}")
        if name in _CALLED and self.is_next("(") and not self.next.space:
            return self.called(name)
        if self.is_applied(name):
            return self.called(name)
        if name == "e":
            return Node("constant", ("e",))
        if name == "i":
            return Node("constant", ("i",))
        if name.startswith(("unit vector", "vec ")):
            return Node("vector", (name,))
        return Node("symbol", (name,))

    def is_applied(self, name: str) -> bool:
        """x(t), I(0): a letter right before one number, t or x in parentheses is a function of it."""
        inside, behind = self.peek(1), self.peek(2)
        return (
            self.is_next("(")
            and not self.next.space
            and behind.text == ")"
            and inside.text != name
            and (inside.kind == "number" or inside.text in ("t", "x"))
        )

    def called(self, name: str) -> Node:
        """A function with its arguments."""
        self.expect("(")
        arguments = self.inside(")")
        return Node("call", (name, *arguments))

    def inside(self, closing: str) -> list[Node]:
        """The items up to the closing bracket, which is taken."""
        found = self.enclosed((closing,))
        self.expect(closing)
        return list(found.args) if found.head == "list" else [found]

    def enclosed(self, closing: tuple[str, ...], bars: int = 0) -> Node:
        """The items within brackets, where commas separate and no bar closes one outside; `bars` separate too."""
        outer = self.bars, self.depth_of_lists
        self.bars, self.depth_of_lists = bars, self.depth_of_lists + 1
        found = self.items(closing)
        self.bars, self.depth_of_lists = outer
        return found

    def absolute(self, closing: tuple[str, ...], name: str = "abs") -> Node:
        """The absolute value up to the bar that closes it."""
        self.bars += 1
        value = self.sum()
        self.bars -= 1
        if not self.takes(*closing):
            raise UnreadError("a bar that is not closed")
        return Node("call", (name, value))


def _times(value: Node, right: Node) -> Node:
    if right.head == "words" or value.head == "words":
        raise UnreadError("words beside a value")
    if right.head == "matrix" and value.head not in ("matrix", "vector"):
        cells = (Node("multiply", (value, cell)) for cell in right.args[1:-1])
        return Node("matrix", (right.args[0], *cells, right.args[-1]))
    return Node("multiply", (*(value.args if value.head == "multiply" else (value,)), right))


def _transposed(node: Node) -> Node:
    """A matrix with rows and columns exchanged; a row without columns of its own is a column, which is a tuple."""
    if node.head != "matrix":
        return Node("tuple", node.args[-2:] if node.head == "interval" else node.args)
    width, cells = node.args[0], node.args[1:-1]
    columns = (cells[place::width] for place in range(width))
    return Node("matrix", (len(cells) // width, *(cell for column in columns for cell in column), node.args[-1]))


def _ends_in_number(value: Node) -> bool:
    if value.head in ("multiply", "dot", "cross", "divide"):
        return _ends_in_number(value.args[-1])
    return value.head == "number"


def signed(sign: Token | None, value: Node) -> Node:
    """The value behind a sign."""
    if sign is None or sign.text == "+":
        return value
    if sign.text in ("pm", "mp"):
        return Node("plus_minus", (1 if sign.text == "pm" else -1, value))
    if value.head == "number":
        return number(-value.args[0], value.args[1])
    if value.head == "quantity":
        return Node("quantity", (signed(sign, value.args[0]), value.args[1]))
    return Node("multiply", (number(-1), value))


def _digits(value: Node) -> str:
    if value.args[0].denominator != 1:
        raise UnreadError("an index of a number")
    return str(value.args[0])

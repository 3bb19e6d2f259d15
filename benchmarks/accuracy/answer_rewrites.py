"""Equivalent and wrong answers, made from gold answers by rule and without a look at any verifier.

Each rule reads the gold answer with its own arithmetic (`Fraction`) and is applied only where it is certain what it
does to the answer; where a rule might turn a wrong answer into a right one, a condition beside it says so.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

_DIGITS = r"(?:\d{1,3}(?:,(?:\\!)?\s*\d{3})+|\d+)"
_DECIMAL = re.compile(rf"(?P<currency>\\\$)?(?P<sign>[-+]?)(?P<digits>{_DIGITS}?)(?P<places>\.\d*)?")
_SCIENTIFIC = re.compile(r"([-+]?\d+(?:\.\d+)?)e([-+]?\d+)")
_FRACTION = re.compile(r"(-?)\\[dt]?frac\s*(?:\{(\d+)\}|(\d))\s*(?:\{(\d+)\}|(\d))|(-?)(\d+)\.?/(\d+)")
_MIXED = re.compile(r"(\d+)\s*\\frac\s*\{(\d+)\}\s*\{(\d+)\}")
_UNIT = re.compile(r"\^\{?\\circ\}?|\s*\\%|\s*\\(?:text|mbox)\{\s*[a-z]+\s*\}(?:\^2)?")
_BASE = re.compile(r"(\d+)_\{?(\d+)\}?")
_WORD = re.compile(r"\\text\{(\(?)([A-Za-z]+)(\)?)\}")
_BRACKETED = re.compile(r"(?:\\left\s*)?(\(|\[|\\\{)(.*?)(?:\\right\s*)?(\)|\]|\\\})", re.DOTALL)
_MATRIX = re.compile(r"\\begin\{pmatrix\}(.*)\\end\{pmatrix\}", re.DOTALL)
_MACRO_ARGUMENT = re.compile(r"(\\[A-Za-z]+) ")
_NAMED = re.compile(r"([A-Za-z])\s*(=|\\in)\s*(.+)")


@dataclass(frozen=True)
class Rewrite:
    """One answer made from a gold one."""

    gold: str
    kind: str
    completion: str
    is_equal: bool


@dataclass(frozen=True)
class Gold:
    """A gold answer and what of it can be told for certain."""

    text: str
    form: str
    """integer, decimal, scientific, fraction, mixed, base, word, bracketed, list, matrix, equation, expression, …"""
    value: Fraction | None = None
    unit: str = ""


def read_golds(path: Path) -> list[str]:
    """The answers of a benchmark's JSON lines."""
    with path.open() as lines:
        return [str(json.loads(line)["answer"]) for line in lines]


def read_gold(text: str) -> Gold:
    """The form of a gold answer, and its value where it is a rational number."""
    unit = _UNIT.search(text)
    if unit and unit.end() == len(text) and _number(text[: unit.start()]):
        form, value = _number(text[: unit.start()]) or ("", Fraction(0))
        return Gold(text, form, value, unit.group())
    if number := _number(text):
        return Gold(text, *number, unit=r"\$" if text.startswith(r"\$") else "")
    for form, pattern in (("base", _BASE), ("word", _WORD), ("matrix", _MATRIX)):
        if pattern.fullmatch(text):
            return Gold(text, form)
    if (
        (match := _BRACKETED.fullmatch(text))
        and "," in match[2]
        and not set("()[]") & set(match[2])
        and r"\," not in text
    ):
        return Gold(text, "bracketed")
    if any(mark in text for mark in (r"\text", r"\mbox", "$", "np.", "*", ":", r"\,")) or text.endswith("."):
        return Gold(text, "other")  # code, remarks, ratios, times and broken LaTeX: not to be recombined
    if "," in text:
        return Gold(text, "other" if set("()[]{}=") & set(re.sub(r"_\{\d\}|\\\w+\{\d+\}", "", text)) else "list")
    if r"\cup" in text:
        return Gold(text, "other")
    return Gold(text, "equation" if "=" in text or r"\in " in text else "expression")


def _number(text: str) -> tuple[str, Fraction] | None:
    text = text.strip()
    if match := _SCIENTIFIC.fullmatch(text):
        return "scientific", Fraction(text)
    if match := _MIXED.fullmatch(text):
        whole, top, bottom = map(int, match.groups())
        return "mixed", whole + Fraction(top, bottom)
    if match := _FRACTION.fullmatch(text):
        sign, *parts = (group for group in match.groups() if group is not None)
        return "fraction", Fraction(int(sign + parts[0]), int(parts[1]))
    match = _DECIMAL.fullmatch(text)
    if match is None or not (match["digits"] or match["places"]):
        return None
    digits = re.sub(r"\D", "", match["digits"])
    value = Fraction(
        f"{match['sign']}{digits or '0'}{match['places'] or ''}0" if match["places"] else match["sign"] + digits
    )
    return "decimal" if match["places"] else "integer", value


def decimal(value: Fraction) -> str | None:
    """The exact decimal of a number; None where it does not end within 12 places."""
    scaled = abs(value) * 10**40
    if scaled.denominator != 1 or scaled % 10**28:
        return None
    whole, places = divmod(int(scaled), 10**40)
    return f"{'-' if value < 0 else ''}{whole}" + (f".{places:040d}".rstrip("0") if places else "")


def _long_decimal(value: Fraction) -> str:
    whole, places = divmod(int(abs(value) * 10**60), 10**60)
    return f"{'-' if value < 0 else ''}{whole}.{places:060d}".rstrip("0").rstrip(".")


def latex_fraction(value: Fraction, macro: str = "frac") -> str:
    """A fraction in LaTeX, its sign in front."""
    return rf"{'-' if value < 0 else ''}\{macro}{{{abs(value.numerator)}}}{{{value.denominator}}}"


def rewrites(golds: Sequence[str]) -> Iterator[Rewrite]:
    """All equivalent and all wrong answers for a benchmark's gold answers, without repetitions."""
    read = [read_gold(gold) for gold in golds]
    for index, gold in enumerate(read):
        yield Rewrite(gold.text, "itself, boxed", rf"Thus \boxed{{{gold.text}}}.", True)
        yield Rewrite(gold.text, "itself, answer line", f"Thus.\nAnswer: {gold.text}", True)
        yield Rewrite(gold.text, "itself, answer line in dollars", f"Thus.\nAnswer: ${gold.text}$", True)
        seen = {gold.text}
        for kind, text in equivalent(gold):
            if text not in seen:
                seen.add(text)
                yield Rewrite(gold.text, kind, rf"Thus \boxed{{{text}}}.", True)
        for kind, text in wrong(gold, read[index + 1 :] + read[:index]):
            if text not in seen:
                seen.add(text)
                yield Rewrite(gold.text, kind, rf"Thus \boxed{{{text}}}.", False)


def equivalent(gold: Gold) -> Iterator[tuple[str, str]]:
    """Answers that say the same, with the kind of rewrite."""
    yield from _same_typesetting(gold)
    if gold.value is not None:
        yield from _same_number(gold, gold.value)
        yield from _same_quantity(gold, gold.value)
    if gold.form == "base":
        digits, base = _parts(_BASE, gold.text)
        yield "base in braces", rf"{digits}_{{{base}}}"
        yield "base without braces", f"{digits}_{base}" if len(base) == 1 else rf"{digits}_{{{base}}}"
    if gold.form == "word":
        opening, word, closing = _parts(_WORD, gold.text)
        for macro in ("text", "textbf", "mathrm", "mbox"):
            yield "upright text", rf"\{macro}{{{opening}{word}{closing}}}"
        yield "text without wrapper", f"{opening}{word}{closing}"
        yield "text without wrapper", word
    if gold.form in ("bracketed", "list", "matrix"):
        yield from _same_collection(gold)
    if gold.form in ("equation", "expression"):
        yield from _same_algebra(gold)


def _same_typesetting(gold: Gold) -> Iterator[tuple[str, str]]:
    text, is_math = gold.text, gold.form not in ("word", "other")
    yield "full stop", f"{text}."
    yield "blanks around", f"  {text} "
    if "$" not in text:
        yield "dollars inside the box", f"${text}$"
    if r"\frac" in text:
        yield "dfrac, tfrac", text.replace(r"\frac", r"\dfrac")
        yield "dfrac, tfrac", text.replace(r"\frac", r"\tfrac")
    if "-" in text and is_math:
        yield "unicode minus", text.replace("-", "−")
    if is_math and " " in text and gold.unit == "" and gold.form != "mixed":
        yield "blanks removed", _MACRO_ARGUMENT.sub(r"\1\0", text).replace(" ", "").replace("\0", " ")
    # \frac takes its arguments across a blank, but not across a space that is typeset.
    if is_math and " " in text and gold.form != "matrix" and not re.search(r"\\frac |\} \{|\\!", text):
        yield "thin spaces", text.replace(" ", r"\,")
        yield "thin spaces", text.replace(" ", r" \; ")
    if is_math and r"\left" not in text and re.search(r"[(\[]", text) and text.count("(") == text.count(")"):
        sized = re.sub(r"([(\[])", r"\\left\1", re.sub(r"([)\]])", r"\\right\1", text))
        yield "left and right", sized
    if r"\left" in text and r"\right" in text:
        yield "left and right", re.sub(r"\\(?:left|right)(?![A-Za-z])\s*", "", text)
    if gold.form not in ("equation", "word", "other", "list", "matrix"):
        name = next(letter for letter in "xNk" if letter not in re.sub(r"\\[A-Za-z]+", "", text))
        yield "name in front", f"{name} = {text}"
        yield "name in front", f"{name}={text}"


def _same_number(gold: Gold, value: Fraction) -> Iterator[tuple[str, str]]:
    unit = gold.unit if gold.unit != r"\$" else ""
    sign = "-" if value < 0 else ""
    size = abs(value)
    exact = decimal(value)
    if value > 0 and not gold.text.startswith(("+", r"\$")):
        yield "leading plus", f"+{gold.text}"
    if gold.form == "integer":
        yield "leading zeros", f"{sign}00{size}{unit}"
        yield "zeros behind the point", f"{value}.0{unit}"
        yield "zeros behind the point", f"{value}.00{unit}"
        yield "integer as a fraction", latex_fraction(value).replace(f"{{{size}}}{{1}}", f"{{{2 * size}}}{{2}}") + unit
    if value.denominator == 1 and 1000 <= size < 10**15:
        for mark in (",", "{,}", r"\,", r",\!"):
            yield "thousands separators", f"{int(value):,}".replace(",", mark) + unit
    if gold.form in ("integer", "decimal") and not gold.unit:
        for macro in ("text", "mathrm", "textbf", "mathbf"):
            yield "number in upright or bold type", rf"\{macro}{{{gold.text}}}"
    if gold.form == "decimal":
        yield "zeros behind the point", f"{exact}{'.' if value.denominator == 1 else ''}00{unit}"
    if value.denominator > 1:
        if len(str(value.denominator)) < 13:
            yield "fraction", latex_fraction(value) + unit
            yield "fraction", f"{value.numerator}/{value.denominator}{unit}"
            yield "fraction, sign in the numerator", rf"\frac{{{value.numerator}}}{{{value.denominator}}}{unit}"
            yield "fraction, not in lowest terms", rf"\frac{{{3 * value.numerator}}}{{{3 * value.denominator}}}{unit}"
        if exact is not None and abs(len(exact)) <= 12:
            yield "decimal", exact + unit
        whole = size.numerator // size.denominator
        if whole and gold.form in ("fraction", "mixed"):
            yield "mixed number", sign + f"{whole}{latex_fraction(size - whole)}{unit}"
            yield "mixed number", sign + f"{whole} {latex_fraction(size - whole, 'tfrac')}{unit}"
    yield from _scientific(gold, value)


def _scientific(gold: Gold, value: Fraction) -> Iterator[tuple[str, str]]:
    if gold.form == "scientific":
        factor, exponent = _parts(_SCIENTIFIC, gold.text)
        if (exact := decimal(value)) is not None and len(exact) <= 15:
            yield "scientific written out", exact
    elif gold.form == "decimal" and 0 < abs(value) < Fraction(1, 10):
        power = next(n for n in range(1, 20) if abs(value) * 10**n >= 1)
        factor, exponent = decimal(value * 10**power) or "", str(-power)
    else:
        return
    exponent = str(int(exponent))
    yield "times a power of ten", rf"{factor} \times 10^{{{exponent}}}"
    yield "times a power of ten", rf"{factor}\times10^{{{exponent}}}"
    yield "times a power of ten", rf"{factor} \cdot 10^{{{exponent}}}"
    yield "power of ten in front", rf"10^{{{exponent}}} \cdot {factor}"
    yield "e notation", f"{factor}e{exponent}"
    yield "e notation", f"{factor}E{int(exponent):+d}"
    if len(exponent) == 1:
        yield "times a power of ten", rf"{factor} \times 10^{exponent}"


def _same_quantity(gold: Gold, value: Fraction) -> Iterator[tuple[str, str]]:
    if gold.unit == "" and gold.form in ("integer", "decimal", "fraction"):
        for unit in (
            r" \text{ cm}",
            r"\text{ units}",
            r"\,\mathrm{cm}",
            r"\ \mathrm{m/s}",
            r" \mbox{ square inches}",
            r"\text{ cm}^2",
        ):
            yield "unit in upright text", gold.text + unit
        yield "unit in plain text", f"{gold.text} cm"
        yield "unit in plain text", f"{gold.text} inches"
        if 0 <= value <= 100 and gold.form != "fraction":
            yield "percent sign", rf"{gold.text}\%"
            yield "percent sign", rf"{gold.text}%"
        if value >= 0 and gold.form != "fraction":
            yield "currency", rf"\${gold.text}"
            yield "currency", rf"{gold.text} \text{{ dollars}}"
    elif gold.unit == r"\$":
        yield "currency", gold.text.removeprefix(r"\$")
        yield "currency", gold.text.removeprefix(r"\$") + r"\text{ dollars}"
    elif gold.unit:
        bare = gold.text.removesuffix(gold.unit)
        yield "unit dropped", bare
        if "circ" in gold.unit:
            for degree in (r"^{\circ}", r"\degree", "°", r" ^\circ", r"\text{ degrees}", " degrees"):
                yield "degrees", bare + degree
        else:
            for macro in ("text", "mathrm", "mbox"):
                yield "unit in upright text", bare + re.sub(r"\\(?:text|mbox)", rf"\\{macro}", gold.unit)


def _same_collection(gold: Gold) -> Iterator[tuple[str, str]]:
    if gold.form == "matrix":
        for name in ("bmatrix", "pmatrix"):
            body = gold.text.replace("pmatrix", name)
            yield "matrix", body
            yield "matrix", re.sub(r"(-?)(\d+)/(\d+)", r"\1\\frac{\2}{\3}", body)
            yield "matrix", body.replace(" ", "")
        return
    opening, inner, closing = _brackets(gold)
    parts = [part.strip() for part in inner.split(",")]
    for separator in (",", ", ", r",\,", r" ,\ "):
        yield "blanks between parts", opening + separator.join(parts) + closing
    for index, part in enumerate(parts):
        if number := _number(part):
            for text in {latex_fraction(number[1], "dfrac"), str(number[1]), decimal(number[1]) or part}:
                changed = [*parts[:index], text, *parts[index + 1 :]]
                yield "a part rewritten", f"{opening}{', '.join(changed)}{closing}"
    if len(parts) > 2 and opening == "(":
        yield "tuple without brackets", ", ".join(parts)
    if opening == r"\{" or gold.form == "list":
        yield "another order", opening + ", ".join(reversed(parts)) + closing
        yield "another order", opening + ", ".join([*parts[1:], parts[0]]) + closing
        yield "set without or with braces", ", ".join(parts) if opening else rf"\{{{', '.join(parts)}\}}"
    if gold.form == "list":
        for word in ("and", "or"):
            yield "and, or", f"{', '.join(parts[:-1])} \\text{{ {word} }} {parts[-1]}"
            yield "and, or", f"{', '.join(parts[:-1])} {word} {parts[-1]}"
        yield "and, or", f"{', '.join(parts[:-1])}, \\text{{ and }} {parts[-1]}"


def _same_algebra(gold: Gold) -> Iterator[tuple[str, str]]:
    text = gold.text
    if named := _NAMED.fullmatch(text):
        yield "name dropped", named[3]
    if gold.form == "equation":
        if text.count("=") == 1:
            left, right = text.split("=")
            yield "sides exchanged", f"{right.strip()} = {left.strip()}"
        return
    if text.count(r"\pm") == 1:
        yield "plus or minus written out", ", ".join(text.replace(r"\pm", sign) for sign in "+-")
        yield "plus or minus written out", r" \text{ and } ".join(text.replace(r"\pm", sign) for sign in "+-")
        return
    yield "brackets around", f"({text})"
    yield "plus zero", f"{text} + 0"
    yield "doubled and halved", rf"\frac{{2({text})}}{{2}}"
    if product := re.fullmatch(r"(-?)(\d+)\s*(\\(?:sqrt|pi).*)", text):
        sign, factor, rest = product.groups()
        if not set("+-") & set(rest):
            yield "factors exchanged", rf"{sign}{rest} \cdot {factor}"
            yield "factor with a dot", rf"{sign}{factor} \cdot {rest}"
    if (total := re.fullmatch(r"([^-+(){}]+?)\s*([-+])\s*([^-+(){}]+)", text.strip())) and "^" not in total[3][:1]:
        first, sign, second = total.groups()
        yield "terms exchanged", f"{'-' if sign == '-' else ''}{second} + {first}"


def wrong(gold: Gold, others: Sequence[Gold]) -> Iterator[tuple[str, str]]:
    """Answers that are certainly not the gold one, with the kind of mistake."""
    if gold.value is not None:
        yield from _another_number(gold, gold.value, others)
    elif gold.form == "base":
        digits, base = _parts(_BASE, gold.text)
        yield "another base", rf"{digits}_{{{int(base) + 1}}}"
        yield "last digit", rf"{digits[:-1]}{(int(digits[-1]) + 1) % int(base)}_{{{base}}}"
        yield "times ten", rf"{digits}0_{{{base}}}"
    elif gold.form == "word":
        opening, word, closing = _parts(_WORD, gold.text)
        for other in others:
            if other.form == "word" and _parts(_WORD, other.text)[1] != word:
                yield "another gold", other.text
        if len(word) == 1:
            yield "another choice", rf"\text{{{opening}{'A' if word != 'A' else 'D'}{closing}}}"
    elif gold.form in ("bracketed", "list", "matrix"):
        yield from _another_collection(gold)
    elif gold.form in ("equation", "expression"):
        yield from _another_expression(gold)
    if gold.value is None:
        number = next((other for other in others if other.value is not None and other.value.denominator > 1), None)
        # x = 5 may be a gold answer, and then it equals a number; a list, a word or an irrational never does.
        if number is not None and gold.form not in ("equation", "other", "base") and not gold.text.isdigit():
            yield "another gold", number.text


def _another_number(gold: Gold, value: Fraction, others: Sequence[Gold]) -> Iterator[tuple[str, str]]:
    unit = gold.unit if gold.unit != r"\$" else ""

    def written(number: Fraction) -> str:
        if gold.form in ("fraction", "mixed") and number.denominator > 1:
            return latex_fraction(number) + unit
        return _long_decimal(number) + unit

    candidates: list[tuple[str, Fraction]] = [
        ("negated", -value),
        ("times 100", value * 100),
        ("divided by 100", value / 100),
    ]
    # A number in scientific notation is a measured one, and one more or less is far below what was measured.
    if gold.form != "scientific" or abs(value) < 10**4:
        candidates += [("off by one", value + 1), ("off by one", value - 1)]
    candidates += [("drift of 5e-5", value * Fraction(100005, 100000)), ("twice", value * 2)]
    if value.denominator > 1 and gold.form in ("fraction", "mixed"):
        candidates += [("numerator changed", value + Fraction(1, value.denominator))]
        candidates += [("denominator changed", Fraction(value.numerator, value.denominator + 1))]
    for kind, number in candidates:
        if number != value:
            yield kind, written(number)
    if value != 0:
        for equation in ("2t = {}", "t + 1 = {}", "{} = t - 1", "t + y = {}", r"\frac{{t}}{{2}} = {}"):
            yield "an equation with it", equation.format(gold.text)
    if value not in (0, 1, -1):
        yield "inverted", rf"\frac{{{value.denominator}}}{{{value.numerator}}}"
    if gold.form == "scientific":
        factor, exponent = _parts(_SCIENTIFIC, gold.text)
        for step in (-1, 1):
            yield "exponent changed", rf"{factor} \times 10^{{{int(exponent) + step}}}"
            yield "exponent changed", f"{factor}e{int(exponent) + step}"
        yield "last digit", rf"{factor[:-1]}{(int(factor[-1]) + 1) % 10} \times 10^{{{exponent}}}"
    if gold.form in ("integer", "decimal") and not gold.unit:
        yield "last digit", f"{gold.text[:-1]}{(int(gold.text[-1]) + 1) % 10}"
    # A hundred times or a hundredth is a kind of its own; what is as near as a rounding is not certainly wrong.
    distinct = (
        o for o in others if o.value is not None and abs(o.value - value) > max(abs(value), abs(o.value)) / 1000
    )
    for other, _ in zip(distinct, range(2), strict=False):
        yield "another gold", other.text


def _another_collection(gold: Gold) -> Iterator[tuple[str, str]]:
    if gold.form == "matrix":
        numbers = list(re.finditer(r"\d+", gold.text))
        for number in numbers[:2]:
            yield "a part changed", f"{gold.text[: number.start()]}{int(number[0]) + 1}{gold.text[number.end() :]}"
        rows = [row.strip() for row in _parts(_MATRIX, gold.text)[0].strip().split(r"\\")]
        if rows[0] != rows[1]:
            exchanged = r" \\ ".join([rows[1], rows[0], *rows[2:]])
            yield "rows exchanged", rf"\begin{{pmatrix}} {exchanged} \end{{pmatrix}}"
        return
    opening, inner, closing = _brackets(gold)
    parts = [part.strip() for part in inner.split(",")]
    values = [number[1] if (number := _number(part)) else None for part in parts]
    for index, value in enumerate(values):
        if value is not None:
            for kind, other in (
                ("a part off by one", value + 1),
                ("a part negated", -value),
                ("a part times 100", value * 100),
            ):
                # In a set or a list the new part may be one of the others.
                if other != value and other not in values:
                    changed = [*parts[:index], str(other), *parts[index + 1 :]]
                    yield kind, f"{opening}{', '.join(changed)}{closing}"
    is_ordered = opening in ("(", "[")
    if is_ordered and parts[0] != parts[-1]:
        yield "parts exchanged", f"{opening}{', '.join([parts[-1], *parts[1:-1], parts[0]])}{closing}"
        if opening + closing == "()" and r"\infty" not in inner:
            yield "a set for a tuple", rf"\{{{', '.join(parts)}\}}"
    if opening + closing in ("(]", "[)"):
        swapped = {"(": "[", "]": ")", "[": "(", ")": "]"}
        yield "brackets exchanged", f"{swapped[opening]}{inner}{swapped[closing]}"
        yield "brackets exchanged", f"({inner})"
        yield "brackets exchanged", f"[{inner}]"
    yield "a part too many", f"{opening}{inner}, 1009{closing}"
    if len(set(parts)) == len(parts):
        yield "a part missing", f"{opening}{', '.join(parts[:-1])}{closing}" if len(parts) > 2 else parts[0]


def _another_expression(gold: Gold) -> Iterator[tuple[str, str]]:
    text = gold.text
    if r"\in " in text or r"\pm" in text:
        return
    yield "plus one", f"{text} + 1"
    if gold.form == "expression":
        yield "negated", f"-({text})"
        yield "doubled", f"2({text})"
        yield "inverted", rf"\frac{{1}}{{{text}}}"
    for match in list(re.finditer(r"\^\{?(\d)\}?", text))[:1]:
        yield "exponent changed", f"{text[: match.start(1)]}{int(match[1]) + 1}{text[match.end(1) :]}"
    # A number in an index is part of a name.
    for match in list(re.finditer(r"(?<![\d._^{])\d+(?![\d.])", text))[:2]:
        yield "number changed", f"{text[: match.start()]}{int(match[0]) + 1}{text[match.end() :]}"
    if (total := re.fullmatch(r"([^-+(){}=]+)([-+])([^-+(){}=]+)", text.strip())) and total[1].strip():
        yield "sign changed", f"{total[1]}{'+' if total[2] == '-' else '-'}{total[3]}"


def _brackets(gold: Gold) -> tuple[str, str, str]:
    if gold.form == "list":
        return "", gold.text, ""
    opening, inner, closing = _parts(_BRACKETED, gold.text)
    return opening, inner.strip(), closing


def _parts(pattern: re.Pattern[str], text: str) -> tuple[str, ...]:
    match = pattern.fullmatch(text)
    assert match is not None, text
    return match.groups()

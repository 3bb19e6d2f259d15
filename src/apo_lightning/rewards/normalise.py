r"""Normalisation of answers: one spelling for notations with the same meaning. Does not decide whether answers match.

Linear in the text except for `unwrap`; pass at most `MAX_ANSWER_CHARS`.
"""

import re
from collections.abc import Callable

from apo_lightning.rewards.extraction import last_boxed, unwrap

_SYMBOLS = str.maketrans(
    {
        "−": "-", "–": "-", "×": r" \times ", "·": r" \cdot ", "⋅": r" \cdot ", "π": r"\pi ", "∞": r"\infty ",
        "∪": r"\cup ", "±": r"\pm ", "≤": r"\leq ", "≥": r"\geq ", "°": r"^\circ", "√": r"\sqrt ", "\u00a0": " ",
        "\u2009": " ", "\u202f": " ", "\u3000": " ", "~": " ", "²": "^2", "³": "^3", "、": ",", "。": ".",
    }
    # Full-width forms of ASCII, as used in Chinese text.
    | {chr(code + 0xFEE0): chr(code) for code in range(ord("!"), ord("~"))}
)  # fmt: skip
_THOUSANDS = "[0-9]{1,3}(?:,[0-9]{3})+"
_NUMBER = rf"[-+]?\s*(?=\.?[0-9])(?:{_THOUSANDS}(?![0-9,])|[0-9]*)(?:\.[0-9]*)?"
_FUNCTIONS = "arcsin|arccos|arctan|sinh|cosh|tanh|sin|cos|tan|cot|sec|csc|ln|log|exp"
_Rule = tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]]
_LATEX_RULES: tuple[_Rule, ...] = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        # LaTeX's thousands separators; a plain comma may also separate a list and is left to `read_number`.
        (r"(?<=[0-9])(?:\{,\}|,\\!\s*|\\,)(?=[0-9]{3}(?![0-9]))", ""),
        # A row of a matrix ends in \\, whose second backslash must not be read as part of a space.
        (r"(?<!\\)\\!", ""),
        (r"(?<!\\)\\(?:[,;: ]|q?quad(?![A-Za-z]))", " "),
        (r"\\(?:left|right)\.", ""),
        (r"\\(?:left|right|[bB]igg?[lr]?|displaystyle|textstyle)(?![A-Za-z])", ""),
        (r"\{\s*\\(?:rm|bf|it)(?![A-Za-z])\s*([^{}\\]*)\}", r"\\text{\1}"),
        (r"\\(?:rm|bf|it)(?![A-Za-z])", ""),
        (r"\\[dtc]frac(?![A-Za-z])", r"\\frac"),
        (r"\\frac\s*([0-9]|\\pi(?![A-Za-z]))\s*(?=[0-9{])", r"\\frac{\1}"),
        (r"(\\frac\s*\{[^{}]*\})\s*([0-9])", r"\1{\2}"),
        (r"\\(?:imath(?![A-Za-z])|math(?:bf|it)\s*\{\s*i\s*\})", "i "),
        (r"\\(?:math|text)rm\s*\{\s*([eid])\s*\}", r"\1 "),
        (rf"\\(?:mathrm|operatorname|text)\s*\{{\s*({_FUNCTIONS})\s*\}}", r"\\\1 "),
        (r"\\(?:mathrm|mbox|textrm|textnormal|textbf|textit|textsf|text)\s*\{", r"\\text{"),
        # An upright index is the same index.
        (r"_\s*\{\s*\\text\{\s*([A-Za-z0-9]+)\s*\}\s*\}", r"_{\1}"),
        (r"_\s*\\text\{\s*([A-Za-z0-9]+)\s*\}", r"_{\1}"),
        (r"_\s*(?:\{\s*\\(max|min)\s*\}|\\(max|min)(?![A-Za-z]))", r"_{\1\2}"),
        # Upright or bold digits are digits, and text after them is a unit, except in a time or a date.
        (rf"\\(?:text|mathbf|boldsymbol)\{{\s*({_NUMBER}(?:\s*/\s*[0-9]+)?)\s*\}}", r" \1 "),
        (rf"\\text\{{\s*({_NUMBER})\s*([A-Za-z%\u4e00-\u9fff][^{{}}0-9:,]*)\}}", r" \1 \\text{ \2}"),
        (r"\\text\{([0-9A-F]+)\}(?=\s*_)", r"\1"),
        (r"\\text\{\s*([\u4e00-\u9fff]+)\s*\}", r"\1"),
        # Inside a fraction, a root or an exponent a comma never separates a list.
        (
            r"(?:\\frac|\\sqrt|[\]}^])\s*\{[^{}]*(?=\})",
            lambda match: re.sub(
                rf"(?<![0-9,.]){_THOUSANDS}(?![0-9,])", lambda number: number[0].replace(",", ""), match[0]
            ),
        ),
        (r"\{([:/=])\}", r"\1"),
        (r"\s*(?:\^\s*(?:\\circ(?![A-Za-z])|\{\s*\\circ\s*\})|\\degree(?![A-Za-z]))", r"^\\circ"),
        (r"\\ge(?![A-Za-z])", r"\\geq"),
        (r"\\le(?![A-Za-z])", r"\\leq"),
    )
)
_PLAIN_RULES: tuple[_Rule, ...] = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (rf"(?<![A-Za-z\\.])(?:np\.|math\.)?({_FUNCTIONS})(?=\()", r"\\\1"),
        (r"(?<![A-Za-z\\.])(?:np\.|math\.)?sqrt\(([^()]*)\)", r"\\sqrt{\1}"),
        # Inside mathematics a dollar is never content.
        (r"\\?\$", ""),
        # Without this rule 4.5e33 would be read as 4.5·e·33.
        (r"(?<![\w.\\])((?:[0-9]+\.?[0-9]*|\.[0-9]+))[eE]\{?([-+]?[0-9]+)\}?(?![\w.])", r"\1 \\times 10^{\2}"),
    )
)


def normalise(answer: str) -> str:
    r"""The answer without wrapping, spacing, size commands and currency, in one notation.

    Example:
        >>> normalise(r"$4.5e33$."), normalise(r"50\%"), normalise(r"\boxed{\left( \dfrac12,\, -1 \right)}")
        ('4.5 \\times 10^{33}', '50\\%', '( \\frac{1}{2},  -1 )')
    """
    boxed = last_boxed(answer)
    answer = _without_frame(unwrap((answer if boxed is None else boxed).translate(_SYMBOLS)))
    answer = " ".join(answer.split())
    # Most answers have no LaTeX, and the rules take most of the time.
    for pattern, replacement in (_LATEX_RULES if "\\" in answer or "{" in answer else ()) + _PLAIN_RULES:
        answer = pattern.sub(replacement, answer)
    return answer.strip()


_FRAME = re.compile(r"(\\[a-z]+)?\s*\{")
_BOLD = (None, r"\mathbf", r"\boldsymbol", r"\bm", r"\underline", r"\bf", r"\rm", r"\it")
_UPRIGHT = (r"\text", r"\mathrm", r"\textbf", r"\mbox", r"\fbox")
_MAX_FRAMES = 4


def _without_frame(answer: str) -> str:
    """The answer without braces or formatting around all of it; bare braces around a list become a set's."""
    for _ in range(_MAX_FRAMES):
        frame = _FRAME.match(answer)
        content = last_boxed(rf"\boxed{answer[frame.end() - 1 :]}") if frame else None
        if frame is None or content is None or frame.end() + len(content) + 1 != len(answer):
            return answer
        if frame[1] is None and "," in content and not re.fullmatch(_NUMBER, content.strip()):
            return rf"\{{{content}\}}"
        is_mathematics = frame[1] in _BOLD or (frame[1] in _UPRIGHT and re.search(r"[\\$]", content))
        if not is_mathematics:
            return answer
        answer = unwrap(content)
    return answer


_EXPONENT = r"(?:\s*\^\s*(?:\{\s*-?[0-9]\s*\}|-?[0-9]))?"
_SHORT_UNITS = (
    "mm|cm|dm|km|nm|pm|in|ft|yd|mi|mg|kg|lb|oz|ms|ns|min|hr|hrs|sec|kHz|MHz|GHz|Hz|eV|keV|MeV|GeV|kJ|kW|mV|kV|mA|Pa|kPa"
    "|atm|mol|mL|ml|AU|pc|kpc|Mpc|mph|erg|dyn|rad|deg|cal|pct"
)
_LONE_UNITS = "m|s|g|h|K|J|N|W|V|A|F|H|C|T|L"
_TEXT_UNIT = re.compile(r"\s*\\text\{([^{}]*)\}" + _EXPONENT + r"$")
_DEGREE_OR_PERCENT = re.compile(r"\s*(?:\^\\circ|\\?%)$")
_WORD_UNIT = re.compile(
    rf"(?:\s*(?:{_SHORT_UNITS})|\s+(?:[a-z]{{4,}}|[a-z]{{2,}}(?:\s+[a-z]{{2,}}){{1,2}})){_EXPONENT}$"
    rf"|\s*(?:{_SHORT_UNITS}|{_LONE_UNITS}){_EXPONENT}(?:\s*(?:/|\s|\\cdot)\s*(?:{_SHORT_UNITS}|{_LONE_UNITS}){_EXPONENT})+$"
)
_CHINESE_UNIT = re.compile(r"\s*[\u4e00-\u9fff]+(?:\s*/\s*[\u4e00-\u9fff]+)?$")
_LONE_UNIT = re.compile(rf"\s*(?:{_LONE_UNITS}){_EXPONENT}$")
_MAX_UNIT_CHARS = 64
_SCALES = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_CHINESE_SCALES = {"十万": 5, "百万": 6, "千万": 7, "百": 2, "千": 3, "万": 4, "亿": 8}
_SCALE = re.compile(
    rf"(?<=[0-9}}])\s*(?:(?:\\text\{{\s*)?\b({'|'.join(_SCALES)})\b\s*\}}?"
    # 千米 is kilometre, and 百分 is percent.
    rf"|({'|'.join(_CHINESE_SCALES)})(?<!千(?=[米克瓦焦赫帕卡伏升]))(?<!百(?=分)))"
)
_NO_UNITS = re.compile(
    r"\b(?:plus|minus|times|over|divided|more|less|than|squared|cubed|half|quarters?|thirds?|negative|factorial|dozen"
    r"|sqrt|sinh|cosh|tanh|choose|modulo|base|and|or|not|to|of|is)\b"
    # A text with another number is two quantities, and five and a half apples are not five.
    r"|[a-z.]\s+[0-9]|[半多余不或和与及且至到负]|分之|左右|以[上下]"
)
_FUNCTION_OF_DEGREES = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)(?![A-Za-z])(?!\s*\^\s*\{\s*-)")


def without_unit(answer: str, lone_letters: bool = False) -> str:
    r"""A quantity without its unit: upright text, a degree or percent sign, a word or an abbreviation.

    Words may be Chinese. A single italic letter after a number is a variable, unless `lone_letters` is set. Words that
    scale a number become powers of ten; words that name an operation are not units.

    Example:
        >>> [without_unit(quantity) for quantity in (r"864 \text{ inches}^2", "3 million", "4 x", r"30^\circ")]
        ['864', '3 \\times 10^{6}', '4 x', '30']
    """
    answer = _SCALE.sub(_power_of_ten, answer).strip()
    patterns = (_TEXT_UNIT, _CHINESE_UNIT, _DEGREE_OR_PERCENT, _WORD_UNIT, *((_LONE_UNIT,) if lone_letters else ()))
    for pattern in patterns:
        # No unit is longer; searching all of a very long text would take quadratic time.
        match = pattern.search(answer, max(0, len(answer) - _MAX_UNIT_CHARS))
        if match is None or _NO_UNITS.search(match.group()):
            continue
        # The degrees in \sin 30^\circ are the sine's argument, not a unit of the whole.
        if pattern is _DEGREE_OR_PERCENT and _FUNCTION_OF_DEGREES.search(answer):
            continue
        rest = answer[: match.start()].rstrip()
        # A number must remain: after _ or = the text is a name, and a sentence does not end in a unit.
        if re.search(r"[0-9]|\\pi|\\sqrt", rest) and rest[-1] not in "_^=<>+-*/(,\\":
            answer = rest
    return answer


def _power_of_ten(scale: re.Match[str]) -> str:
    return rf" \times 10^{{{_SCALES[scale[1]] if scale[1] else _CHINESE_SCALES[scale[2]]}}} "

r"""One spelling for what LaTeX and prose spell in many ways. Text only: nothing here decides whether answers are equal.

Linear in the text but for `unwrap`; call it on no more than `MAX_ANSWER_CHARS`.
"""

import re

from apo_lightning.rewards.extraction import last_boxed, unwrap

_SYMBOLS = str.maketrans(
    {
        "−": "-", "–": "-", "×": r" \times ", "·": r" \cdot ", "⋅": r" \cdot ", "π": r"\pi ", "∞": r"\infty ",
        "∪": r"\cup ", "±": r"\pm ", "≤": r"\leq ", "≥": r"\geq ", "°": r"^\circ", "√": r"\sqrt ", "\u00a0": " ",
        "\u2009": " ", "\u202f": " ", "~": " ",
    }
)  # fmt: skip
_FUNCTIONS = "arcsin|arccos|arctan|sinh|cosh|tanh|sin|cos|tan|cot|sec|csc|ln|log|exp"
_RULES: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"\s+", " "),
        # Thousands marks of LaTeX join digits; a plain comma may also part a list and is left to `read_number`.
        (r"(?<=[0-9])(?:\{,\}|,\\!\s*|\\,)(?=[0-9]{3}(?![0-9]))", ""),
        # A row of a matrix ends in two backslashes, whose second must not be taken for a space's.
        (r"(?<!\\)\\!", ""),
        (r"(?<!\\)\\(?:[,;: ]|q?quad(?![A-Za-z]))", " "),
        (r"\\(?:left|right)\.", ""),
        (r"\\(?:left|right|[bB]igg?[lr]?)(?![A-Za-z])", ""),
        (r"\\[dtc]frac(?![A-Za-z])", r"\\frac"),
        (r"\\frac\s*([0-9]|\\pi(?![A-Za-z]))\s*(?=[0-9{])", r"\\frac{\1}"),
        (r"(\\frac\s*\{[^{}]*\})\s*([0-9])", r"\1{\2}"),
        (r"\\(?:math|text)rm\s*\{\s*([eid])\s*\}", r"\1 "),
        (rf"\\(?:mathrm|operatorname|text)\s*\{{\s*({_FUNCTIONS})\s*\}}", r"\\\1 "),
        (rf"(?<![A-Za-z\\.])(?:np\.|math\.)?({_FUNCTIONS})(?=\()", r"\\\1"),
        (r"(?<![A-Za-z\\.])(?:np\.|math\.)?sqrt\(([^()]*)\)", r"\\sqrt{\1}"),
        (r"\\(?:mathrm|mbox|textrm|textnormal|textbf|textit|text)\s*\{", r"\\text{"),
        (r"\s*(?:\^\s*(?:\\circ(?![A-Za-z])|\{\s*\\circ\s*\})|\\degree(?![A-Za-z]))", r"^\\circ"),
        (r"\\ge(?![A-Za-z])", r"\\geq"),
        (r"\\le(?![A-Za-z])", r"\\leq"),
        # In mathematics mode a dollar is never content.
        (r"\\?\$", ""),
        # Else 4.5e33 is read as 4.5·e·33.
        (r"(?<![\w.\\])((?:[0-9]+\.?[0-9]*|\.[0-9]+))[eE]\{?([-+]?[0-9]+)\}?(?![\w.])", r"\1 \\times 10^{\2}"),
    )
)


def normalise(answer: str) -> str:
    r"""The answer without wrapping, spacing, sizes and currency; its notation in one form.

    Example:
        >>> normalise(r"$4.5e33$."), normalise(r"50\%"), normalise(r"\boxed{\left( \dfrac12,\, -1 \right)}")
        ('4.5 \\times 10^{33}', '50\\%', '( \\frac{1}{2},  -1 )')
    """
    boxed = last_boxed(answer)
    answer = unwrap(answer if boxed is None else boxed).translate(_SYMBOLS)
    for pattern, replacement in _RULES:
        answer = pattern.sub(replacement, answer)
    return answer.strip()


_TEXT = re.compile(r"\\text\{([^{}]*)\}")
_EXPONENT = r"(?:\s*\^\s*(?:\{\s*-?[0-9]\s*\}|-?[0-9]))?"
_SHORT_UNITS = (
    "mm|cm|dm|km|nm|pm|in|ft|yd|mi|mg|kg|lb|oz|ms|ns|min|hr|hrs|sec|kHz|MHz|GHz|Hz|eV|keV|MeV|GeV|kJ|kW|mV|kV|mA|Pa|kPa"
    "|atm|mol|mL|ml|AU|pc|kpc|Mpc|mph|erg|dyn|rad|deg|cal"
)
_LONE_UNITS = "m|s|g|h|K|J|N|W|V|A|F|H|C|T|L"
_TEXT_UNIT = re.compile(r"\s*\\text\{([^{}]*)\}" + _EXPONENT + r"$")
_DEGREE_OR_PERCENT = re.compile(r"\s*(?:\^\\circ|\\?%)$")
_WORD_UNIT = re.compile(
    rf"(?:\s*(?:{_SHORT_UNITS})|\s+(?:[a-z]{{4,}}|[a-z]{{2,}}(?:\s+[a-z]{{2,}}){{1,2}})){_EXPONENT}$"
    rf"|\s*(?:{_SHORT_UNITS}|{_LONE_UNITS}){_EXPONENT}(?:\s*(?:/|\s|\\cdot)\s*(?:{_SHORT_UNITS}|{_LONE_UNITS}){_EXPONENT})+$"
)
_LONE_UNIT = re.compile(rf"\s*(?:{_LONE_UNITS}){_EXPONENT}$")
_MAX_UNIT_CHARS = 64
_SCALES = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_SCALE = re.compile(rf"(?<=[0-9}}])\s*(?:\\text\{{\s*)?\b({'|'.join(_SCALES)})\b\s*\}}?")
_NO_UNITS = re.compile(
    r"\b(?:plus|minus|times|over|divided|more|less|than|squared|cubed|half|quarters?|thirds?|negative|factorial|dozen"
    r"|sqrt|sinh|cosh|tanh|choose|modulo|base|and|or|not|to|of|is)\b"
)


def without_unit(answer: str, lone_letters: bool = False) -> str:
    r"""A quantity without its unit: upright text, a degree or percent sign, or a word or abbreviation after a number.

    A lone italic letter after a number is a variable, unless `lone_letters` says that none can occur. Words that
    scale a number become powers of ten, and words that name an operation are no unit.

    Example:
        >>> [without_unit(quantity) for quantity in (r"864 \text{ inches}^2", "3 million", "4 x", r"30^\circ")]
        ['864', '3 \\times 10^{6}', '4 x', '30']
    """
    answer = _SCALE.sub(lambda match: rf" \times 10^{{{_SCALES[match[1]]}}} ", answer).strip()
    for pattern in (_TEXT_UNIT, _DEGREE_OR_PERCENT, _WORD_UNIT, *((_LONE_UNIT,) if lone_letters else ())):
        # No unit is longer, and a search through all of an endless one would take time squared.
        match = pattern.search(answer, max(0, len(answer) - _MAX_UNIT_CHARS))
        if match is None or _NO_UNITS.search(match.group()):
            continue
        rest = answer[: match.start()].rstrip()
        # A number must be left: after _ or = the text is a name, and a sentence ends in no unit.
        if re.search(r"[0-9]|\\pi|\\sqrt", rest) and rest[-1] not in "_^=<>+-*/(,\\":
            answer = rest
    return answer


def words(answer: str) -> str | None:
    r"""The letters of an answer that is a word, a name or a choice; None where it may be mathematics.

    Example:
        >>> words(r"\text{(B)}"), words(r"\text{Ada  Lovelace}"), words("East"), words("xy")
        ('b', 'adalovelace', 'east', None)
    """
    text = _TEXT.fullmatch(answer)
    content = (text.group(1) if text else answer).strip().rstrip(".")
    if text or re.fullmatch(r"[A-Za-z]{3,}(?:\s+[A-Za-z]+)*|\([A-Z]\)", content):
        letters = re.sub(r"[\s()\-]", "", content)
        return letters.lower() if letters.isalpha() else None
    return None

r"""The characters of an answer in one notation: ASCII and LaTeX. Nothing is dropped but marks around it and spaces."""

import re
import unicodedata

MAX_CHARS = 4096
"""A longer answer is not read: no gold is that long."""
_SYMBOLS = {
    "λ": r"\lambda ", "Λ": r"\Lambda ",
    "−": "-", "–": "-", "—": "-", "‐": "-", "‑": "-", "－": "-", "×": r"\times ", "·": r"\cdot ", "⋅": r"\cdot ",
    "÷": r"\div ", "∞": r"\infty ", "∪": r"\cup ", "∩": r"\cap ", "±": r"\pm ", "∓": r"\mp ", "≤": r"\le ",
    "≥": r"\ge ", "≠": r"\ne ", "°": r"^\circ ", "√": r"\sqrt ", "∅": r"\emptyset ", "∈": r"\in ",
    "ℝ": r"\mathbb{R}", "、": ",", "。": ".", "，": ",", "；": ";", "：": ":", "（": "(", "）": ")", "⁄": "/",
    "∙": r"\cdot ", "⩽": r"\le ", "⩾": r"\ge ", "≡": r"\equiv ", "→": r"\to ", "′": "'", "’": "'", "″": "''",
    "≈": r"\approx ", "Ω": r"\Omega ", "µ": "u",
    "⟨": r"\langle ", "⟩": r"\rangle ", "…": r"\ldots ", "∖": r"\setminus ", "π": r"\pi ",
}  # fmt: skip
_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ", "0123456789+-n")
_SUBSCRIPTS = str.maketrans("₀₁₂₃₄₅₆₇₈₉", "0123456789")
_FOR_ALL = r",?\s*\\text\s*\{,?\s*for (?:all|any|every)(?: real| constant)?\s*\}|(?:\\q?quad\s*)?\\forall"
_UPRIGHT = r"\\(?:text|mathrm)\s*\{"
_RULES = tuple(
    (re.compile(pattern, re.DOTALL), replacement)
    for pattern, replacement in (
        (r"(?:\\text\s*)?\{([-+:=.])\}", r"\1"),
        (r"^\s*(?:=|\{\})|\{\}(?=\s*\^)|\\(?:blacksquare|square|checkmark)\s*$", ""),
        (r"\.\.\.", r"\\ldots "),
        (r"\\rm\s*\{", r"\\mathrm{"),
        (r"\\(?:Pr|mathbb\s*\{?P\}?|operatorname\s*\{Pr\})(?=\s*\()", "P"),
        (r"\\mathbb\s*\{?E\}?\s*\[([^][]*)\]", r"E(\1)"),
        (r"^([0-9][0-9.,]*)\s*\(([a-z ]+)\)$", r"\1\\text{ \2}"),
        (r"(?<=[0-9])'(?=[0-9]{3}(?:'[0-9]{3})*$)", ""),
        (r"\\mathcal\s*\{?O\}?", "O"),
        (r"\\colon(?![A-Za-z])", ":"),
        (r"\\not\s*=", r"\\ne "),
        (r"\^\s*\{\s*\\prime\s*\}|\^\s*\\prime(?![A-Za-z])", "'"),
        (r"\^\s*\{\s*\\prime\s*\\prime\s*\}", "''"),
        (r"(?<![A-Za-z\\])d([a-zA-Z])\s*/\s*d([a-zA-Z])(?![A-Za-z])", r"\\frac{d\1}{d\2}"),
        (r"\\(left|right)\.", ""),
        # A brace on the left of several lines.
        (
            r"(?:\\left\s*)?\\\{\s*\\begin\{(array|aligned|gathered|matrix)\}(?:\{[lcr]+\})?(.*?)\\end\{\1\}$",
            r"\\begin{cases}\2\\end{cases}",
        ),
        (r"\\begin\{(aligned|gathered|align\*?)\}(.*?)\\end\{\1\}", r"\\begin{cases}\2\\end{cases}"),
        (r"&\s*=", "="),
        (r"\\[hm]space\s*\{[^{}]*\}", " "),
        (r"^\s*(?:\\(?:therefore|implies|Rightarrow)(?![A-Za-z])|[∴⇒])", ""),
        (rf"(?:{_FOR_ALL})\s*[A-Za-z]\s*(?:\\in\s*\\mathbb\s*\{{?[RZNQC]\}}?\s*)?$", ""),
        (r"\^\s*\{?\s*\\text\s*\{\s*(?:st|nd|rd|th)\s*\}\s*\}?", ""),
        # Micro and ohm, alone or behind a prefix.
        (rf"{_UPRIGHT}[\s~]*\\mu\s*([A-Za-z])\s*\}}|\\mu\s*{_UPRIGHT}\s*([A-Za-z])\s*\}}", r"\\text{ u\1\2}"),
        (rf"{_UPRIGHT}[\s~]*([kM]?)(?:\\(?:Omega|ohm)\s*\}}|\}}\s*\\Omega)", r"\\text{ \1ohm}"),
        (r"^(?:Matrix|(?:np\.)?array)\((\[\[.*\]\])\)$", r"\1"),
        (r"(?<=[0-9])\s*(min|sec|deg)(?=\s*(?:$|[,;.)]))", r"\\text{ \1}"),
        (r"\b(?:np|math)\.(?=[a-z])", ""),
        # The label of a choice and its value.
        (r"^(?:\\text\s*\{\s*)?([A-J])[.)]\s*\}?\s+(?=\S)", r"(\1) "),
    )
)
_BOLD = r"\\(?:mathbf|boldsymbol|bm)\s*\{?\s*([A-Za-hl-z])(?![A-Za-z])\s*\}?"
_PRODUCT_OF_VECTORS = re.compile(rf"{_BOLD}(?:\^\s*(?:\w|\{{[^{{}}]*\}}))?\s*(?:\\(?:times|cdot)\b)?\s*{_BOLD}")
_LETTER_X = re.compile(r"(?<=[0-9])\s*[xX]\s*(?=10\s*\^)")
_ROOT = re.compile(r"√\s*(?:(\d+(?:\.\d+)?|[A-Za-z])|\(([^()]*)\))")


def clean(answer: str) -> str:
    """The answer in ASCII and LaTeX, with single spaces."""
    is_ascii = answer.isascii()
    if not is_ascii:
        answer = "".join(char for char in answer if unicodedata.category(char) != "Cf")
        answer = re.sub("[⁰¹²³⁴-⁹⁺⁻ⁿ]+", lambda found: f"^{{{found[0].translate(_SUPERSCRIPTS)}}}", answer)
        answer = re.sub("[₀-₉]+", lambda found: f"_{{{found[0].translate(_SUBSCRIPTS)}}}", answer)
        answer = re.sub(r"(?<=[0-9])\s*[µμ]([A-Za-z])(?![A-Za-z])", r"\\text{ u\1}", answer)
        answer = re.sub(r"(?<=[0-9])\s*([kM]?)Ω", r"\\text{ \1ohm}", answer)
    for pattern, replacement in _RULES:
        answer = pattern.sub(replacement, answer)
    if r"\b" in answer or r"\mathbf" in answer:
        answer = re.sub(r"\\(mathbf|boldsymbol|bm)\s*\{([A-Z])([A-Z])\}", r"\\\1{\2}\\\1{\3}", answer)
        if _PRODUCT_OF_VECTORS.search(answer):
            answer = re.sub(_BOLD, r"\\vec{\1}", answer)
    if not is_ascii:
        answer = _ROOT.sub(lambda found: rf"\sqrt{{{found[1] or found[2]}}}", answer)
        answer = "".join(map(_plain, answer))
    return _LETTER_X.sub(r"\\times ", " ".join(answer.replace("~", " ").split()))


def _plain(char: str) -> str:
    if char in _SYMBOLS:
        return _SYMBOLS[char]
    if greek := re.fullmatch(r"GREEK (SMALL|CAPITAL) LETTER (?:FINAL )?([A-Z]+)", unicodedata.name(char, "")):
        return rf"\{greek[2].capitalize() if greek[1] == 'CAPITAL' else greek[2].lower()} "
    if ord(char) < 128:
        return char
    if unicodedata.category(char) == "No":  # ½
        top, _, bottom = unicodedata.normalize("NFKC", char).partition("⁄")
        return rf"\frac{{{top}}}{{{bottom}}}" if bottom else char
    if (digit := unicodedata.decimal(char, None)) is not None:
        return str(digit)
    wide = unicodedata.normalize("NFKC", char)
    return wide if len(wide) == 1 and ord(wide) < 128 else (" " if char.isspace() else char)


_PUNCTUATION = re.compile(r"(?:(?<!\\)(?<!\.\.)[.,;:]|\\[.,;: ])$")
_WRAPPERS = (
    ("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"), ("**", "**"), ("`", "`"), ('"', '"'), ("“", "”"),
    ("*", "*"),
)  # fmt: skip


def unwrap(answer: str) -> str:
    r"""The answer without the marks around it in prose: dollars, `\( \)`, asterisks, a full stop or comma, spaces."""
    previous = None
    while answer != previous:
        previous = answer = answer.strip()
        if not answer.endswith(r"\right."):
            answer = _PUNCTUATION.sub("", answer).rstrip()
        answer = re.sub(r"(?<!\\)\\$", "", answer)  # of a space at the end
        for left, right in _WRAPPERS:
            inner = answer[len(left) : -len(right)]
            if answer == f"{left}{inner}{right}" and left not in inner and right not in inner and inner:
                answer = inner
    return answer

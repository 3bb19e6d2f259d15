"""Answers in words (names, choices, dates, times of day), compared by their letters and digits."""

import re

_TEXT = re.compile(r"\\text\s*\{([^{}]*)\}")
_WORDS = re.compile(r"[A-Za-z]{3,}(?:\s+[A-Za-z]+)*|\([A-Z]\)|[\u4e00-\u9fff]+")
_CAPITALISED = re.compile(r"[A-Z][a-z]{2}")
_DATE = re.compile(r"([A-Za-z]{3,})\.?\s*([0-9]{1,4})(?:st|nd|rd|th)?(?:\s*,?\s*([0-9]{4}))?", re.IGNORECASE)
_TIME = re.compile(r"([0-9]{1,2})(?:\s*:\s*([0-9]{2}))?\s*([ap])\.?\s?m\.?", re.IGNORECASE)


def words(answer: str) -> str | None:
    r"""The letters and digits of an answer in words; None where it may be mathematics.

    These are words, names and choices, a word followed by a number, as in a date, and a time with a.m. or p.m.
    """
    content = _TEXT.sub(r" \1 ", answer).strip().rstrip(".")
    if time := _TIME.fullmatch(content):
        return f"{int(time[1])}:{time[2] or '00'}{time[3].lower()}m"
    is_text = content != answer.strip().rstrip(".")
    # Letters and digits that are not marked as text may be a product: abc 2.
    if (date := _DATE.fullmatch(content)) and (is_text or _CAPITALISED.match(content)):
        return "".join(filter(None, date.groups())).lower()
    if _TEXT.fullmatch(answer) or _WORDS.fullmatch(content):
        letters = re.sub(r"[\s()\-]", "", content)
        return letters.lower() if letters.isalpha() else None
    return None


def list_in_text(answer: str) -> list[str]:
    r"""The parts of a list inside `\text{…}`; empty where there is none.

    Example:
        >>> list_in_text(r"\text{B, E, and G}"), list_in_text(r"\text{black and white}"), list_in_text(r"\text{B}")
        (['B', 'E', 'G'], ['black', 'white'], [])
    """
    text = _TEXT.fullmatch(answer)
    parts = re.split(r"\s*[,;]\s*(?:and|or)\s+|\s*[,;]\s*|\s+(?:and|or)\s+", text[1].strip()) if text else []
    return parts if len(parts) > 1 and all(parts) else []

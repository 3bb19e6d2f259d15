"""Answer comparison by text and exact numbers; questions that need mathematics go to a callback."""

import itertools
import re
from collections.abc import Callable, Iterable
from functools import lru_cache

from apo_lightning.rewards.exact import read_number, same_number
from apo_lightning.rewards.names import read_names
from apo_lightning.rewards.normalise import without_unit
from apo_lightning.rewards.structure import Compound, take_apart, without_group
from apo_lightning.rewards.wording import words
from apo_lightning.types import VerdictStatus

Ask = Callable[[str, str], VerdictStatus | None]
"""Decides whether two expressions are equal; None while that is not known."""

_MAX_UNMATCHED_PARTS = 4
"""Most unordered parts that text does not match: `ask` is called for all pairs, up to 16; with more, once for all."""
_MAX_PARTS = 64
"""Most unordered parts that are matched by text, which takes time quadratic in them."""
_MAX_DEPTH = 4
"""Most nested brackets that are taken apart; no gold has more, and deeper ones are asked about whole."""

_MAX_CHARS = 512
"""A longer answer [characters] is asked about whole: taking it apart here would take time that no deadline bounds."""

_IN_BASE = re.compile(
    r"\(?((?=[A-F]*[0-9])[0-9A-F]+)\)?_\s*(?:\{\s*(?:\\text\{)?\s*([0-9]+|[a-z]+)\s*\}?\s*\}|([0-9]))"
)
_MULTIPLE = re.compile(r"(.*[0-9}])\s*[A-Za-df-hj-z]", re.DOTALL)
_VARIABLE = re.compile(r"(?<![A-Za-z\\])[a-df-hj-z](?![A-Za-z])")
"""A single lower-case letter that is not a constant."""
_BASES = {"two": "2", "three": "3", "four": "4", "five": "5", "six": "6", "seven": "7", "eight": "8", "nine": "9"}


def compare_answers(gold: str, answer: str, ask: Ask, depth: int = 0) -> VerdictStatus | None:
    r"""The verdict on an answer; None while it depends on a question that `ask` has not answered.

    Decided here: identical texts, rational numbers, words, numerals in a base. Taken apart here: points, intervals,
    sets, lists, unions, matrices and "x =", whose parts are compared one by one. Never raises, and asks at most a few
    dozen questions for any answer.

    Gold and answer are as `normalise` returns them; `ask` is called for each pair of expressions that needs
    mathematics; `depth` counts the brackets around them.

    Example:
        >>> unknown = lambda gold, answer: None
        >>> compare_answers("(1, 0.5]", r"(1, \frac{1}{2}]", unknown), compare_answers("(3,4)", r"\{3,4\}", unknown)
        ('correct', 'incorrect')
        >>> compare_answers(r"\sqrt{8}", r"2\sqrt{2}", unknown) is None
        True
    """
    if _same_text(gold, answer):
        return "correct"
    gold_number, number = read_number(gold), read_number(answer)
    if gold_number and number:
        return "correct" if same_number(gold_number, number) else "incorrect"
    if len(answer) > _MAX_CHARS:
        return ask(gold, answer)
    gold, answer, others, is_same_name = _without_names(gold, answer)
    if others:
        # Each side of a chain must be the gold answer: x = 2 + 3 = 5 is 5, and n + 1 = 13 is not 13.
        sides = (answer, *others)
        has_variable = any(_VARIABLE.search(side) and not read_number(side, lone_units=True) for side in sides)
        if not is_same_name or (read_number(gold) and has_variable):
            return "incorrect"
        return _all(compare_answers(gold, side, ask, depth + 1) for side in sides)
    decided = _same_atoms(gold, answer)
    if decided is not None:
        return "correct" if decided and is_same_name else "incorrect"
    # In a number, commas separate thousands, not parts.
    gold_parts, answer_parts = (None if read_number(side) else take_apart(side) for side in (gold, answer))
    if depth < _MAX_DEPTH and (gold_parts or answer_parts):
        structured = _compare_structures(gold, gold_parts, answer, answer_parts, ask, depth)
        if structured != "unparsed":
            return structured
    gold, answer = without_group(without_unit(gold)), without_group(without_unit(answer))
    return "correct" if _same_text(gold, answer) else ask(gold, answer)


@lru_cache(maxsize=4096)  # the completions of a group share their gold
def num_parts(answer: str) -> int:
    r"""Number of parts of a normalised answer that is a list or a set; 1 for any other, also a point or an interval.

    Example:
        >>> [num_parts(answer) for answer in ("k=45, n=2", r"1 \pm \sqrt{2}", "(2, 3)", "58,500", r"x \in \{1,2,3\}")]
        [2, 2, 1, 1, 3]
    """
    value = read_names(answer).value
    compound = None if read_number(value) else take_apart(value)
    return len(compound.parts) if compound and compound.kind in ("list", "set") else 1


def expressions(gold: str, depth: int = 0) -> list[str]:
    r"""The expressions in a gold answer that `compare_answers` may ask about.

    Example:
        >>> expressions(r"\{1 \pm \sqrt{5}, -2\}")
        ['1 + \\sqrt{5}', '1 - \\sqrt{5}']
    """
    named = read_names(gold)
    gold = gold if named.others else named.value
    if read_number(gold) or words(gold):
        return []
    compound = take_apart(gold) if depth < _MAX_DEPTH else None
    if compound is None:
        return [without_group(without_unit(gold))]
    return [leaf for part in compound.parts for leaf in expressions(part, depth + 1)]


def _same_text(gold: str, answer: str) -> bool:
    # In mathematics mode spaces mean nothing.
    return "".join(gold.split()) == "".join(answer.split())


def _without_names(gold: str, answer: str) -> tuple[str, str, tuple[str, ...], bool]:
    """(gold, answer, the answer's other sides, same name?), without "x =" or "x ∈"; no name is the same as any."""
    gold_named, named = read_names(gold), read_names(answer)
    if gold_named.others or (named.others and gold_named.names and not named.names):
        return gold, answer, (), True
    value = gold_named.value
    is_same = not (gold_named.names and named.names) or not set(gold_named.names).isdisjoint(named.names)
    if not is_same and not (read_number(value) and read_number(named.value)):
        # y = 2x and x = y/2 may be the same equation.
        return gold, answer, (), True
    return value, named.value, named.others, is_same


def _same_atoms(gold: str, answer: str) -> bool | None:
    """Whether two numbers, words or numerals are the same; None where either is something else."""
    gold_words = words(gold)
    answer_words = words(answer) if gold_words or len(gold) == 1 else None
    if gold_words and answer_words:
        return gold_words == answer_words
    gold_number = read_number(gold)
    # Next to a gold answer that is a plain number, a letter after the number is a unit: it cannot be a variable.
    number = read_number(answer, lone_units=gold_number is not None)
    if gold_number and number:
        return same_number(gold_number, number)
    gold_numeral, numeral = _numeral(gold), _numeral(answer)
    if gold_numeral and numeral:
        return gold_numeral == numeral
    # If a problem asks for a base, the digits are the answer, with or without the base, but not the base-ten value.
    if (gold_numeral and number) or (gold_number and numeral):
        return (gold_numeral or (gold, ""))[0] == (numeral or (answer, ""))[0]
    if (gold_number and _is_multiple_of_a_variable(answer)) or (number and _is_multiple_of_a_variable(gold)):
        return False
    # A choice may be given without its wrapping: C for \text{(C)}.
    one, other = gold_words or gold.lower(), answer_words or answer.lower()
    return one == other if (gold_words or answer_words) and len(one) == len(other) == 1 else None


def _numeral(answer: str) -> tuple[str, str] | None:
    """Digits and base of a numeral like 204_5."""
    match = _IN_BASE.fullmatch(answer)
    if match is None:
        return None
    digits, long_base, short_base = match.groups()
    base = long_base or short_base
    return digits.upper(), _BASES.get(base, base)


def _is_multiple_of_a_variable(answer: str) -> bool:
    match = _MULTIPLE.fullmatch(answer)
    number = read_number(match.group(1)) if match else None
    return number is not None and number.value != 0


def _compare_structures(
    gold: str, gold_parts: Compound | None, answer: str, answer_parts: Compound | None, ask: Ask, depth: int
) -> VerdictStatus | None:
    """The verdict from comparing parts; `unparsed` where parts do not help and the whole must be asked about."""
    if gold_parts is None or answer_parts is None:
        single, parts = (gold, answer_parts) if gold_parts is None else (answer, gold_parts)
        if parts is not None and parts.kind in ("set", "list"):
            # {5} and ±0 are one element, in braces or written as several.
            gold_parts = gold_parts or Compound("list", (gold,))
            answer_parts = answer_parts or Compound("list", (answer,))
        else:
            return "incorrect" if read_number(single) else "unparsed"
    if not _may_be_the_same(gold_parts, answer_parts):
        return "incorrect"
    if gold_parts.is_ordered or answer_parts.is_ordered:
        pairs = zip(gold_parts.parts, answer_parts.parts, strict=True)
        return _all(compare_answers(one, other, ask, depth + 1) for one, other in pairs)
    return _compare_unordered(gold_parts.parts, answer_parts.parts, ask, depth)


def _may_be_the_same(gold: Compound, answer: Compound) -> bool:
    kinds = {gold.kind, answer.kind}
    # A list without brackets may be a tuple or a set; with brackets the kind is given.
    if len(kinds) == 2 and not ("list" in kinds and kinds & {"tuple", "set"}):
        return False
    if gold.is_ordered or answer.is_ordered:
        return gold.shape == answer.shape and len(gold.parts) == len(answer.parts)
    return True


def _compare_unordered(gold: tuple[str, ...], answer: tuple[str, ...], ask: Ask, depth: int) -> VerdictStatus | None:
    """Whether each part equals some part of the other answer; repetitions do not count."""
    if len(gold) > _MAX_PARTS or len(answer) > _MAX_PARTS:
        return "unparsed"
    matched_golds, matched_answers = set[str](), set[str]()
    for one, other in itertools.product(gold, answer):
        if compare_answers(one, other, lambda *_: None, depth + 1) == "correct":
            matched_golds.add(one)
            matched_answers.add(other)
    open_golds = [one for one in dict.fromkeys(gold) if one not in matched_golds]
    open_answers = [other for other in dict.fromkeys(answer) if other not in matched_answers]
    if len(open_golds) > _MAX_UNMATCHED_PARTS or len(open_answers) > _MAX_UNMATCHED_PARTS:
        return "incorrect" if len(gold) != len(answer) else "unparsed"
    # A part may repeat a matched one in another notation: then only matched parts are left to compare it with.
    needed = [[(one, other) for other in open_answers or answer] for one in open_golds]
    needed += [[(one, other) for one in open_golds or gold] for other in open_answers]
    return _all(_any(compare_answers(*pair, ask, depth + 1) for pair in pairs) for pairs in needed)


# The deciding status comes first. After a question that cost a worker no more are asked, as each may cost another.
_ALL: tuple[VerdictStatus | None, ...] = ("incorrect", "timeout", "error", None, "unparsed", "correct")
_ANY: tuple[VerdictStatus | None, ...] = ("correct", "timeout", "error", None, "incorrect", "unparsed")


def _all(statuses: Iterable[VerdictStatus | None]) -> VerdictStatus | None:
    """The verdict where all parts must be correct; `correct` for no parts."""
    return min([*statuses, "correct"], key=_ALL.index)


def _any(statuses: Iterable[VerdictStatus | None]) -> VerdictStatus | None:
    """The verdict where one correct alternative is enough."""
    return min([*statuses, "unparsed"], key=_ANY.index)

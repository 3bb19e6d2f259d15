r"""Is equality of answers a relation? Looks for answers that are right for two golds that differ, and for asymmetries.

    python -m benchmarks.accuracy.relation math500.jsonl minerva_math.jsonl --minutes 60

The files hold JSON lines with an `answer` each. A family is one gold, some of its rewrites by rule, right and wrong,
mutations of both, pairs of gold and answer from elsewhere, and answers that say little. Each is judged as an answer to
each. Conventions that an answer may use and a gold may not, such as units, excuse a violation, and these are counted
apart: `--excused` prints them too.
"""

import argparse
import itertools
import random
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.accuracy.answer_rewrites import equivalent, read_gold, read_golds, wrong
from math_answers import equal
from math_answers.nodes import Node, UnreadError
from math_answers.reader import read
from math_answers.tables import LONE_UNITS

# Answers that say little, or nearly what a gold says.
ANSWERS = [
    "[1,0]", "(5,1]", "5<x<1", "|x|<0", r"[1,2]\cap[3,4]", "x<1 or x>2", r"\{\}", "0:0", "00:00", "0:0:0", "(0,0)",
    "0", "1", "-1", "n", "n+0", r"\lceil n/9\rceil-1", r"\lfloor(n+1)/9\rfloor", r"\lfloor n/9\rfloor+1", r"n\bmod 100",
    r"\gcd(n,720720)", r"\min(n,100)", r"\gcd(n,32)", r"\frac{n!}{n!}", r"\infty", r"\frac00", r"0^0", r"1^\infty",
    r"\ln(x^2)/2", r"\frac12\ln x^2", r"x\cdot\frac{x}{x}", r"\sqrt{x}^2", r"(-1)^{-n}", r"e^{i\pi n}", "x+1",
    r"\sum_{k=0}^{30}\frac1{k!}", r"\sum_{k=1}^{70}\frac1{k2^k}", r"\zeta(100)", "2.718281828", "3.14159265",
    r"(2)\frac12", r"(-1)\frac34", "42_8", "1010_2", r"\approx 42", "2(1)", "2.5", "1.41421356", r"\pm 1", "1, 2",
    "x=1", "0.693147", "[]", r"\text{the and C}", r"\text{a and C}", "C, B", r"\text{ABC}", "a", r"\text{all}",
    r"\text{none}", "x", "?",
]  # fmt: skip
CONVENTIONS = frozenset(["quantity", "numeral", "choice", "clock", "words"])
"""What an answer may say more or less than its gold."""
_TOKEN = re.compile(r"\\[A-Za-z]+|\\.|[0-9]+|[^\s]|\s+")
_PIECES = [
    "-", "+", "/", "^", "^2", "_2", "!", "=", "<", ",", "0", "1", "2", "3", "10", "x", "n", "e", "i", "(", ")", "[",
    "]", "{", "}", "|", ".", "'", r"\pi ", r"\sqrt ", r"\frac12", r"\infty ", r"\pm ", r"\cdot ", r"\cup ", r"\le ",
    r"\ln ", r"\sin ", r"^\circ ", r"\{", r"\}", r"\lfloor ", r"\rfloor ", r"\bmod ", r"\ldots ", r"\overline{3}",
]  # fmt: skip


@dataclass(frozen=True)
class Violation:
    """Texts that break the relation."""

    kind: str
    texts: tuple[str, ...]

    def is_excused(self) -> bool:
        """Whether one of the texts has something that an answer may leave out or add."""
        nodes = [read(text, None) for text in self.texts]
        are_lists = {node.head in ("list", "or list") for node in nodes}
        # Of an approximate gold the tree does not tell.
        return len(are_lists) > 1 or any(map(has_convention, nodes)) or any("approx" in text for text in self.texts)


def violations(
    golds: Sequence[str], answers: Sequence[str], accepts: Callable[[str, str], bool]
) -> Iterator[Violation]:
    """Golds that are right in one direction alone, and answers that are right for two golds which differ."""
    right = {(gold, text): accepts(gold, text) for gold in golds for text in dict.fromkeys([*golds, *answers])}
    for one, other in itertools.combinations(golds, 2):
        if right[one, other] != right[other, one]:
            yield Violation("one direction", (one, other) if right[one, other] else (other, one))
        if not right[one, other] and not right[other, one]:
            found = (text for text in dict.fromkeys(answers) if right[one, text] and right[other, text])
            yield from (Violation("right for two", (one, other, text)) for text in found)


def has_convention(node: Node) -> bool:
    """Whether a unit, a base, a label, a name or a rounded decimal stands in it."""
    is_named = node.head == "relation" and bool({"=", "in", "approx"} & {*node.args[0]})
    is_unit = node.head in ("multiply", "divide") and any(
        part.head == "symbol" and part.args[0] in LONE_UNITS for part in node.args
    )
    is_rounded = node.head == "number" and node.args[1] is not None
    parts = (part for part in node.args if isinstance(part, Node))
    return node.head in CONVENTIONS or is_named or is_unit or is_rounded or any(map(has_convention, parts))


def mutated(text: str, draw: random.Random) -> str:
    """The text with one token left out, exchanged, repeated or added."""
    parts = _TOKEN.findall(text)
    place = draw.randrange(len(parts))
    change = draw.choice(["leave out", "exchange", "add", "swap"])
    if change == "swap" and len(parts) > 1:
        other = draw.randrange(len(parts))
        parts[place], parts[other] = parts[other], parts[place]
    else:
        new = [] if change == "leave out" else [draw.choice(_PIECES)]
        parts[place : place + (change != "add")] = new
    return "".join(parts)


def is_read(text: str) -> bool:
    try:
        return read(text, None) is not None
    except UnreadError:
        return False


def family(golds: Sequence[str], elsewhere: Sequence[tuple[str, str]], draw: random.Random) -> list[str]:
    """Texts that may be confused with one another, all of which are read."""
    gold = draw.choice(golds)
    others = [read_gold(text) for text in draw.sample(golds, 2)]
    right = [text for _, text in equivalent(read_gold(gold))]
    changed = [text for _, text in wrong(read_gold(gold), others)]
    near = [*draw.sample(right, min(2, len(right))), *draw.sample(changed, min(2, len(changed)))]
    near += [mutated(draw.choice([gold, *near]), draw) for _ in range(8)]
    near += [mutated(text, draw) for text in near[-4:] if text]
    pairs = itertools.chain.from_iterable(draw.sample(elsewhere, min(2, len(elsewhere))))
    found = [gold, *near, *pairs, *draw.sample(ANSWERS, 2)]
    return [text for text in dict.fromkeys(found) if text.strip() and is_read(text)]


def main() -> None:
    parser = argparse.ArgumentParser(description="Violations of the relation that equality of answers is.")
    parser.add_argument("files", type=Path, nargs="+", help="JSON lines with an answer each")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--excused", action="store_true", help="print those by conventions too")
    arguments = parser.parse_args()
    draw = random.Random(arguments.seed)
    # Whole numbers are alike: the others are met as often.
    golds = sorted({gold for path in arguments.files for gold in read_golds(path) if gold.strip()})
    groups = [[g for g in golds if g.isdecimal()], [g for g in golds if not g.isdecimal()]]
    elsewhere: list[tuple[str, str]] = []
    counts: Counter[str] = Counter()
    seen: set[Violation] = set()
    end = time.monotonic() + 60 * arguments.minutes
    while time.monotonic() < end:
        texts = family(draw.choices(groups, weights=[1, 9 if groups[1] else 0])[0] or golds, elsewhere, draw)
        elsewhere = [*elsewhere[-200:], *((texts[0], text) for text in texts[1:3])]
        counts["triples"] += len(texts) * (len(texts) - 1) * (len(texts) - 2) // 2
        for violation in violations(texts, texts, equal):
            excused = "excused: " if violation.is_excused() else ""
            if violation not in seen and (not excused or arguments.excused):
                print(f"- {excused}{violation.kind}: {' | '.join(f'`{text}`' for text in violation.texts)}", flush=True)
            counts[f"{excused}{violation.kind}"] += violation not in seen
            seen.add(violation)
    per_minute = counts.pop("triples") / arguments.minutes
    print(f"\n{per_minute:,.0f} triples a minute, seed {arguments.seed}\n\n| found | |\n|:--|--:|")
    for kind, count in sorted(counts.items()):
        print(f"| {kind} | {count:,} |")


if __name__ == "__main__":
    main()

r"""Where do the verifier and math-verify disagree? Markdown: kinds of answers, and one disagreement of each.

    python -m benchmarks.accuracy.differential math500.jsonl minerva_math.jsonl --answers 40

Needs math-verify (`pip install '.[benchmarks]'`); takes about a minute for 500 answers. The files hold JSON lines with
an `answer` each. Answers are made by rule, so that it is known which are right, and by changing one token of a gold or
of such an answer, where it is not: of these all disagreements are printed, to be read.
"""

import argparse
import importlib
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.accuracy.answer_rewrites import Rewrite, read_golds, rewrites
from benchmarks.accuracy.relation import mutated
from math_answers import equal, extract

UNKNOWN = "one token changed"


@dataclass(frozen=True)
class Row:
    """An answer, and who accepts it."""

    rewrite: Rewrite
    ours: bool
    plain: bool


def plain(rewrite: Rewrite) -> bool:
    """Math-verify as trainers commonly call it: the gold answer in a box, the completion as it is, in one process."""
    other: Any = importlib.import_module("math_verify")  # no dependency of the project
    latex, box = other.LatexExtractionConfig(), other.LatexExtractionConfig(boxed_match_priority=0)
    gold = other.parse(rf"\boxed{{{rewrite.gold}}}", [latex])
    return bool(other.verify(gold, other.parse(rewrite.completion, [box, other.ExprExtractionConfig()])))


def ours(rewrite: Rewrite) -> bool:
    answer = extract(rewrite.completion, rewrite.gold)
    return answer is not None and equal(rewrite.gold, answer)


def near_misses(made: list[Rewrite], size: int, draw: random.Random) -> Iterator[Rewrite]:
    """Answers with one token changed, of which it is not known whether they are right."""
    for rewrite in draw.sample(made, min(size, len(made))):
        inside = extract(rewrite.completion) or rewrite.gold
        yield Rewrite(rewrite.gold, UNKNOWN, rf"Thus \boxed{{{mutated(inside, draw)}}}.", False)


def main() -> None:
    parser = argparse.ArgumentParser(description="Disagreements with math-verify, as Markdown.")
    parser.add_argument("files", type=Path, nargs="+", help="JSON lines with an answer each")
    parser.add_argument("--answers", type=int, default=40, help="of each kind")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    draw = random.Random(arguments.seed)
    made = [rewrite for path in arguments.files for rewrite in rewrites(read_golds(path))]
    kinds: dict[tuple[str, bool], list[Rewrite]] = {}
    for rewrite in made:
        kinds.setdefault((rewrite.kind, rewrite.is_equal), []).append(rewrite)
    chosen = {kind: draw.sample(found, min(arguments.answers, len(found))) for kind, found in kinds.items()}
    chosen[UNKNOWN, False] = list(near_misses(made, 10 * arguments.answers, draw))
    table = ["| answers | | both agree | ours alone is right | math-verify alone is right |", "|:--|:--|--:|--:|--:|"]
    for (kind, is_equal), found in chosen.items():
        rows = [Row(rewrite, ours(rewrite), plain(rewrite)) for rewrite in found]
        apart = [row for row in rows if row.ours != row.plain]
        against = [row for row in apart if row.ours != is_equal]
        for row in apart if kind == UNKNOWN else [*apart[:1], *against]:
            who = "accepted by ours" if row.ours else "accepted by math-verify"
            answer = row.rewrite.completion.splitlines()[-1]
            print(f"- {kind}, {who}: `{row.rewrite.gold}` — `{answer}`", flush=True)
        label = "to be read" if kind == UNKNOWN else "right" if is_equal else "wrong"
        counts = ("", len(apart)) if kind == UNKNOWN else (len(apart) - len(against), len(against))
        table.append(f"| {kind} | {label} | {len(rows) - len(apart)} | {counts[0]} | {counts[1]} |")
    print("\n" + "\n".join(table))


if __name__ == "__main__":
    main()

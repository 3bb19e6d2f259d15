"""Completions of real models against the verdicts that were published with them.

    python -m benchmarks.accuracy.stored example_model_solutions.jsonl

The file is that of GSM8K's authors (github.com/openai/grade-school-math, `grade_school_math/data`): 1,319 problems,
four models each, and whether a completion is right. One there ends with `A: 18`; the verifier reads `Answer: 18`.
"""

import argparse
import json
import re
from collections import Counter
from pathlib import Path

from math_answers import explain, extract

LAST_LINE = re.compile(r"\nA: (?=[^\n]*\s*$)")
"""What their completions write before the answer."""


def main() -> None:
    """Print how many verdicts agree, and each completion of which they do not."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    rows = [json.loads(line) for line in parser.parse_args().file.read_text(encoding="utf-8").splitlines()]
    counts = Counter[tuple[str, str]]()
    for row in rows:
        gold = row.pop("ground_truth").rpartition("A: ")[2].strip()
        for model, made in row.items():
            if model == "question":
                continue
            answer = extract(LAST_LINE.sub("\nAnswer: ", made["solution"]), gold)
            found = explain(gold, answer).status if answer is not None else "unparsed"
            theirs = "correct" if made["is_correct"] else "incorrect"
            counts[theirs, found] += 1
            if (theirs == "correct") != (found == "correct"):
                print(f"{theirs:9}  {found:9}  gold {gold!r}  {model}: {made['solution'].splitlines()[-1]!r}")
    for (theirs, found), count in sorted(counts.items()):
        print(f"{count:5}  published {theirs}, here {found}")


if __name__ == "__main__":
    main()

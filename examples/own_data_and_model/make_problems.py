"""Writes problems.jsonl: three digits, and the same digits in ascending order."""

import itertools
import json
from pathlib import Path

with Path("problems.jsonl").open("w") as file:
    for digits in itertools.product("123456789", repeat=3):
        file.write(json.dumps({"problem": "".join(digits), "answer": "".join(sorted(digits))}) + "\n")

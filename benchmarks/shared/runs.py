"""What benchmarks that run `train.py` have in common: problems, and a reward for random models."""

import json
from pathlib import Path


def write_stub(path: Path) -> Path:
    """Problems in the layout of `data=dapo17k`: a bare answer to each."""
    sums = [(a, b) for a in range(2, 10) for b in range(2, 10)]
    lines = [json.dumps({"problem": f"What is {a} + {b}?", "answer": str(a + b)}) for a, b in sums]
    path.write_text("\n".join(lines) + "\n")
    return path


def even_start(completions: list[str] | list[list[dict[str, str]]], **columns: object) -> list[float]:
    """A reward that a random model gets about half of the time."""
    texts = [completion if isinstance(completion, str) else completion[0]["content"] for completion in completions]
    return [float(ord(text[0]) % 2 == 0) if text else 0.0 for text in texts]

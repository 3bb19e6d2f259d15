"""The file with one line per evaluation point of a run."""

import json
from collections.abc import Mapping
from pathlib import Path


def record_point(path: Path, step: int, metrics: Mapping[str, float]) -> None:
    """Add the line of a step; lines from this step on, which a resumed run repeats, are replaced."""
    earlier = [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []
    lines = [row for row in earlier if row["step"] < step] + [{"step": step, **metrics}]
    path.write_text("".join(json.dumps(row) + "\n" for row in lines))

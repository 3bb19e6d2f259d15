"""The published tables of a laboratory, `runs.csv.gz` and `curves.csv.gz`: rows that are there are not run again."""

import gzip
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from apo_lab.editions.protocol import BLOCKS, ENDPOINTS
from apo_lightning.common.files import write_atomically

KEY = ("world", "method", "variant", "seed")
POINT = ("pass@1", "pass@8", "pass@64", "alive", "strategy_entropy")
ENTRANCES = ("entered", "entered@64", "forced_pass@1", "locked", "opened", "forgotten", "learnt")
"""What `Entrances` and `Change` say of a point of a path, against its first one."""
COST = ("tokens_sampled", "tokens_trained", "seconds")
HASHES = ("config_sha256", "weights_sha256", "base_sha256", "commit", "registration")
RUN_COLUMNS = (
    *(*KEY, "stage", "steps", "level", "base_pass@1", "base_pass@8", "base_pass@64", *POINT),
    *("reached", "area", "area_8", "passage", "entered", "locked_share"),
    *(f"{endpoint}_without_{block}" for endpoint in ENDPOINTS for block in range(BLOCKS)),
    *(*COST, *HASHES),
)
CURVE_COLUMNS = (*KEY, "step", "base_weight", "temperature", *POINT, *ENTRANCES, *COST)
TEXT = ("world", "method", "variant", "stage", *HASHES)
DIGITS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Rows for `runs.csv.gz` and `curves.csv.gz`."""

    runs: list[dict[str, Any]]
    curves: list[dict[str, Any]]


def read_runs(folder: Path, registration: str) -> pd.DataFrame:
    """The rows of `runs.csv.gz` of one registration; none where there is no such file."""
    rows = _read(folder / "runs.csv.gz", RUN_COLUMNS)
    return rows.query("registration == @registration")


def append(folder: Path, rows: Rows) -> None:
    """Add the rows of a finished run to both tables; the curves first, so that a row of `runs.csv.gz` has its curve.

    A curve belongs to its key alone, so a folder keeps the curves of the latest registration of a run.
    """
    for name, own, columns, key in (
        ("curves.csv.gz", rows.curves, CURVE_COLUMNS, [*KEY]),
        ("runs.csv.gz", rows.runs, RUN_COLUMNS, [*KEY, "registration"]),
    ):
        path = folder / name
        new = pd.DataFrame(own, columns=pd.Index(columns))
        found = _read(path, columns)
        # A laboratory that was killed between the two tables writes the curve again.
        is_replaced = found.set_index(key).index.isin(new.set_index(key).index)
        table = pd.concat([found[~is_replaced], new]) if len(found) else new
        content = table.to_csv(index=False, float_format=f"%.{DIGITS}g").encode()
        write_atomically(path, gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)


def _read(path: Path, columns: Sequence[str]) -> pd.DataFrame:
    if not path.is_file():
        return pd.DataFrame(columns=pd.Index(columns))
    # A text may be empty, and "None" is no missing value; an empty number is one.
    numbers = {name: [""] for name in columns if name not in TEXT}
    return pd.read_csv(path, dtype=dict.fromkeys(TEXT, str), keep_default_na=False, na_values=numbers)

"""Write `docs/lab/across/report/`: what the published tables of several editions say together. In seconds, no training.

python -m benchmarks.laboratory
python -m benchmarks.laboratory --output FOLDER
"""

import argparse
from pathlib import Path

from apo_report.page import Report, write_report
from benchmarks.laboratory.figure import figure
from benchmarks.laboratory.rows import LAB, STAGE, edition
from benchmarks.laboratory.tables import tables

DATE = "2026-11-29"
"""The page never reads a clock."""


def report() -> Report:
    num_runs = sum(edition(name).num_done(stage) for name in STAGE for stage in edition(name).protocol.stages)
    return Report(
        title="The laboratory, across editions", date=DATE, num_runs=num_runs, tables=tables(), figures=[figure()]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=LAB / "across" / "report")
    print(write_report(report(), parser.parse_args().output))


if __name__ == "__main__":
    main()

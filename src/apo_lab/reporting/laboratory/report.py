"""The published tables of an edition → tables, figures and one page."""

from pathlib import Path

from apo_lab.editions.protocol import Protocol
from apo_lab.reporting.laboratory.answers import answers_table
from apo_lab.reporting.laboratory.comparisons import answered
from apo_lab.reporting.laboratory.figures import laboratory_figures
from apo_lab.reporting.laboratory.level_tables import level_tables
from apo_lab.reporting.laboratory.long_runs import STAGE as LONG
from apo_lab.reporting.laboratory.long_runs import long_table
from apo_lab.reporting.laboratory.reading import MAIN, read_edition
from apo_lab.reporting.laboratory.tables import (
    arms_table,
    compared_stages,
    cost_table,
    prediction_table,
    progress_table,
    tuning_table,
    verdicts_table,
)
from apo_lab.reporting.page import Report, write_report


def laboratory_page(tables: Path, protocol: Protocol, output: Path, *, date: str, registration: str) -> Path:
    """Write `laboratory_report` with its tables and figures into `output`; returns the path of `report.html`."""
    return write_report(laboratory_report(tables, protocol, date=date, registration=registration), output)


def laboratory_report(tables: Path, protocol: Protocol, *, date: str, registration: str) -> Report:
    """The content of the page, as far as there are runs.

    Args:
        tables: folder with `runs.csv` and `curves.csv`.
        protocol: of the edition.
        date: as it is printed.
        registration: of the edition; rows of another are left out, and counted on the page.

    Raises:
        ConfigError: a file, a column or all rows of the registration are missing, or two rows have the same key.
    """
    edition = read_edition(tables, protocol, registration)
    questions, stages = answered(edition), compared_stages(edition)
    by_stage = [
        table
        for stage in stages
        for table in (
            long_table(edition) if stage.name == LONG else arms_table(edition, stage),
            verdicts_table(stage, questions),
        )
    ]
    cost = [cost_table(edition)] if MAIN in {stage.name for stage in stages} else []
    long = [table for table in by_stage if table.name == "lab_long"]
    made = [
        progress_table(edition),
        answers_table(edition, questions, long),
        *by_stage,
        *level_tables(edition),
        *cost,
        tuning_table(edition),
        prediction_table(edition, questions),
    ]
    return Report(
        title=f"The laboratory, edition {Path(protocol.name).stem}",
        date=date,
        num_runs=sum(edition.num_done(stage) for stage in protocol.stages),
        tables=[table for table in made if table.rows],
        figures=laboratory_figures(edition),
    )

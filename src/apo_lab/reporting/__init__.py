"""The laboratory's page: the published tables of an edition and its protocol → tables, figures and one page."""

from pathlib import Path

from apo_lab.editions.protocol import Protocol
from apo_lab.reporting.comparisons import answered
from apo_lab.reporting.decodings import decodings_tables
from apo_lab.reporting.figures import laboratory_figures
from apo_lab.reporting.levels import groups, level_tables
from apo_lab.reporting.lost import layers_tables, lost_tables
from apo_lab.reporting.reading import read_edition
from apo_lab.reporting.shortfall import shortfall_table
from apo_lab.reporting.tables import (
    LONG,
    arms_table,
    compared_stages,
    long_table,
    prediction_table,
    progress_table,
    tuning_table,
    verdicts_table,
)
from apo_report.page import Report, write_report


def laboratory_page(tables: Path, protocol: Protocol, output: Path, *, date: str, registration: str) -> Path:
    """Write `laboratory_report` with its tables and figures into `output`; returns the path of `report.html`."""
    return write_report(laboratory_report(tables, protocol, date=date, registration=registration), output)


def laboratory_report(tables: Path, protocol: Protocol, *, date: str, registration: str) -> Report:
    """The content of the page, as far as there are runs; rows of another registration are left out, and counted.

    Raises:
        ConfigError: a file, a column or all rows of the registration are missing, or two rows have the same key.
    """
    edition = read_edition(tables, protocol, registration)
    questions, stages = answered(edition), compared_stages(edition)
    made = [progress_table(edition)]
    for stage in stages:
        made.append(long_table(edition) if stage.name == LONG else arms_table(edition, stage))
        made.append(verdicts_table(stage, questions))
    made += [*decodings_tables(edition), *level_tables(edition), shortfall_table(groups(edition))]
    made += [*lost_tables(edition), *layers_tables(edition), tuning_table(edition)]
    made.append(prediction_table(edition, questions))
    return Report(
        title=f"The laboratory, edition {Path(protocol.name).stem}",
        date=date,
        num_runs=sum(edition.num_done(stage) for stage in protocol.stages),
        tables=[table for table in made if table.rows],
        figures=laboratory_figures(edition),
    )

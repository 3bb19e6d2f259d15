"""docs/lab.md states the registration, the stages and the predictions of the edition that is registered."""

import pandas as pd
import pytest

from apo_lab.editions.protocol import load_protocol
from apo_lab.laboratory.jobs import progress
from apo_lab.laboratory.published import RUN_COLUMNS
from apo_lab.laboratory.registration import registration
from apo_lightning.run.choices import composed
from composing import ROOT

PAGE = (ROOT / "docs" / "lab.md").read_text()
FULL = load_protocol("full")


@pytest.mark.parametrize("name", ["full", "countdown_rates", "language"])
def test_the_page_has_the_registrations(name):
    """A change of protocol, decision code or tasks needs a new registration: no row made before it is used then."""
    assert f"| `{name}` | `{registration(load_protocol(name))}` |" in PAGE


def test_the_page_counts_the_runs_of_each_stage():
    for stage in progress(composed("lab", ["output_dir=outputs/lab"]), FULL, pd.DataFrame(columns=list(RUN_COLUMNS))):
        assert f"| {stage.name} | {stage.num_runs} |" in PAGE


def test_the_page_lists_every_prediction():
    for row in FULL.predictions:
        before, after = row.pair
        verdict = f"{row.expected} {'to' if row.expected == 'equivalent' else 'than'}"
        assert f"| {row.statement} | {row.source} | `{row.question}` | `{after}` {verdict} `{before}` |" in PAGE

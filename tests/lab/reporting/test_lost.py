"""Where pass@64 is lost, from simulated tables in which GRPO locks what APO forgets: table, figures, verdicts."""

from dataclasses import replace

import numpy as np
import pytest

from apo_lab.editions.protocol import load_protocol
from apo_lab.reporting.comparisons import answered, prediction_outcome
from apo_lab.reporting.figures import laboratory_figures
from apo_lab.reporting.lost import PARTS, layers_tables, lost_tables
from apo_lab.reporting.reading import read_edition
from lab_tables import POINTS, write_tables

BRANCHES = """
margin: 0.02
base_weights: [0.5]
part_weights: [1.0, 0.5]
worlds:
  hall: {family: locks, level: 0.3, base: [], run: [experiment=lab/locks, data.num_validation=16]}
  cellar: {family: locks, level: 0.3, base: [], run: [experiment=lab/locks, data.num_validation=16]}
tuning: {}
rates: {}
tuned: {}
stages:
  halls:
    average: true
    averaged_by_part: [grpo]
    seeds: {hall: [1, 2, 3], cellar: [4, 5, 6]}
    arms: {grpo: [algo=grpo], apo: [algo=apo]}
questions:
  locked: {text: "Locked?", stage: halls, worlds: [hall, cellar], endpoint: locked_share, pairs: [[half, grpo], [half, apo]]}
  entered: {text: "Entered?", stage: halls, worlds: [hall, cellar], endpoint: entered, pairs: [[grpo, apo]]}
  layers: {text: "Layers?", stage: halls, worlds: [hall, cellar], endpoint: passage, pairs: [[grpo+average, grpo+average_last]]}
predictions:
  - {question: locked, pair: [half, grpo], expected: higher, source: paper, statement: "It is locked."}
  - {question: locked, pair: [half, apo], expected: higher, source: paper, statement: "It is locked."}
"""  # noqa: E501


@pytest.fixture(scope="module")
def edition(tmp_path_factory):
    folder = tmp_path_factory.mktemp("branches")
    (folder / "small.yaml").write_text(BRANCHES)
    protocol = load_protocol(str(folder / "small.yaml"))
    return read_edition(write_tables(folder / "tables", protocol, {"grpo": 0.4, "apo": 0.2}, "a1"), protocol, "a1")


@pytest.fixture(autouse=True)
def levels_between_evaluation_points_count(monkeypatch):
    monkeypatch.setattr("apo_lab.reporting.levels.WIDEST_GAP", 1.0)


def test_a_share_is_compared_with_one_half_and_predictions_rest_on_it(edition):
    questions = {each.question.key: each for each in answered(edition)}
    grpo, apo = questions["locked"].comparisons
    assert (grpo.label, grpo.outcome, apo.outcome) == ("GRPO − one half", "higher", "lower")
    assert 0.5 + grpo.contrast.difference.mean == pytest.approx(0.75, abs=0.03)
    assert grpo.last is None
    held = [prediction_outcome(each, [*questions.values()])[0] for each in edition.protocol.predictions]
    assert held == ["held", "failed"]
    assert questions["entered"].comparisons[0].last is not None


def test_the_parts_of_the_change_are_means_over_runs_at_the_level(edition):
    (table,) = lost_tables(edition)
    titles = [column.title for column in table.columns]
    rows = {row.cells[0].text: dict(zip(titles, row.cells, strict=True)) for row in table.rows}
    assert [*rows] == [
        *("GRPO", "APO", "GRPO, averaged", "GRPO, first third averaged", "GRPO, middle third averaged"),
        *("GRPO, last third averaged", "GRPO, embeddings and head averaged", "APO, averaged"),
    ]
    runs = edition.runs[edition.runs.method == "grpo"]
    assert rows["GRPO"]["pass@64 [%]"].value == pytest.approx(100 * np.mean(runs.passage), rel=1e-6)
    base = 100 * runs["base_pass@64"].mean()
    for name, more, less in (("GRPO", "locked", "forgotten"), ("APO", "forgotten", "locked")):
        part = {title.split()[-1]: cell.value for title, cell in rows[name].items() if title.startswith("Change")}
        assert rows[name]["pass@64 [%]"].value - base == pytest.approx(sum(part.values()), abs=1e-6)
        assert part[more] == pytest.approx(3 * part[less], rel=0.2)
    assert rows["GRPO"]["Runs"].text == "6 of 6"


def test_there_is_a_figure_of_the_parts_and_one_of_the_layers(edition):
    figures = {figure.name: figure for figure in laboratory_figures(edition)}
    assert {"lab_lost_locks", "lab_layers_locks"} <= set(figures)
    assert not {"lab_locked", "lab_entered", "lab_layers"} & set(figures)
    lines = figures["lab_layers_locks"].figure.axes[0].get_lines()
    names = [name for name, _ in PARTS.values()]
    assert names == [line.get_label() for line in lines if line.get_label() in names]


def test_a_part_is_compared_with_the_average_of_all_weights_at_its_own_pass1(edition, monkeypatch):
    weight = 1 - 6 / (POINTS - 1)
    monkeypatch.setattr("apo_lab.reporting.lost.SHOWN_WEIGHTS", (weight, 1.0))
    curves = edition.curves.copy()
    is_middle = curves.method == "grpo+average_middle"
    curves.loc[is_middle, "pass@64"] -= 0.01  # simulated parts lie on the path of averages of all weights
    (table,) = layers_tables(replace(edition, curves=curves))
    parts = [name for name, _ in PARTS.values()][1:]
    shown = [f"{weight:g}", "1"]
    rows = {(row.cells[0].text, row.cells[1].text): row.cells for row in table.rows}
    assert [*rows][1:] == [(part, each) for part in parts for each in shown]
    at_weight = curves[is_middle & np.isclose(curves.base_weight, weight)]
    assert len(at_weight) == 6
    cells = rows["middle third", shown[0]]
    assert cells[2].value == pytest.approx(100 * at_weight["pass@1"].mean())
    assert cells[-1].value == pytest.approx(-1, abs=0.1)
    assert rows["last third", shown[0]][-1].value == pytest.approx(0, abs=0.1)

"""The laboratory's page from simulated tables of a small edition: what each sentence rests on, and what is missing."""

import re
import shutil
from pathlib import Path

import pandas as pd
import pytest

from apo_lab.editions.protocol import load_protocol
from apo_lab.reporting import laboratory_page
from apo_lab.reporting.comparisons import answered
from apo_lab.reporting.figures import laboratory_figures
from apo_lab.reporting.levels import level_tables
from apo_lab.reporting.reading import ArmRuns, read_edition
from apo_lab.reporting.tables import (
    arms_table,
    long_run,
    long_table,
    prediction_table,
    progress_table,
    tuning_table,
    verdicts_table,
)
from apo_lightning.errors import ConfigError
from lab_tables import write_tables

SMALL = """
margin: 0.02
base_weights: [0.5]
worlds:
  hall: {family: locks, level: 0.3, base: [], run: [experiment=lab/locks, data.num_validation=16]}
  cellar: {family: locks, level: 0.3, base: [], run: [experiment=lab/locks, data.num_validation=16]}
tuning: {locks: hall}
rates: {locks: [0.1]}
tuned:
  grpo: {overrides: [algo=grpo], key: algo.clip, values: [0.2, 0.3]}
  apo: {overrides: [algo=apo], key: algo.loss.pull_coef, values: [0.1, 0.2]}
stages:
  tuning: {methods: all, seeds: {hall: [101, 102]}}
  main: {methods: all, average: true, seeds: {hall: [1, 2, 3], cellar: [4, 5, 6]}}
  candidates: {seeds: {hall: [1, 2, 3], cellar: [4, 5, 6]}, arms: {strong: [algo=apo], weak: [algo=grpo]}}
  long: {methods: [grpo], seeds: {hall: [7], cellar: [8]}}
questions:
  best: {text: "Is APO above GRPO?", stage: main, worlds: [hall, cellar], pairs: [[grpo, apo]]}
  average: {text: "Averages?", stage: main, worlds: [hall, cellar], pairs: [[grpo, grpo+average], [apo, apo+average]]}
  candidates:
    text: "Is one above all?"
    stage: candidates
    worlds: [hall, cellar]
    pairs: [[grpo, strong], [apo, strong], [grpo, weak], [apo, weak]]
predictions:
  - {question: best, pair: [grpo, apo], expected: higher, source: paper, statement: "APO is above GRPO."}
  - {question: candidates, pair: [grpo, weak], expected: higher, source: ours, statement: "Weak is above GRPO."}
"""
LOSSES = {"grpo": 0.4, "apo": 0.2, "strong": 0.1, "weak": 0.6}
OURS = "a1"


@pytest.fixture(autouse=True)
def levels_between_evaluation_points_count(monkeypatch):
    """The simulated runs have twelve evaluation points; see `test_level_tables` for what is dense enough."""
    monkeypatch.setattr("apo_lab.reporting.levels.WIDEST_GAP", 1.0)


@pytest.fixture(scope="module")
def protocol(tmp_path_factory):
    path = tmp_path_factory.mktemp("protocol") / "small.yaml"
    path.write_text(SMALL)
    return load_protocol(str(path))


@pytest.fixture(scope="module")
def tables(protocol, tmp_path_factory):
    return write_tables(tmp_path_factory.mktemp("tables"), protocol, LOSSES, OURS)


@pytest.fixture(scope="module")
def edition(protocol, tables):
    return read_edition(tables, protocol, OURS)


def made(edition):
    """Every table of the page by name."""
    questions, stages = answered(edition), edition.protocol.stages
    found = [table for stage in stages[1:] for table in (arms_table(edition, stage), verdicts_table(stage, questions))]
    found += [long_table(edition), *level_tables(edition)]
    found += [progress_table(edition), tuning_table(edition), prediction_table(edition, questions)]
    return {table.name: table for table in found}


def texts(table, section=""):
    """Rows of a section of this name or key: column → text."""
    names = [column.title for column in table.columns]
    rows = [row for row in table.rows if not section or row.section == section or row.section.startswith(f"{section}:")]
    return [dict(zip(names, (cell.text for cell in row.cells), strict=True)) for row in rows]


def test_arms_are_means_over_seeds_then_worlds_of_the_chosen_settings(protocol, tables, tmp_path):
    def change(runs):
        return runs[~((runs.stage == "main") & runs.seed.isin([5, 6]))]

    edition = read_edition(spoiled(tables, tmp_path, change), protocol, OURS)
    rows = edition.runs[(edition.runs.stage == "main") & (edition.runs.method == "apo")]
    row = next(row for row in texts(made(edition)["lab_main_arms"]) if row["Arm"] == "APO")
    assert (row["Settings"], row["Runs"]) == ("lr=0.1 pull_coef=0.1", "4 of 6")
    hall, cellar = (rows[rows.world == world]["pass@1"].to_list() for world in ("hall", "cellar"))
    assert (len(hall), len(cellar)) == (3, 1)
    assert float(row["Last step pass@1"]) == pytest.approx(100 * (sum(hall) / 3 + cellar[0]) / 2, abs=0.0051)
    assert row["Reached L*"] == f"{(rows.reached >= rows.level).sum()} of 4"


def test_the_last_step_of_a_policy_has_its_interval_and_an_average_has_none(edition):
    table = made(edition)["lab_main_arms"]
    place = [column.title for column in table.columns].index("Last step pass@64")
    cells = {row.cells[0].text: row.cells[place] for row in table.rows}
    low, high = cells["APO"].interval
    assert low < cells["APO"].value < high
    runs = edition.runs[(edition.runs.stage == "main") & (edition.runs.method == "apo")]
    assert 100 * runs["pass@64"].min() < cells["APO"].value < 100 * runs["pass@64"].max()
    assert cells["APO, averaged"].text == "–"
    rows = {row["Comparison"]: row["Last step [points]"] for row in texts(made(edition)["lab_main_verdicts"])}
    assert float(rows["APO − GRPO"]) > 0
    assert rows["APO, averaged − APO"] == "–"


def test_the_chosen_configuration_is_marked_and_predictions_are_held_or_failed_by_the_verdict(edition):
    assert [row["Choice"] for row in texts(made(edition)["lab_tuning"])] == ["chosen", "", "chosen", ""]
    rows = texts(made(edition)["lab_predictions"])
    assert [(row["Outcome"], row["Rests on"]) for row in rows] == [
        ("held", "lab_main_verdicts: best: APO − GRPO"),
        ("failed", "lab_candidates_verdicts: candidates: weak − GRPO"),
    ]


def test_a_long_run_is_measured_after_first_passage_and_its_slope_at_its_end():
    # Passage of 0.3 at step 20: the 0.5 at step 10 does not count. Over steps 30 to 50 pass@1 rises by 0.02 in 20.
    curve = {"pass@1": [0.1, 0.2, 0.3, 0.4, 0.41, 0.42], "pass@64": [0.9, 0.5, 0.8, 0.6, 0.7, 0.65]}
    entropy = {"strategy_entropy": [2.0, 0.1, 1.0, 0.8, 0.9, 0.95]}
    points = pd.DataFrame({**curve, **entropy, "step": range(0, 60, 10), "level": 0.3})
    run = long_run(points)
    assert [*run.values()] == [0.6, 0.65, 0.8, 0.95, 0.42, pytest.approx(0.1)]
    assert long_run(points.assign(level=0.5))["lowest pass@64"] == 0.5


def test_the_path_of_an_arm_ends_where_its_shortest_run_ends():
    key = {"world": "hall", "method": "grpo", "variant": ""}
    runs = pd.DataFrame([{**key, "seed": seed, "level": 0.5} for seed in (1, 2)])
    zeros = dict.fromkeys(("pass@8", "alive", "strategy_entropy", "tokens_sampled", "tokens_trained", "seconds"), 0.0)
    curves = pd.DataFrame(
        [
            {**key, **zeros, "seed": seed, "step": 2 * place, "pass@1": one, "pass@64": 1 - one}
            for seed, ones in ((1, (0.1, 0.2, 0.9)), (2, (0.1, 0.4)))
            for place, one in enumerate(ones)
        ]
    )
    path = ArmRuns(name="grpo", runs=runs, curves=curves, num_planned=2).path
    assert path["pass@1"].tolist() == pytest.approx([0.1, 0.3])
    assert path["step"].tolist() == [0, 2]


def test_figures_draw_the_mean_paths_and_the_level(edition):
    figures = {figure.name: figure for figure in laboratory_figures(edition)}
    assert list(figures) == ["lab_levels_locks", "lab_lost_locks", "lab_best", "lab_average", "lab_candidates"]
    (axes,) = figures["lab_best"].figure.axes
    path = edition.arm(edition.protocol.stage("main"), ("hall", "cellar"), "apo").path
    every_second = path["pass@64"].to_numpy()[[0, *range(1, 12, 2)]]  # of 12 points, the base model and the last policy
    drawn = [line.get_ydata() for line in axes.lines if len(line.get_xdata()) == len(every_second)]
    assert any(y == pytest.approx(every_second) for y in drawn)
    assert [0.3, 0.3] in [list(line.get_xdata()) for line in axes.lines]
    labels = {text.get_text() for text in figures["lab_best"].figure.legends[0].get_texts()}
    assert labels == {"Base", "GRPO", "APO"}
    assert [axes.get_title(loc="left") for axes in figures["lab_candidates"].figure.axes] == ["strong", "weak"]


def test_rows_of_another_registration_are_left_out_and_counted_on_the_page(protocol, tables, tmp_path):
    shutil.copytree(tables, tmp_path / "tables")
    runs = pd.read_csv(tables / "runs.csv.gz")
    others = runs[runs.stage == "long"].assign(registration="b2", **{"pass@64": 0.0})
    pd.concat([runs, others]).to_csv(tmp_path / "tables" / "runs.csv.gz", index=False)
    page = laboratory_page(tmp_path / "tables", protocol, tmp_path / "report", date="2026-01-02", registration=OURS)
    text = page.read_text()
    assert "2 rows of another registration were left out." in text
    num_runs = (~runs.method.str.endswith("+average")).sum()
    assert f"Read: training runs {num_runs}," in text
    assert pd.read_csv(page.parent / "tables/lab_long.csv")["pass@64 last"].min() > 0


def test_a_verdict_waits_for_all_its_runs_and_only_gains_by_those_of_others(protocol, edition, tables, tmp_path):
    runs = pd.read_csv(tables / "runs.csv.gz")
    is_left_out = (runs.method == "weak") & (runs.seed == 6)
    runs[~is_left_out].to_csv(tmp_path / "runs.csv.gz", index=False)
    shutil.copy(tables / "curves.csv.gz", tmp_path)
    partial = read_edition(tmp_path, protocol, OURS)
    rows = texts(made(partial)["lab_candidates_verdicts"])
    assert [row["Verdict"] for row in rows] == ["higher", "higher", "11 of 12 runs", "11 of 12 runs"]
    early, late = ({c.label: c.verdict for c in answered(each)[2].comparisons} for each in (partial, edition))
    for label in ("strong − GRPO", "strong − APO"):
        assert early[label].adjusted_p_value >= late[label].adjusted_p_value


def test_a_question_at_one_level_leaves_out_the_runs_that_do_not_reach_it_and_needs_three_in_each_world(
    protocol, tables, tmp_path
):
    text = SMALL.replace("worlds: [hall, cellar], pairs: [[grpo, apo]]", "worlds: [hall], pairs: [[grpo, apo]]")
    path = tmp_path / "passage.yaml"
    path.write_text(
        text.replace('"Is APO above GRPO?", stage: main', '"Is APO above GRPO?", endpoint: passage, stage: main')
    )
    asks = load_protocol(str(path))
    runs = pd.read_csv(tables / "runs.csv.gz")
    # The area's values stand for those at L*: a run without one has not reached it.
    values = {name.replace("area", "passage"): runs[name] for name in runs if re.match(r"area(_without_\d+)?$", name)}
    with_passage = runs.assign(**values)

    def verdict(num_apo, folder):
        is_dropped = (runs.method == "apo") & (runs.stage == "main") & (runs.world == "hall") & (runs.seed > num_apo)
        table = with_passage.copy()
        table.loc[is_dropped, "passage"] = None
        spoiled(tables, tmp_path / folder, lambda _: table)
        edition = read_edition(tmp_path / folder, asks, OURS)
        (comparison,) = answered(edition)[0].comparisons
        table = verdicts_table(next(stage for stage in asks.stages if stage.name == "main"), answered(edition))
        (cell,) = [row.cells[4] for row in table.rows if row.section.startswith("best")]
        assert (cell.text, cell.bold) == (comparison.outcome, comparison.outcome == "higher")
        return comparison

    assert verdict(3, "all").outcome == "higher"
    two = verdict(2, "two")
    assert (two.outcome, two.contrast.min_seeds) == ("too few seeds", 2)
    none = verdict(0, "none")
    assert (none.outcome, none.contrast) == ("too few seeds", None)


@pytest.mark.parametrize(("changes", "verdict"), [({"stages": ["tuning"]}, None), ({"seeds": 1}, "4 of 12 runs")])
def test_an_unfinished_edition_has_a_page_that_says_what_is_missing(protocol, tmp_path, changes, verdict):
    tables = write_tables(tmp_path / "tables", protocol, LOSSES, OURS, **changes)
    if verdict:  # one seed of tuning chooses nothing, so the runs of all are taken
        other = write_tables(tmp_path / "all", protocol, LOSSES, OURS)
        runs = pd.read_csv(other / "runs.csv.gz")
        first = runs.groupby(["stage", "world", "method"])["seed"].transform("min")
        runs[(runs.seed == first) | (runs.stage == "tuning")].to_csv(tables / "runs.csv.gz", index=False)
        shutil.copy(other / "curves.csv.gz", tables)
    page = laboratory_page(tables, protocol, tmp_path / "report", date="2026-01-02", registration=OURS)
    found = pd.read_csv(page.parent / "tables/lab_runs.csv").set_index("Stage")
    assert found.loc["tuning", "Finished"] == found.loc["tuning", "Planned"] == 8
    assert found.loc["main", "Planned"] == 12
    assert found.loc["main", "Finished"] == (4 if verdict else 0)
    names = {path.stem for path in (page.parent / "tables").iterdir()}
    assert "lab_tuning" in names
    if verdict:
        assert set(pd.read_csv(page.parent / "tables/lab_main_verdicts.csv")["Verdict"]) == {verdict}


def spoiled(tables: Path, folder: Path, change) -> Path:
    shutil.copytree(tables, folder, dirs_exist_ok=True)
    change(pd.read_csv(tables / "runs.csv.gz")).to_csv(folder / "runs.csv.gz", index=False)
    return folder


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda runs: runs.drop(columns="area"), "has no column 'area'"),
        (lambda runs: runs.assign(registration="b2"), "rows and none of registration a1"),
        (lambda runs: pd.concat([runs, runs[:1]]), "has two rows of hall grpo lr=0.1 clip=0.2 101: keep one"),
        (lambda runs: runs.assign(area="much"), "column 'area' is not numeric"),
    ],
)
def test_tables_that_cannot_be_read_are_refused_in_one_line(protocol, tables, tmp_path, change, message):
    with pytest.raises(ConfigError, match=re.escape(message)) as error:
        read_edition(spoiled(tables, tmp_path, change), protocol, OURS)
    assert "\n" not in str(error.value)
    with pytest.raises(ConfigError, match=r"runs\.csv\.gz is missing: `apo lab` writes it"):
        read_edition(tmp_path / "nowhere", protocol, OURS)


def test_two_settings_of_one_arm_are_refused(protocol, tables, tmp_path):
    def change(runs):
        runs.loc[(runs.stage == "main") & (runs.method == "apo") & (runs.seed == 1), "variant"] = "lr=9"
        return runs

    edition = read_edition(spoiled(tables, tmp_path, change), protocol, OURS)
    with pytest.raises(ConfigError, match=r"apo in hall, stage main, has runs of lr=9, lr=0\.1 pull_coef=0\.1"):
        answered(edition)


def test_runs_with_seeds_that_were_not_registered_do_not_count(protocol, edition, tables, tmp_path):
    runs = pd.read_csv(tables / "runs.csv.gz")
    runs = pd.concat([runs, runs[(runs.stage == "main") & (runs.seed == 1)].assign(seed=77, area=0.0)])
    shutil.copytree(tables, tmp_path, dirs_exist_ok=True)
    runs.to_csv(tmp_path / "runs.csv.gz", index=False)
    assert made(read_edition(tmp_path, protocol, OURS))["lab_main_verdicts"] == made(edition)["lab_main_verdicts"]

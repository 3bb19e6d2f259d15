"""What is told level by level: of runs made by hand, and of the published tables."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from apo_lab.editions.protocol import Stage, load_protocol
from apo_lab.reporting import levels
from apo_lab.reporting.figures import laboratory_figures, worlds_figure
from apo_lab.reporting.levels import (
    Group,
    differences_table,
    drawn_groups,
    groups,
    level_tables,
    means_table,
    worlds_table,
)
from apo_lab.reporting.reading import ArmRuns, Edition
from apo_lab.reporting.shortfall import shortfall_table
from apo_report.style import styles_of
from composing import ROOT

HAND = Stage(name="main", seeds={})
LEVELS = {"one": 0.30, "two": 0.20}
"""Where grpo's runs in each world lose their pass@64, all of it between two evaluation points."""
ONES = [0.10, 0.125, 0.15, 0.175, 0.20, 0.225, 0.25, 0.275, 0.30, 0.325, 0.35]


def rows_of(method, world, seed, many):
    key = {"world": world, "method": method, "variant": "", "seed": seed}
    curve = [
        {**key, "step": 2 * place, "base_weight": None, "pass@1": one, "pass@64": value, "pass@8": value / 2}
        for place, (one, value) in enumerate(zip(ONES, many, strict=False))
    ]
    return {**key, "level": 0.3, "reached": curve[-1]["pass@1"], "base_pass@1": 0.10}, curve


@pytest.fixture(scope="module")
def group():
    """Two methods, two worlds, three seeds: grpo falls from 0.9 to 0.5, apo keeps 0.9; one run of apo stops at 0.20."""
    runs, curves = [], []
    for world, fall in LEVELS.items():
        for seed in range(3):
            noise = 0.01 * seed
            for method, low in (("grpo", 0.5), ("apo", 0.9)):
                many = [0.9 - noise if one < fall else low - noise for one in ONES]
                stops = 5 if (method, world, seed) == ("apo", "two", 2) else len(ONES)
                run, curve = rows_of(method, world, seed, many[:stops])
                runs.append(run)
                curves += curve
    table, points = pd.DataFrame(runs), pd.DataFrame(curves).assign(strategy_entropy=1.5)
    arms = {
        name: ArmRuns(name=name, runs=table[table.method == name], curves=points[points.method == name], num_planned=6)
        for name in ("grpo", "apo")
    }
    return Group(name="hand", stage=HAND, worlds=("one", "two"), level=0.3, arms=arms)


def cells(table, section, first):
    (row,) = [row for row in table.rows if row.section == section and row.cells[0].text == first]
    return [cell.text for cell in row.cells[1:]]


def test_the_levels_are_fixed_distances_from_l_star_above_the_base_that_half_of_the_runs_reach(group):
    assert group.levels.tolist() == pytest.approx([0.19, 0.24, 0.27, 0.285, 0.295, 0.30, 0.31, 0.33])


def test_levels_far_from_evaluation_points_are_left_out_and_with_most_of_them_the_group(group):
    assert group.is_dense

    def of_every(nth):
        arms = {n: replace(arm, curves=arm.curves[arm.curves.step % (2 * nth) == 0]) for n, arm in group.arms.items()}
        return Group(name="hand", stage=HAND, worlds=group.worlds, level=0.3, arms=arms)

    coarse = of_every(2)  # 0.05 of pass@1 between two points
    assert not len(coarse.grid)
    assert not coarse.is_dense


def test_a_mean_has_its_error_and_the_number_of_runs_that_reach_the_level(group):
    found = cells(means_table(group), "pass@64 where pass@1 first reaches the level", "APO")
    # Six values 0.9, 0.89, 0.88 twice: their sd is 0.0089; without the run that stops at 0.20, five.
    assert found[0] == "89.0 ± 0.4 (6)"
    assert found[-1] == "89.2 ± 0.4 (5)"


def test_a_mean_of_some_worlds_alone_is_marked(group):
    # In world `two` the run that is left out is the only one: no run of that world reaches 0.3.
    of_apo = group.arms["apo"]
    runs, curves = (table[(table.world == "one") | (table.seed == 2)] for table in (of_apo.runs, of_apo.curves))
    alone = ArmRuns(name="apo", runs=runs, curves=curves, num_planned=6)
    some = Group(name="hand", stage=HAND, worlds=group.worlds, level=0.3, arms={**group.arms, "apo": alone})
    marks = [cell.marked for row in means_table(some).rows if row.cells[0].text == "APO" for cell in row.cells[1:]]
    assert marks[:2] == [False, True]
    assert not any(cell.marked for row in means_table(group).rows for cell in row.cells)


def test_a_difference_has_a_band_and_each_world_its_own_with_the_runs_of_both(group):
    table = differences_table(group)
    # At 0.24 world `two` is 40 points apart and world `one` is not, so 20 on average.
    assert cells(table, "pass@64", "APO − GRPO")[1].startswith("+20")
    assert cells(table, "pass@64, one", "APO − GRPO")[1] == "+0.0 (3, 3)"
    assert cells(table, "pass@64, two", "APO − GRPO")[1] == "+40.5 (3, 2)"
    *_, above, below = cells(table, "pass@64", "APO − GRPO")
    # World `two` falls between 17.5 and 20 %, world `one` between 27.5 and 30 %; then the difference is 0.4 in both.
    assert above == "17.8 to 34.8 (+40.3 at 30.0)"
    assert below == "–"


def test_every_arm_is_compared_with_grpo_where_it_is_not_the_first_too(group):
    other = replace(group, arms={name: group.arms[name] for name in ("apo", "grpo")})
    assert other.pairs == group.pairs == [("grpo", "apo")]


def test_the_distance_below_the_highest_is_told_up_to_the_level_that_all_runs_of_an_arm_reach(group):
    rows = [[cell.text + cell.mark for cell in row.cells] for row in shortfall_table([group]).rows]
    # At 0.1975 GRPO has fallen by 0.9·0.4 in world `two` alone; from 0.20 on, one run of APO is missing there.
    assert rows[0] == ["GRPO", "18.0 at 19.8 (APO)", "18.0", "40.0 at 30.0 (APO)", "36.0 at 19.8 (APO)"]
    assert rows[1] == ["APO", "0.0†", "–", "0.0", "0.0†"]


def test_the_distance_at_l_star_itself_counts_where_the_grid_steps_over_it(group):
    # Grid points are 29.75 and 30 %. GRPO falls from 0.9 at 27.5 to 0.5 at 30 % in world `one`: by 0.384 at 29.9 %.
    (row,) = [row for row in shortfall_table([replace(group, level=0.299)]).rows if row.cells[0].text == "GRPO"]
    assert row.cells[3].text == "38.4 at 29.9 (APO)"


def test_the_figure_has_a_panel_a_world(group):
    worlds = {name: load_protocol("full").worlds["countdown_4"] for name in LEVELS}
    figure = worlds_figure(group, worlds, styles_of(["Base", "GRPO", "APO"]))
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["one", "two"]


@pytest.fixture(scope="module")
def full():
    protocol = load_protocol("full")
    runs, curves = (pd.read_csv(ROOT / "docs" / "lab" / "full" / f"{name}.csv.gz") for name in ("runs", "curves"))
    return Edition(protocol=protocol, runs=runs.fillna({"variant": ""}), curves=curves, num_refused=0)


def test_the_published_tables_say_that_grpo_collapses_at_equal_pass_at_1_in_three_of_four_instances(full):
    group = groups(full)[0]
    table = differences_table(group)
    at_34_5 = [column.title for column in table.columns].index("pass@1 of 34.5") - 1
    found = {w: cells(table, f"pass@64, locks_{w}", "APO − GRPO")[at_34_5].split()[0] for w in "abcd"}
    assert found == {"a": "+18.1", "b": "+23.0", "c": "-3.1", "d": "+25.9"}
    means = means_table(group)
    section = "pass@64 where pass@1 first reaches the level"
    assert cells(means, section, "GRPO")[at_34_5] == "72.5 ± 3.8 (12)"
    assert cells(means, section, "APO")[at_34_5] == "88.3 ± 1.1 (10)"


def test_the_cliff_of_grpo_is_at_four_fifths_to_nine_tenths_of_the_best_single_strategy(full):
    table = worlds_table(full, groups(full)[:1])
    shares = [row.cells[4].value for row in table.rows if row.cells[0].text == "GRPO"]
    assert len(shares) == 4
    assert all(0.84 < share < 0.90 for share in shares)


def test_worlds_with_few_evaluation_points_have_cliffs_and_no_levels(full, monkeypatch):
    # The runs of a language model go from 28 to 46 % between two evaluation points.
    monkeypatch.setattr(levels, "WIDEST_GAP", -1.0)
    sparse = replace(full, num_refused=0)  # another edition for the caches
    assert drawn_groups(sparse) == []
    assert [table.name for table in level_tables(sparse)] == ["lab_worlds"]
    assert level_tables(sparse)[0].rows


def test_what_begins_below_does_not_fall(full):
    narrow = replace(full, curves=full.curves.assign(strategy_entropy=0.5))
    rows = worlds_table(narrow, groups(narrow)[:1]).rows
    assert {cell.text for row in rows for cell in row.cells[1:3]} == {"–"}
    assert any(row.cells[3].value for row in rows)


def test_runs_that_end_at_a_pass_at_1_are_drawn_each_by_itself_where_their_points_lie_far_apart(full, monkeypatch):
    def names(edition):
        return {figure.name for figure in laboratory_figures(edition)}

    ends_early = (full.curves["world"] == "locks_a") & (full.curves["seed"] == full.runs["seed"].min())
    uneven = replace(full, curves=full.curves[~ends_early | (full.curves["step"] < 20)])
    assert full.ends_at_a_step(full.protocol.stage("main"))
    assert not uneven.ends_at_a_step(uneven.protocol.stage("main"))
    assert {"lab_best_locks", "lab_levels_locks"} <= names(full)
    assert names(uneven) - {"lab_runs_main"} < names(full)
    assert not {"lab_best_locks", "lab_runs_main"} & names(uneven)
    monkeypatch.setattr(levels, "WIDEST_GAP", -1.0)
    sparse = replace(uneven, num_refused=0)
    assert "lab_runs_main" in names(sparse)
    assert "lab_runs_main" not in names(replace(full, num_refused=0))
    passage, _ = level_tables(sparse)
    grpo = next(row for row in passage.rows if row.cells[0].text == "GRPO")
    (group,) = [each for each in levels.compared_groups(sparse) if each.name == "locks"]
    at_l_star = []
    for _, points in group.arms["grpo"].by_run():
        ones, many = points["pass@1"].to_list(), points["pass@64"].to_list()
        after = next((place for place, one in enumerate(ones) if one >= group.level), None)
        if after is not None:
            at_l_star.append(np.interp(group.level, ones[after - 1 : after + 1], many[after - 1 : after + 1]))
    assert passage.name == "lab_passage"
    assert grpo.cells[1].value == pytest.approx(100 * np.mean(at_l_star))
    assert grpo.cells[1].text.endswith(f"({len(at_l_star)})")

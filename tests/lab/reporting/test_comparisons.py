"""Every two methods: golden numbers from scipy, Holm over the whole table, seeds for one point."""

import math
from dataclasses import replace

import pytest
from scipy import stats

from apo_lab.reporting.tables.comparisons import FEW_SEEDS, comparison_table
from apo_lab.statistics.multiplicity import holm, seeds_needed
from report_cases import measured

SOLVED = {"Base": (0, 1, 2, 0), "GRPO": (2, 2, 2, 1), "APO": (1, 2, 2, 2)}


def item(method: str, solved, seed: str = ""):
    return replace(measured(method, (0.5, 0.5), solved=solved, seed=seed), weights=f"{method} {seed}")


def cells(table):
    names = [column.title for column in table.columns]
    return [dict(zip(names, row.cells, strict=True)) for row in table.rows]


def test_single_checkpoints_are_compared_by_the_paired_t_test_and_corrected_for_their_number():
    table = comparison_table([item(method, solved) for method, solved in SOLVED.items()])
    rows = cells(table)
    assert [(r["From"].text, r["To"].text, r["Metric"].text) for r in rows] == [
        (a, b, metric)
        for a, b in (("Base", "GRPO"), ("Base", "APO"), ("GRPO", "APO"))
        for metric in ("Pass@1", "Pass@2")
    ]
    # Of two samples: Pass@1 is c/2, Pass@2 whether c > 0.
    shares = {
        "Pass@1": {name: [c / 2 for c in solved] for name, solved in SOLVED.items()},
        "Pass@2": {name: [float(c > 0) for c in solved] for name, solved in SOLVED.items()},
    }
    expected = [
        stats.ttest_rel(shares[row["Metric"].text][row["To"].text], shares[row["Metric"].text][row["From"].text]).pvalue
        for row in rows
    ]
    # GRPO and APO solve the same problems: no spread, no p-value, and not among those that are corrected for.
    assert math.isnan(expected[-1])
    assert [row["p"].value for row in rows] == [pytest.approx(p) for p in expected[:-1]] + [None]
    assert [row["p, Holm"].value for row in rows[:-1]] == pytest.approx(holm(expected[:-1]))
    assert all(row["Seeds for one point"].text == "–" for row in rows)
    assert "corrected for the 5 comparisons" in table.notes[0]


def test_seeds_for_one_point_follow_from_the_spread_between_seeds():
    table = comparison_table(
        [
            *(item("GRPO", solved, seed) for seed, solved in (("1", (1, 1, 1, 1)), ("2", (2, 1, 1, 1)))),
            *(item("APO", solved, seed) for seed, solved in (("1", (2, 2, 1, 1)), ("2", (2, 2, 2, 1)))),
        ]
    )
    first = cells(table)[0]
    # Pass@1 of the seeds: 0.5 and 0.625, 0.75 and 0.875, each with the variance 0.0625²·2.
    assert first["Seeds"].text == "2, 2"
    assert first["Change"].text == "+25.00"
    assert first["Seeds for one point"].value == seeds_needed(math.sqrt(2 * 0.0625**2))


@pytest.mark.parametrize("num_seeds", [1, 2, 3])
def test_an_interval_has_no_impossible_change_and_one_seed_or_two_are_said_to_be_few(num_seeds):
    solved = [(0, 0, 0, 0), (2, 2, 2, 2), (0, 0, 0, 0)]
    table = comparison_table(
        [item(method, solved[seed], str(seed)) for method in ("GRPO", "APO") for seed in range(num_seeds)]
    )
    interval = cells(table)[0]["Change"].interval
    # Student's t of one or two degrees of freedom, times √(2·0.5/2) = 0.7 or √(2·(1/3)/3) = 0.5: above 1 in both.
    assert interval == (None if num_seeds == 1 else (-100, 100))
    assert table.notes[1:] == ((FEW_SEEDS[num_seeds],) if num_seeds < 3 else ())


def test_models_are_not_compared_with_each_other():
    items = [item("GRPO", (1, 2)), replace(item("APO", (2, 2)), model="other")]
    assert comparison_table(items).rows == ()

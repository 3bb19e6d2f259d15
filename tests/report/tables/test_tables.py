"""Tables: what stands where, what is averaged, what is bold, and every two methods. Numbers derived beside tests."""

import math
import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from apo_lightning.evaluation.loading import write_record
from apo_lightning.evaluation.records import Estimate
from apo_report.coverage import CoverageResult
from apo_report.evaluations import measurements, read_evaluations
from apo_report.figures.report import report_figures
from apo_report.identity import mean_over_benchmarks
from apo_report.names import METHODS
from apo_report.records import Covered, Table, TableRow
from apo_report.runs import read_runs
from apo_report.statistics.multiplicity import holm, seeds_needed
from apo_report.tables import (
    beside_published,
    coverage_table,
    health_table,
    held_out_table,
    hyperparameter_table,
    main_results,
    report_tables,
    sensitivity_table,
    swept_methods,
)
from apo_report.tables.cells import without_absent
from apo_report.tables.comparisons import FEW_SEEDS, comparison_table
from apo_report.tables.runs import runs_table
from report_cases import measured, result, write_run

PULL, PUSH = "algo.loss.pull_coef", "algo.loss.push_coef"
DEFAULTS = {"apo": {PULL: "0.1", PUSH: "1.05"}}


def texts(row: TableRow) -> list[str]:
    return [cell.text for cell in row.cells]


def column(table: Table, title: str) -> list[str]:
    index = [column.title for column in table.columns].index(title)
    return [row.cells[index].text for row in table.rows]


def test_methods_stand_in_the_papers_order_and_unknown_ones_after() -> None:
    names = ["mine", "APO", "GRPO-KL", "Base", "GRPO", "NSR"]
    table = main_results([measured(name) for name in names])
    assert [row.cells[0].text for row in table.rows] == ["Base", "GRPO", "NSR", "GRPO-KL", "APO", "mine"]
    assert list(METHODS.values())[-1] == "APO"


def test_the_best_of_a_model_is_bold_and_ties_as_printed_are_bold_together() -> None:
    items = [measured("Base", (0.1, 0.9)), measured("GRPO", (0.30004, 0.8)), measured("APO", (0.3, 0.9))]
    items.append(measured("APO", (0.01, 0.02), model="other"))
    table = main_results(items)
    bold = [[cell.bold for cell in row.cells[2:]] for row in table.rows]
    # 30.004 and 30.000 both print as 30.00; a model with a single method has no best.
    assert bold == [[False, True], [True, False], [True, True], [False, False]]


def test_k_is_the_largest_budget_that_all_evaluations_of_a_benchmark_have() -> None:
    table = main_results([measured("Base", (0.1, 0.2, 0.3, 0.4)), measured("APO", (0.5, 0.6))])
    assert [c.title for c in table.columns[2:]] == ["MATH-500 Pass@1", "MATH-500 Pass@2"]
    assert column(table, "MATH-500 Pass@2") == ["20.00", "60.00"]
    assert any("2 to 4 samples" in note for note in table.notes)


def test_averages_are_over_the_benchmarks_that_all_methods_have() -> None:
    items = [measured("Base", (0.2, 0.4), benchmark=name) for name in ("aime2024", "math500")]
    items += [measured("APO", (0.4, 0.8), benchmark=name) for name in ("aime2024", "math500", "amc2023")]
    items += [measured("APO", (0.9, 0.9), benchmark="minerva_math", model="other")]
    table = main_results(items)
    # (20 + 20)/2, (40 + 40)/2 without AMC, and the other model's only benchmark.
    assert column(table, "Average Pass@1") == ["20.00", "40.00", "90.00"]
    assert column(table, "AMC 23 Pass@1") == ["–", "40.00", "–"]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=6), st.floats(0, 0.5))
def test_averaged_intervals_hold_the_mean_and_shrink_with_the_root_of_benchmarks(
    values: list[float], half_width: float
) -> None:
    mean = mean_over_benchmarks([Estimate(value=v, low=v - half_width, high=v + half_width) for v in values])
    assert mean.value == pytest.approx(sum(values) / len(values))
    assert mean.high - mean.value == pytest.approx(half_width / math.sqrt(len(values)))


def test_a_sweep_makes_a_row_a_value_in_order_with_the_default_named() -> None:
    items = [measured("APO", (0.5, 0.6))]
    items += [measured("APO", (0.4, 0.7), settings={PULL: value}) for value in ("0.02", "10", "0", "2")]
    items += [measured("APO", (0.3, 0.7), settings={PUSH: "1"}), measured("APO", settings={PULL: "0", PUSH: "1"})]
    assert swept_methods(items) == [("tiny", "APO")]
    table = sensitivity_table(items, block="tiny", method="APO", defaults=DEFAULTS)
    assert [(row.section, row.cells[0].text) for row in table.rows] == [
        ("Varying β", "β = 0"),
        ("Varying β", "β = 0.02"),
        ("Varying β", "β = 0.1 (default)"),
        ("Varying β", "β = 2"),
        ("Varying β", "β = 10"),
        ("Varying λ", "λ = 1"),
        ("Varying λ", "λ = 1.05 (default)"),
        ("Varying β, λ", "β = 0, λ = 1"),
        ("Varying β, λ", "β = 0.1, λ = 1.05 (default)"),
    ]
    assert column(table, "MATH-500 Pass@1")[:5] == ["40.00", "40.00", "50.00", "40.00", "40.00"]


def test_health_calls_more_spread_better() -> None:
    names = ("diversity", "semantic_similarity", "entropy", "max_prob", "support_coverage")
    spread = dict(zip(names, (0.283, 0.297, 0.485, 0.849, 0.97), strict=True))
    peaked = dict(zip(names, (0.267, 0.314, 0.405, 0.878, 0.95), strict=True))
    table = health_table([measured("GRPO", **peaked), measured("APO", **spread)])
    assert texts(table.rows[1]) == ["APO", "1", "50.00", "0.283", "0.297", "0.485", "0.849", "0.970"]
    assert [cell.bold for cell in table.rows[1].cells] == [False, False, False, True, True, True, True, True]
    assert not any(cell.bold for cell in table.rows[0].cells)  # Pass@K is the same in both: neither is best


def test_the_published_health_is_below_the_measured_with_its_faults_marked() -> None:
    table = health_table([replace(measured("APO", entropy=0.4), model="Llama-3.2-3B-Instruct")])
    published = [row for row in table.rows if row.section.startswith("Published (Llama-3.2-3B-Instruct")]
    assert [texts(row) for row in published] == [
        ["GRPO", "–", "41.91", "0.267", "0.314", "0.405", "0.878", "–"],
        ["APO", "–", "43.65", "0.283", "0.297", "0.485", "0.849", "–"],
    ]
    assert [[cell.marked for cell in row.cells].index(True) for row in published] == [2, 2]
    assert any(note.startswith("†: the published number") for note in table.notes)
    of_another_model = without_absent(health_table([measured("APO", entropy=0.4)]))
    assert [row.section for row in of_another_model.rows] == ["tiny, MATH-500 (K = 2)"]
    assert "published" not in " ".join(of_another_model.notes)
    assert health_table([measured("APO")]).rows == ()


def covered(model: str, **others: object) -> Covered:
    source = result(model)
    recall = {k: Estimate(value=v, low=v - 0.01, high=v + 0.01) for k, v in ((1, 0.8384), (8, 0.9747))}
    coverage = CoverageResult(
        preset="math", model=source.model, data=source.data, prompt="", num_tokens=1234, recall=recall, versions={}
    )
    return Covered(path=Path(model), result=coverage)


def test_coverage_stands_beside_the_published_recall() -> None:
    table = coverage_table((covered("llama3b"), covered("qwen_math7b")))
    assert [texts(row) for row in table.rows] == [
        ["Qwen2.5-Math-7B", "Base", "1,234", "83.84", "97.47"],
        ["Llama-3.2-3B-Instruct", "Base", "1,234", "83.84", "97.47"],
        ["Qwen2.5-Math-7B", "Base", "–", "83.84", "97.47"],
    ]
    assert table.rows[0].cells[3].interval_text == "[82.8, 84.8]"


def test_our_numbers_stand_beside_the_papers_and_wrong_ones_are_marked() -> None:
    ours = measured("NSR", [0.45] + [0.7] * 15, model="Qwen2.5-Math-7B", benchmark="minerva_math")
    table = beside_published([ours, measured("NSR", [0.5] * 16, benchmark="minerva_math")])
    assert [texts(row) for row in table.rows] == [
        ["NSR", "1", "Minerva", "Pass@1", "45.00", "44.93", "+0.07"],
        ["NSR", "1", "Minerva", "Pass@16", "70.00", "66.12", "+3.88"],
    ]
    assert [row.cells[5].marked for row in table.rows] == [True, True]
    assert table.notes[1] == (
        "†: the published number does not add up: it is no share of the problems and samples there are."
    )


def test_a_training_sweep_alone_makes_sensitivity_and_held_out_tables(tmp_path: Path) -> None:
    for index, (pull, after) in enumerate([(0.1, 0.5), (0.1, 0.7), (0.02, 0.4)]):
        write_run(tmp_path / str(index), seed=index, loss={"pull_coef": pull}, after=after)
    runs = read_runs([tmp_path])
    found = measurements(runs, read_evaluations([tmp_path]), DEFAULTS)
    table = sensitivity_table(found, block="tiny", method="APO", defaults=DEFAULTS)
    assert [texts(row)[:3] for row in table.rows] == [["β = 0.02", "1", "40.00"], ["β = 0.1 (default)", "2", "60.00"]]
    # The base model has random weights, drawn with each run's seed.
    cells = ["APO", "2", "arithmetic", "25.00", "60.00", "+35.00"]  # one sample a problem: Pass@K would be Pass@1
    assert texts(without_absent(held_out_table(found)).rows[0]) == cells
    names = [table.name for table in report_tables(runs, found, (), DEFAULTS)]
    assert names == ["held_out", "sensitivity_tiny_apo", "runs", "hyperparameters"]


EXACT = "step,val/locks/exact/pass@1,val/locks/exact/pass@64\n0,0.1,0.9\n1,,\n2,{},0.8\n"


@pytest.mark.parametrize("sampled", ["nothing", "held out", "evaluated in part"])
def test_exact_values_of_a_sweep_are_beside_what_was_sampled(tmp_path: Path, sampled: str) -> None:
    for index, (pull, after) in enumerate([(0.1, 0.5), (0.1, 0.7), (0.02, 0.4)]):
        config = {"model": {"name": "tiny", "path": "base"}}
        folder = write_run(tmp_path / str(index), seed=index, loss={"pull_coef": pull}, config=config)
        (folder / "metrics.csv").write_text(EXACT.format(after))
        if sampled != "held out":
            (folder / "summary.json").unlink()
        if sampled == "evaluated in part" and index < 2:
            write_record(folder / "results.json", result(algo="apo", seed=index, weights_sha256=str(index)))
    runs = read_runs([tmp_path])
    found = measurements(runs, read_evaluations([tmp_path], runs), DEFAULTS)
    (table,) = (sensitivity_table(found, block=b, method=m, defaults=DEFAULTS) for b, m in swept_methods(found))
    assert column(table, "Setting") == ["β = 0.02", "β = 0.1 (default)"]
    assert column(table, "locks, exact Pass@1") == ["40.00", "60.00"]
    assert column(table, "locks, exact Pass@64") == ["80.00", "80.00"]
    others = {"nothing": {}, "held out": {"arithmetic Pass@1": ["50.00"] * 2}}
    for title, values in others.get(sampled, {"MATH-500 Pass@1": ["–", "50.00"]}).items():
        assert column(table, title) == values
    # Exact values are no part of an average over benchmarks.
    assert [name for name in (c.title for c in table.columns) if "Average" in name] == []
    assert any("Exact values have no interval" in note for note in table.notes)
    assert [note for note in table.notes if "Not evaluated: APO (β = 0.02)" in note] == (
        [table.notes[-1]] if sampled == "evaluated in part" else []
    )
    # What all settings have is drawn.
    (figure,) = (each for each in report_figures([], found, DEFAULTS) if each.name == "sensitivity")
    over = {"held out": "arithmetic"}.get(sampled, "locks, exact")
    assert figure.caption.startswith(f"Mean over {over}, one setting varied at a time")
    assert [label.get_text() for label in figure.figure.axes[0].get_xticklabels()] == ["0.02", "0.1"]
    # One base model, of which every run logged the same.
    exact = [texts(row) for row in held_out_table(found).rows if row.cells[2].text == "locks, exact"]
    assert exact == [
        ["APO", "2", "locks, exact", "64", "10.00", "60.00", "90.00", "80.00", "+50.00"],
        ["APO (β = 0.02)", "1", "locks, exact", "64", "10.00", "40.00", "90.00", "80.00", "+30.00"],
    ]


def test_hyperparameters_that_differ_from_the_papers_are_marked(tmp_path: Path) -> None:
    for index, pull in enumerate((0.1, 0.02)):
        config = {"model": {"name": "qwen7b"}}
        write_run(tmp_path / str(index), loss={"pull_coef": pull, "anchor_size": 8}, config=config)
    rows = {row.cells[0].text: row.cells[3] for row in hyperparameter_table(read_runs([tmp_path])).rows}
    assert (rows["Pull coefficient β"].text, rows["Pull coefficient β"].marked) == ("0.02, 0.1", True)
    assert (rows["Anchor size K"].text, rows["Anchor size K"].marked) == ("8", False)
    assert "KL coefficient" not in rows  # no run has one
    assert "floor" not in rows


def test_the_coefficients_of_an_own_loss_stand_below_the_papers(tmp_path: Path) -> None:
    for index, scale in enumerate((0.5, 2.0)):
        write_run(tmp_path / str(index), algo="softer", loss={"scale": scale})
    found = [[cell.text for cell in row.cells] for row in hyperparameter_table(read_runs([tmp_path])).rows]
    assert ["scale", "softer", "–", "0.5, 2"] in found


def test_tables_of_nothing_are_empty() -> None:
    assert report_tables((), ()) == ()
    assert main_results([]).rows == sensitivity_table([], block="x", method="APO").rows == ()


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
    assert "corrected for the 5 comparisons" in table.notes[1]


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
    said = [note for note in table.notes if note in FEW_SEEDS.values()]
    assert said == ([FEW_SEEDS[num_seeds]] if num_seeds < 3 else [])


LR = "optimizer.lr"
SHARED = {"data": "count", "prompts_per_minibatch": "4"}


@pytest.mark.parametrize(
    ("others", "label"),
    [
        ([], "APO"),
        ([measured("Base")], "APO"),
        ([measured("APO", settings={LR: "2", **SHARED})], "APO (learning rate = 1)"),
        ([measured("GRPO", settings=SHARED)], "APO (learning rate = 1)"),
        ([measured("APO", model="other")], "APO"),
        ([measured("GRPO")], "APO (learning rate = 1, data = count, prompts_per_minibatch = 4)"),
    ],
)
def test_a_label_has_only_what_differs_within_its_block(others, label):
    items = [measured("APO", settings={LR: "1", **SHARED}), *others]
    assert label in [row.cells[0].text for row in main_results(items).rows]
    other = replace(measured("APO", benchmark="arithmetic"), held_out=True)
    held_out = held_out_table([*(replace(item, held_out=True) for item in items), other])
    assert label in [row.cells[0].text for row in held_out.rows if row.cells[2].text == "MATH-500"]
    for figure in report_figures([], items)[:2] if {item.model for item in items} == {"tiny"} else ():
        assert label in [text.get_text().replace("\n", " ") for text in figure.figure.legends[0].get_texts()]


def test_a_sweep_names_what_it_varies_and_not_what_all_its_runs_share():
    items = [measured("APO", settings={PULL: pull, **SHARED}) for pull in ("0", "2")]
    table = sensitivity_table([*items, measured("APO", settings=SHARED)], block="tiny", method="APO", defaults=DEFAULTS)
    assert column(table, "Setting") == ["β = 0", "β = 0.1 (default)", "β = 2"]


@pytest.mark.parametrize(
    ("table", "columns", "said"),
    [
        (health_table([measured("APO", entropy=0.4)]), ["Method", "Seeds", "Pass@K ↑", "Entropy ↑"], "Entropy"),
        (
            held_out_table([replace(measured("APO", (0.5,)), held_out=True)]),
            ["Method", "Seeds", "Problems", "Pass@1 After"],
            "",
        ),
        (
            comparison_table([item("Base", (0, 1, 2)), item("APO", (2, 2, 2))]),
            ["From", "To", "Seeds", "Metric", "Change", "p", "p, Holm"],
            "p, Holm",
        ),
        (
            comparison_table([item("Base", (1, 1, 2, 1)), item("APO", (2, 1, 2, 1))]),
            ["From", "To", "Seeds", "Metric", "Change", "p"],
            "",
        ),
    ],
)
def test_a_page_has_no_empty_column_and_no_word_on_what_is_not_there(table, columns, said):
    shown = without_absent(table)
    assert [column.title for column in shown.columns] == columns
    begins = {note.partition(":")[0] for note in shown.notes}
    subjects = {"Bold", "†", "Support mass ↑", "Entropy ↑", "p, Holm", "Seeds for one point"}
    assert {name.removesuffix(" ↑") for name in begins & subjects} == ({said} if said else set())


def test_a_toy_run_has_no_papers_value_beside_it(tmp_path):
    write_run(tmp_path / "run")
    table = without_absent(hyperparameter_table(read_runs([tmp_path])))
    assert [column.title for column in table.columns] == ["Setting", "Methods", "These runs"]
    assert table.notes == ()


@pytest.mark.parametrize("names", [("GRPO", "APO"), ("Base", "APO")])
def test_how_to_add_a_base_model_is_said_where_it_is_missing(names):
    items = [item(name, (0, 1, 2, 0)) for name in names]
    for table in (main_results(items), comparison_table(items)):
        said = [note for note in table.notes if "apo evaluate run=FOLDER checkpoint=base" in note]
        assert len(said) == ("Base" not in names)


def test_every_run_is_listed_with_its_folder_and_the_weights_that_tell_two_of_one_name_apart(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        path = write_run(tmp_path / "outputs" / name, weights=name * 64) / "results.json"
        write_record(path, result(algo="apo", seed=1, weights_sha256=name * 64))
    os.utime(tmp_path / "outputs" / "a" / "metrics.csv", (0, 86_400))
    runs = read_runs([Path("outputs")])
    results = read_evaluations([Path("outputs")], runs)
    found = measurements(runs, results, DEFAULTS)
    listed = [texts(row) for row in runs_table(runs, DEFAULTS).rows]
    assert [row[:4] + row[5:] for row in listed] == [
        ["APO", "1", "2", "aaaaaaaa", "outputs/a"],
        ["APO", "1", "2", "bbbbbbbb", "outputs/b"],
    ]
    assert listed[0][4].startswith("1970-01-0")
    assert column(main_results(found), "Method") == ["APO (weights aaaaaaaa)", "APO (weights bbbbbbbb)"]
    assert sum("Not averaged" in note for note in main_results(found).notes) == 1


def test_models_are_not_compared_with_each_other():
    items = [item("GRPO", (1, 2)), replace(item("APO", (2, 2)), model="other")]
    assert comparison_table(items).rows == ()

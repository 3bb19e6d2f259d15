"""The paper's numbers as transcribed, and what the recomputation finds wrong with them."""

from collections import Counter
from typing import get_args

import pytest

from apo_report.published import FAULTS, Name, published, published_cell
from published_check import inconsistencies

TABLES = get_args(Name)


@pytest.mark.parametrize(
    ("table", "num_cells"),
    [
        ("main_results", 14 * 6 * 2),  # 14 rows, five benchmarks and their average, two metrics
        ("sensitivity", 9 * 6 * 2),
        ("distribution", 2 * 5),
        ("coverage", 4 * 2),
        ("hyperparameters", 15),
    ],
)
def test_every_cell_of_the_papers_tables_is_there_once(table: Name, num_cells: int) -> None:
    cells = [(c.model, c.method, c.setting, c.benchmark, c.metric) for c in published(table)]
    assert len(cells) == len(set(cells)) == num_cells
    assert all(cell.table == table for cell in published(table))


@pytest.mark.parametrize(
    ("table", "names", "text"),
    [
        ("main_results", ("Qwen2.5-7B", "Base", "aime2024", "pass@1", ""), "6.67"),
        ("main_results", ("Qwen2.5-Math-7B", "GRPO-KL (error-only)", "aime2025", "pass@256", ""), "43.33"),
        ("main_results", ("Qwen2.5-Math-7B", "APO", "average", "pass@1", ""), "50.67"),
        ("main_results", ("Llama-3.2-3B-Instruct", "APO", "average", "pass@K", ""), "47.11"),
        ("sensitivity", ("Qwen2.5-Math-7B", "APO", "minerva_math", "pass@16", "algo.loss.pull_coef=0.05"), "68.4"),
        ("sensitivity", ("Qwen2.5-Math-7B", "APO", "average", "pass@K", "algo.loss.push_coef=1.1"), "79.52"),
        ("distribution", ("Llama-3.2-3B-Instruct", "APO", "minerva_math", "max_prob", ""), "0.849"),
        ("coverage", ("Qwen2.5-Math-7B", "Base", "math", "loss_rate@16", ""), "1.54"),
    ],
)
def test_cells_read_as_the_paper_prints_them(table: Name, names: tuple[str, ...], text: str) -> None:
    model, method, benchmark, metric, setting = names
    cell = published_cell(table, model=model, method=method, benchmark=benchmark, metric=metric, setting=setting)
    assert cell is not None
    assert cell.text == text


def test_exactly_the_known_slips_are_found() -> None:
    found = {(i.cell.table, i.cell.model, i.cell.method, i.cell.metric, i.cell.text, i.kind) for i in inconsistencies()}
    known = {
        # Llama's base averages: (6.81 + 0.15 + 24.38 + 44.57 + 17.62)/5 = 18.706 and 275.80/5 = 55.16.
        ("main_results", "llama3b", "base", "pass@1", "18.79", "average"),
        ("main_results", "llama3b", "base", "pass@K", "55.11", "average"),
        # Minerva, 272 problems: 163/272 = 59.93 and 164/272 = 60.29, and so on.
        ("main_results", "qwen7b", "base", "pass@16", "60.02", "count"),
        ("main_results", "qwen_math7b", "base", "pass@16", "65.15", "count"),
        ("main_results", "qwen_math7b", "nsr", "pass@16", "66.12", "count"),
        ("main_results", "qwen_math7b", "apo", "pass@16", "66.37", "count"),
        ("main_results", "llama3b", "apo", "pass@16", "43.65", "count"),
        # The same two cells where other tables repeat them: 66.4 is neither 66.18 nor 66.54.
        ("sensitivity", "qwen_math7b", "apo", "pass@16", "66.4", "count"),
        ("distribution", "llama3b", "apo", "pass@32", "43.65", "count"),
        # K = 32 in the text, the K = 16 values of the main table in the cells.
        ("distribution", "llama3b", "grpo", "pass@32", "41.91", "repeats"),
        ("distribution", "llama3b", "apo", "pass@32", "43.65", "repeats"),
        # Verified by hand: of 272·16 = 4352 samples 1955 are 44.9219 and 1956 are 44.9449 per cent.
        ("main_results", "qwen_math7b", "nsr", "pass@1", "44.93", "count"),
        # Verified by hand: 1705/4352 = 39.1774 and 12/(30·256) = 0.15625; both round up and were printed cut off.
        ("main_results", "qwen7b", "apo", "pass@1", "39.17", "cut"),
        ("main_results", "llama3b", "base", "pass@1", "0.15", "cut"),
    }
    assert found == known


def test_the_marks_in_the_data_say_what_the_code_finds() -> None:
    found = Counter((i.cell.table, i.cell.text, i.kind) for i in inconsistencies())
    marks = Counter((c.table, c.text, kind) for table in TABLES for c in published(table) for kind in c.mark.split())
    assert marks == found
    assert {kind for _, _, kind in marks} == set(FAULTS)


def test_each_slip_names_the_nearest_numbers_that_would_be_right() -> None:
    expected = {i.cell.text: i.expected for i in inconsistencies()}
    assert expected["60.02"] == "59.93 (163/272) or 60.29 (164/272)"
    assert expected["18.79"] == "18.71"

"""What leaves the training set, on texts small enough to count by hand."""

import random
import string
from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apo_lightning.data.filtering import SHINGLE_LENGTH, Contamination, filter_rows, normalised_problem
from apo_lightning.data.rows import Row


def rows_of(*problems_and_answers):
    return [Row(id=str(i), problem=p, answer=a) for i, (p, a) in enumerate(problems_and_answers)]


def letters(length, seed):
    return "".join(random.Random(seed).choices(string.ascii_lowercase, k=length))


@pytest.mark.parametrize(
    ("options", "ids"),
    [({"near_copies": True}, ["0", "4"]), ({"near_copies": False}, ["0", "1", "2", "4"]), ({}, ["0", "1", "2", "4"])],
)
def test_of_copies_the_first_is_kept(options, ids):
    copies = ("Find $x + 1$.", "find  $x+1$.", "Find\n$x\\,+\\;1$.", "Find $x + 1$.", "Find $x$.")
    kept, report = filter_rows(rows_of(*((problem, "1") for problem in copies)), **options)
    assert [row.id for row in kept] == ids
    assert (report.num_rows, report.num_duplicates, report.num_conflicting) == (5, 5 - len(ids), 0)


def test_one_problem_behind_two_system_messages_is_two_problems():
    rows = [replace(row, system=row.id) for row in rows_of(("Find $x$.", "1"), ("Find $x$.", "2"))]
    assert filter_rows(rows)[0] == rows


def test_of_copies_that_disagree_none_is_kept():
    kept, report = filter_rows(rows_of(("Find $x$.", "1"), ("Find $x$.", "2"), ("Find $x$.", "1"), ("Find $y$.", "2")))
    assert [row.id for row in kept] == ["3"]
    assert (report.num_conflicting, report.num_duplicates, report.num_kept) == (3, 0, 1)


def test_a_row_without_an_answer_is_counted_apart_and_conflicts_with_nothing():
    kept, report = filter_rows(rows_of(("Find $x$.", ""), ("Find $x$.", "2")))
    assert [row.id for row in kept] == ["1"]
    assert (report.num_without_answer, report.num_conflicting, report.num_duplicates) == (1, 0, 0)


def test_spacing_commands_are_spacing_and_other_commands_are_not():
    assert normalised_problem(r"$a\,b\!c\quad d~e\ f$") == normalised_problem("$abcdef$")
    assert normalised_problem(r"$\quadratic$") != normalised_problem(r"$ratic$")
    assert normalised_problem(r"$x + 1$") != normalised_problem(r"$x - 1$")


WORDS = [letters(7, seed) for seed in range(20)]
# 119 letters have 60 shingles of 60; a copy of the first n letters holds n − 59 of them.
SHORT = letters(119, seed=2)
# 141 shingles; two copies of 95 letters hold 36 each: 72 of 141.
LONG = letters(200, seed=4)


@pytest.mark.parametrize(
    ("benchmark", "problem", "contained"),
    [
        ("Find $x + 1$.", "find $x+1$.", True),
        ("Find $x + 1$.", "Find $x - 1$.", True),  # letters and digits are all the same
        ("Find $x + 1$.", "Find $x + 2$.", False),
        ("Find x.", f"Find x. {letters(100, 1)}", False),
        (SHORT, letters(80, 3) + SHORT[:89], True),  # 30 of 60
        (SHORT, letters(80, 3) + SHORT[:88], False),  # 29 of 60
        (LONG, f"{LONG[:95]} and then {LONG[-95:]}", True),
        (LONG, f"{LONG[:95]} and then {LONG[:95]}", False),
        (" ".join(WORDS), ", ".join(word.upper() for word in WORDS) + "!", True),
    ],
)
def test_a_problem_is_contaminated_by_half_of_its_shingles_whatever_the_spacing_and_case(benchmark, problem, contained):
    assert SHINGLE_LENGTH == 60
    assert Contamination(rows_of((benchmark, "1"))).contains(problem) is contained


def test_contaminated_rows_are_dropped_and_counted():
    reworded = letters(119, seed=5)
    kept, report = filter_rows(
        rows_of(("Find $x$.", "1"), (reworded + " Round down.", "2"), ("Find $z$.", "3")),
        benchmarks=rows_of(("find $x$ .", "9"), (reworded, "9")),
    )
    assert [row.id for row in kept] == ["2"]
    assert report.num_in_benchmark == 2


@given(st.lists(st.tuples(st.sampled_from(["p", "P", "q q", "qq", "r"]), st.sampled_from(["", "1", "2"]))))
def test_the_counts_add_up(problems_and_answers):
    kept, report = filter_rows(rows_of(*problems_and_answers), benchmarks=rows_of(("r", "1")), near_copies=True)
    counts = {item.name: getattr(report, item.name) for item in fields(report)}
    assert counts.pop("num_rows") == len(problems_and_answers) == sum(counts.values())
    assert report.num_kept == len(kept) == len({normalised_problem(row.problem) for row in kept})

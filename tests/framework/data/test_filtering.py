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


def contains(benchmark_problem, training_problem):
    return Contamination(rows_of((benchmark_problem, "1"))).contains(training_problem)


@pytest.mark.parametrize(("near_copies", "ids"), [(True, ["0", "4"]), (False, ["0", "1", "2", "4"])])
def test_of_copies_the_first_is_kept(near_copies, ids):
    copies = ("Find $x + 1$.", "find  $x+1$.", "Find\n$x\\,+\\;1$.", "Find $x + 1$.", "Find $x$.")
    kept, report = filter_rows(rows_of(*((problem, "1") for problem in copies)), near_copies=near_copies)
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


def test_a_benchmark_problem_is_found_up_to_spacing_and_case():
    assert contains("Find $x + 1$.", "find $x+1$.")
    assert contains("Find $x + 1$.", "Find $x - 1$.")  # letters and digits are all the same
    assert not contains("Find $x + 1$.", "Find $x + 2$.")


def test_a_short_benchmark_problem_does_not_hit_as_a_substring():
    assert not contains("Find x.", f"Find x. {letters(100, 1)}")


def test_half_of_the_shingles_is_contamination_and_less_is_not():
    # 119 letters have 60 shingles of 60; a copy of the first n letters holds n − 59 of them.
    problem = letters(119, seed=2)
    assert SHINGLE_LENGTH == 60
    assert contains(problem, letters(80, 3) + problem[:89])  # 30 of 60
    assert not contains(problem, letters(80, 3) + problem[:88])  # 29 of 60


def test_shingles_of_two_places_add_up():
    problem = letters(200, seed=4)  # 141 shingles; two copies of 95 letters hold 36 each: 72 of 141
    assert contains(problem, f"{problem[:95]} and then {problem[-95:]}")
    assert not contains(problem, f"{problem[:95]} and then {problem[:95]}")


def test_punctuation_and_case_hide_nothing():
    words = [letters(7, seed) for seed in range(20)]
    assert contains(" ".join(words), ", ".join(word.upper() for word in words) + "!")


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

"""Local data sets: filtered, split, checked."""

import json

import pytest

from apo_lightning.data import DatasetSource, ProblemSet
from apo_lightning.errors import ConfigError


def write(path, problems):
    path.write_text("".join(json.dumps({"problem": p, "answer": a}) + "\n" for p, a in problems))
    return str(path)


@pytest.fixture
def train_path(tmp_path):
    return write(tmp_path / "train.jsonl", [(f"What is {i} plus one?", str(i + 1)) for i in range(50)])


def test_held_out_problems_are_not_trained_on(train_path):
    problems = DatasetSource(name="plus", path=train_path, num_validation=20).load()
    train, held_out = {row.id for row in problems.train}, {row.id for row in problems.validation["plus"]}
    assert (len(train), len(held_out)) == (30, 20)
    assert train.isdisjoint(held_out)
    assert (problems.report.num_rows, problems.report.num_held_out, problems.report.num_kept) == (50, 20, 30)


def test_the_choice_of_held_out_problems_does_not_depend_on_their_order(tmp_path, train_path):
    lines = (tmp_path / "train.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "reversed.jsonl").write_text("".join(reversed(lines)))

    def held_out(path):
        return {row.problem for row in DatasetSource(name="s", path=path, num_validation=9).load().validation["s"]}

    assert held_out(train_path) == held_out(str(tmp_path / "reversed.jsonl"))


def test_benchmarks_are_read_by_path_or_as_problem_sets_and_never_filtered(tmp_path, train_path):
    benchmark = write(tmp_path / "bench.jsonl", [("Twice?", "1"), ("Twice?", "1")])
    source = DatasetSource(
        name="plus", path=train_path, validation={"first": benchmark, "second": ProblemSet(path=benchmark)}
    )
    validation = source.load().validation
    assert list(validation) == ["first", "second"]
    assert [row.id for row in validation["first"]] == ["first-1", "first-2"]


def test_excluded_benchmarks_leave_the_training_set(tmp_path, train_path):
    benchmark = write(tmp_path / "bench.jsonl", [("What is 7 plus one?", "8"), ("Else?", "1")])
    problems = DatasetSource(name="plus", path=train_path, exclude=[benchmark]).load()
    assert problems.report.num_in_benchmark == 1
    assert "What is 7 plus one?" not in {row.problem for row in problems.train}


def test_nothing_left_to_train_on_is_refused_with_the_counts(tmp_path, train_path):
    path = write(tmp_path / "conflicting.jsonl", [("p", "1"), ("p", "2")])
    with pytest.raises(ConfigError, match=r"nothing is left to train on: .* \(dropped: 2 conflicting"):
        DatasetSource(name="s", path=path).load()
    with pytest.raises(ConfigError, match=r"num_validation=50 would be held out: give data.num_validation=\d+, say"):
        DatasetSource(name="s", path=train_path, num_validation=50).load()


@pytest.mark.parametrize("field", ["validation", "exclude"])
def test_the_check_looks_at_every_file(train_path, field):
    value = {"gone": "gone.jsonl"} if field == "validation" else ["gone.jsonl"]
    with pytest.raises(ConfigError, match=r"gone\.jsonl does not exist"):
        DatasetSource(name="s", path=train_path, **{field: value}).check()
    with pytest.raises(ConfigError, match=r"lost\.jsonl does not exist"):
        DatasetSource(name="s", path="lost.jsonl").check()


def test_a_benchmark_may_not_take_the_name_of_the_held_out_part(train_path):
    with pytest.raises(ConfigError, match="rename it"):
        DatasetSource(name="s", path=train_path, num_validation=1, validation={"s": train_path})

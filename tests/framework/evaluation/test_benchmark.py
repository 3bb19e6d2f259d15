import json

import pytest

from apo_lightning.data import ArithmeticSource
from apo_lightning.errors import ConfigError
from apo_lightning.evaluation.benchmark import Benchmark
from apo_lightning.model.tokenizer import character_tokenizer
from apo_lightning.rewards import NumericReward

BASE_TEMPLATE = "Q: {problem}\nA:"


def benchmark(**changes) -> Benchmark:
    fields = {
        "name": "sums",
        "path": None,
        "hub": None,
        "source": None,
        "num_problems": None,
        "limit": None,
        "num_samples": 4,
        "max_prompt_tokens": 40,
        "max_completion_tokens": 8,
        "instruction": "{problem}",
        "system": None,
        "diversity": False,
        "encoder": None,
        "reward": NumericReward(),
    }
    return Benchmark(**{**fields, **changes})


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "sums.jsonl"
    path.write_text("".join(json.dumps({"problem": f"{i} + 1", "answer": str(i + 1)}) + "\n" for i in range(5)))
    return str(path)


def test_the_size_is_checked_on_the_whole_set_and_a_limit_takes_the_first(file):
    rows, card = benchmark(path=file, num_problems=5, limit=2).load()
    assert [row.problem for row in rows] == ["0 + 1", "1 + 1"]
    assert (card.num_problems, card.num_available, card.source) == (2, 5, "sums.jsonl")
    with pytest.raises(ConfigError, match=r"sums.jsonl has 5 problems, but sums has 2.*num_problems=5"):
        benchmark(path=file, num_problems=2, limit=2).load()


def test_the_hash_is_of_problems_and_answers_in_order(file, tmp_path):
    other = tmp_path / "renamed.jsonl"
    other.write_text((tmp_path / "sums.jsonl").read_text())
    _, card = benchmark(path=file).load()
    assert benchmark(path=str(other)).load()[1].sha256 == card.sha256
    lines = other.read_text().splitlines()
    other.write_text("\n".join([lines[1], lines[0], *lines[2:]]) + "\n")
    assert benchmark(path=str(other)).load()[1].sha256 != card.sha256


def test_a_path_goes_before_a_source(file):
    source = ArithmeticSource(num_validation=6, max_operand=9)
    assert len(benchmark(source=source).load()[0]) == 6
    assert len(benchmark(source=source, path=file).load()[0]) == 5


def test_a_long_prompt_is_refused_by_name_not_dropped(file):
    ready = benchmark(path=file, max_prompt_tokens=10)
    rows, _ = ready.load()
    with pytest.raises(ConfigError, match=r"problem 'sums-1' has 11 prompt tokens, above 10: raise max_prompt_tokens"):
        ready.prompts(rows, character_tokenizer(), BASE_TEMPLATE)


def test_the_prompt_around_a_problem_keeps_its_place_free(file):
    assert benchmark(path=file).prompt_around(character_tokenizer(), BASE_TEMPLATE) == BASE_TEMPLATE


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_samples": 0, "path": "x.jsonl"}, r"benchmark.sums.num_samples is 0"),
        ({"limit": 0, "path": "x.jsonl"}, r"benchmark.sums.limit is 0"),
        ({}, r"benchmark sums has no problems: give benchmark.sums.path"),
        ({"path": "x.jsonl", "num_samples": 1, "diversity": True}, r"num_samples is 1: diversity is between samples"),
    ],
)
def test_what_cannot_work_is_refused_when_it_is_made(changes, message):
    with pytest.raises(ConfigError, match=message):
        benchmark(**changes)

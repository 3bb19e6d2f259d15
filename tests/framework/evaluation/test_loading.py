"""Results files come back exactly as the records they were written from, or not at all."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apo_lightning.errors import ConfigError
from apo_lightning.evaluation.loading import read_record, read_result, write_record
from apo_lightning.evaluation.records import DataCard, Estimate, EvaluationResult, ModelCard, ProblemCount
from factories import sampling_settings

RESULT = EvaluationResult(
    benchmark="arithmetic",
    model=ModelCard(name="tiny", path=None, weights_sha256="cd", dtype="float32", overrides=("algo=apo", "seed=2")),
    data=DataCard(source="π\ud800.jsonl", sha256="ab", num_problems=1, num_available=2),
    settings=sampling_settings(),
    versions={"torch": "2.13", "vllm": None},
    verdicts={"correct": 1, "incorrect": 3},
    num_truncated=0,
    num_tokens=20,
    metrics={"pass@1": Estimate(value=0.25, low=0.0, high=1 / 3)},
    pass_at_k=(Estimate(value=0.25, low=0.0, high=0.5), Estimate(value=0.5, low=0.1, high=0.7)),
    problems=(ProblemCount(prompt_id="a/0", num_samples=4, num_correct=1),),
    by_problem={"entropy": (0.1,)},
    notes={"diversity": "“words”"},
)


@dataclass(frozen=True, kw_only=True)
class Recall:
    """A record of another package, as `apo_lab` has one."""

    recall: Mapping[int, Estimate]


def test_a_record_comes_back_as_it_was_written(tmp_path: Path) -> None:
    write_record(tmp_path / "results.json", RESULT)
    assert read_result(tmp_path / "results.json") == RESULT
    record = Recall(recall={1: RESULT.pass_at_k[0], 16: RESULT.pass_at_k[1]})
    write_record(tmp_path / "coverage.json", record)
    assert read_record(tmp_path / "coverage.json", Recall) == record


@given(value=st.floats())
def test_every_finite_number_survives_to_its_last_bit(tmp_path_factory: pytest.TempPathFactory, value: float) -> None:
    path = tmp_path_factory.mktemp("r") / "results.json"
    estimate = Estimate(value=value, low=value, high=value)
    write_record(path, replace(RESULT, metrics={"entropy": estimate}, by_problem={"entropy": (value,)}))
    found = read_result(path)
    expected = pytest.approx(value if math.isfinite(value) else math.nan, abs=0, rel=0, nan_ok=True)
    assert found.metrics["entropy"].high == expected
    assert found.by_problem["entropy"][0] == expected


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schema": 4}, r"schema 4 is newer than 3.*update"),
        ({"benchmark": 3}, r"benchmark: Input should be a valid string"),
        ({"metrics": []}, r"metrics: Input should be a valid dictionary"),
        ({"metrics": {"pass@1": {"value": 1.0}}}, r"metrics\.pass@1\.low: Field required"),
        ({"verdicts": {"corect": 1}}, r"verdicts\.corect.*: Input should be 'correct'"),
    ],
)
def test_a_file_of_another_shape_is_refused_in_one_line(tmp_path: Path, changes: dict, message: str) -> None:
    path = tmp_path / "results.json"
    write_record(path, RESULT)
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(ConfigError, match=message) as caught:
        read_result(path)
    assert "\n" not in str(caught.value)
    assert "results.json" in str(caught.value)


@pytest.mark.parametrize("content", [None, "", "{", "[]", "\x00"])
def test_what_is_no_json_object_is_refused(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "coverage.json").write_text(content)
    with pytest.raises(ConfigError, match=r"coverage\.json"):
        read_record(tmp_path / "coverage.json", Recall)

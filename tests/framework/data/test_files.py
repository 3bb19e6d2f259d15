"""Files and hub data sets that can, and cannot, be read."""

import json

import datasets
import huggingface_hub
import pyarrow
import pyarrow.parquet
import pytest
from hydra.utils import instantiate

from apo_lightning.data.files import HubDataset, ProblemSet
from apo_lightning.data.rows import DAPO_PREFIX, DAPO_SUFFIX
from apo_lightning.errors import ConfigError
from composing import composed

RECORDS = [{"problem": "1 + 1?", "answer": "2"}, {"problem": "2 + 2?", "answer": "4"}]


def write_jsonl(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(path)


def test_jsonl_and_parquet_give_the_same_rows(tmp_path):
    jsonl = write_jsonl(tmp_path / "set.jsonl", RECORDS)
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(RECORDS), tmp_path / "set.parquet")
    rows = ProblemSet(path=jsonl).rows("set")
    assert [(row.id, row.problem, row.answer) for row in rows] == [("set-1", "1 + 1?", "2"), ("set-2", "2 + 2?", "4")]
    assert ProblemSet(path=str(tmp_path / "set.parquet")).rows("set") == rows


def test_blank_lines_are_no_rows_but_count_as_lines(tmp_path):
    path = tmp_path / "set.jsonl"
    path.write_text('{"problem": "p", "answer": "1"}\n\n{"problem": "q", "answer": "2"}\n\n')
    assert [row.id for row in ProblemSet(path=str(path)).rows("set")] == ["set-1", "set-3"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"problem": "p", "answer": ', r"set\.jsonl:2 is not valid JSON"),
        (b'{"problem": "\xff", "answer": "1"}', r"set\.jsonl:2 is not valid JSON"),
        (b"[" * 200_000, r"set\.jsonl:2 is not valid JSON"),
        (b"17", r"set\.jsonl:2 holds 17"),
        (rb'{"problem": "p\ud800", "answer": "1"}', r"set\.jsonl:2 has '\\ud800', half of a character"),
        (b'{"problem": "p", "note": [{"x": "\xed\xa0\x80"}], "answer": "1"}', r"set\.jsonl:2 has '\\ud800', half"),
    ],
)
def test_a_malformed_line_is_named(tmp_path, line, message):
    path = tmp_path / "set.jsonl"
    path.write_bytes(json.dumps(RECORDS[0]).encode() + b"\n" + line + b"\n")
    with pytest.raises(ConfigError, match=message):
        ProblemSet(path=str(path)).rows("set")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("set.csv", "problem,answer\n", "only .jsonl and .parquet"),
        ("set.jsonl", "\n", "has no rows"),
        ("set.jsonl", '{"text": "p"}\n', "set.jsonl:1 has no problem"),
        ("set.parquet", "not parquet", "is not a parquet file"),
    ],
)
def test_the_check_looks_into_the_file(tmp_path, name, content, message):
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(ConfigError, match=message):
        ProblemSet(path=str(path)).check()
    with pytest.raises(ConfigError, match=r"nowhere\.jsonl does not exist"):
        ProblemSet(path=str(tmp_path / "nowhere.jsonl")).check()
    with pytest.raises(ConfigError, match="neither path nor hub"):
        ProblemSet().check()


MATH = [
    {"problem": "1 + 1?", "level": "Level 1", "type": "Algebra", "solution": "First \\boxed{1}, then $\\boxed{2}$."},
    {"problem": "Why?", "level": "Level 2", "type": "Algebra", "solution": "Nobody knows."},
    {"problem": "1/2?", "level": "Level 3", "type": "Algebra", "solution": "\\boxed{\\frac{1}{2}}"},
]


def test_a_file_in_maths_own_layout_is_read_like_the_hub_data_set(tmp_path):
    path = write_jsonl(tmp_path / "train.jsonl", MATH)
    on_the_hub = HubDataset(hub_id=str(tmp_path), answer_column="solution", answer_is_boxed=True)
    rows = ProblemSet(path=path, hub=on_the_hub).rows("math")
    assert [row.answer for row in rows] == ["2", "", "\\frac{1}{2}"]
    assert rows == ProblemSet(hub=on_the_hub).rows("math")


@pytest.mark.parametrize("first", [0, 1])
def test_rows_without_a_box_are_counted_whichever_comes_first(tmp_path, first):
    path = write_jsonl(tmp_path / "train.jsonl", MATH[first:])
    problems = instantiate(composed("data=math", f"data.path={path}", "data.num_validation=0").data).load()
    assert problems.report.num_without_answer == 1
    assert [row.answer for row in problems.train] == ["2", "\\frac{1}{2}"][first:]


def test_a_local_copy_is_read_in_the_columns_of_its_data_set(tmp_path):
    path = write_jsonl(tmp_path / "train.jsonl", [{"prompt": "Find $x$.", "solution": "34"}])
    [row] = instantiate(composed("data=dapo17k", f"data.path={path}").data).load().train
    assert (row.problem, row.answer) == ("Find $x$.", "34")
    with pytest.raises(ConfigError, match="has no answer"):
        ProblemSet(path=path).check()
    write_jsonl(tmp_path / "train.jsonl", [{"problem": "1 + 1?", "answer": "2", "solution": "3"}])
    [row] = instantiate(composed("data=dapo17k", f"data.path={path}").data).load().train
    assert row.answer == "2"  # the usual columns come first


@pytest.mark.parametrize("record", [{"problem": "1 + 1?", "gold": "2"}, {"problem": "1 + 1?", "answer": None}])
def test_a_file_without_answers_says_that_they_are_missing_and_not_the_problem(record, tmp_path):
    path = write_jsonl(tmp_path / "mine.jsonl", [record])
    with pytest.raises(ConfigError, match=rf":1 has no answer .*: its columns are {', '.join(record)}$"):
        instantiate(composed("data=gsm8k", f"data.path={path}").data).load()


def test_a_missing_hub_column_is_named(tmp_path):
    write_jsonl(tmp_path / "train.jsonl", RECORDS)
    with pytest.raises(ConfigError, match=r":1 has no answer \(target\): its columns are problem, answer"):
        ProblemSet(hub=HubDataset(hub_id=str(tmp_path), answer_column="target")).rows("set")


def test_without_the_hub_the_user_is_told_of_local_files(tmp_path, monkeypatch):
    for library in (datasets.config, huggingface_hub.constants):  # which read the environment when they are imported
        monkeypatch.setattr(library, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path)
    said = (
        r"^hub data set openai/gsm8k \(config main, split train\) cannot be loaded: .*give a local .jsonl or .parquet"
    )
    with pytest.raises(ConfigError, match=said):
        ProblemSet(hub=HubDataset(hub_id="openai/gsm8k", config="main")).rows("gsm8k")


def write_folder(folder, **records):
    for name, rows in records.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path.with_name(f"{path.name}-00000.parquet"))


def test_a_folder_with_maths_subjects_is_merged_by_split(tmp_path):
    def solved(problem):
        return [{"problem": problem, "level": "Level 5", "solution": rf"So $\boxed{{{len(problem)}}}$."}]

    write_folder(
        tmp_path,
        geometry__train=solved("abc"),
        algebra__train=solved("ab"),
        algebra__test=solved("a"),
        other=solved(""),
    )
    math = instantiate(composed("data=math").data.hub)
    rows = ProblemSet(path=str(tmp_path), hub=math).rows("math")
    assert [(row.id, row.problem, row.answer) for row in rows] == [("math-1", "ab", "2"), ("math-2", "abc", "3")]
    assert rows[0].columns == {"problem": "ab", "level": "Level 5", "solution": r"So $\boxed{2}$."}
    assert [row.problem for row in ProblemSet(path=str(tmp_path / "geometry"), hub=math).rows("g")] == ["abc"]
    with pytest.raises(ConfigError, match=r"split test\) cannot be loaded"):
        ProblemSet(path=str(tmp_path / "geometry"), hub=HubDataset(hub_id="x", split="test")).rows("g")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=r"empty .*cannot be loaded"):
        ProblemSet(path=str(tmp_path / "empty")).rows("e")


def test_a_folder_without_splits_is_read_whole(tmp_path):
    for name, record in zip("ba", RECORDS, strict=True):
        write_jsonl(tmp_path / f"{name}.jsonl", [record])
    assert [row.problem for row in ProblemSet(path=str(tmp_path)).rows("set")] == ["2 + 2?", "1 + 1?"]


def test_configurations_of_a_hub_data_set_are_merged(tmp_path):
    for subject in ("algebra", "geometry"):
        write_folder(tmp_path, **{f"{subject}__train": [{"problem": subject, "solution": r"\boxed{1}"}]})
    configs = [
        {"config_name": subject, "data_files": [{"split": "train", "path": f"{subject}/train-*"}]}
        for subject in ("algebra", "geometry")
    ]
    (tmp_path / "README.md").write_text(f"---\nconfigs: {json.dumps(configs)}\n---\n")
    layout = {"answer_column": "solution", "answer_is_boxed": True}
    hub = HubDataset(hub_id=str(tmp_path), config=["geometry", "algebra"], **layout)
    assert [(row.id, row.problem) for row in ProblemSet(hub=hub).rows("math")] == [
        ("math-geometry-1", "geometry"),
        ("math-algebra-1", "algebra"),
    ]


@pytest.mark.parametrize("answer", ["[4, 2]", [4, 2.0], ["4", "2"]])
def test_lists_are_lists_in_a_data_set_that_says_so(tmp_path, answer):
    (tmp_path / "own.jsonl").write_text(json.dumps({"problem": "Which?", "answer": answer}))
    rows = ProblemSet(path=str(tmp_path / "own.jsonl"), hub=HubDataset(hub_id="unused", answer_is_list=True)).rows(
        "own"
    )
    assert [row.answer for row in rows] == ["4, 2"]


def test_a_raw_dapo_folder_keeps_its_columns(tmp_path):
    record = {
        "data_source": "math_dapo",
        "prompt": [{"role": "user", "content": f"{DAPO_PREFIX}Find $x$.{DAPO_SUFFIX}"}],
        "reward_model": {"ground_truth": "34", "style": "rule"},
        "extra_info": {"index": "a"},
    }
    write_folder(tmp_path, **{"data__dapo-math-17k": [record]})
    (row,) = ProblemSet(path=str(tmp_path), hub=instantiate(composed("data=dapo17k").data.hub)).rows("dapo")
    assert (row.problem, row.answer) == ("Find $x$.", "34")
    assert row.columns == {name: value for name, value in record.items() if name != "prompt"}

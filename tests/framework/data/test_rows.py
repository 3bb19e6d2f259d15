"""What each raw layout means, and what is refused."""

import pytest

from apo_lightning.data.rows import DAPO_PREFIX, DAPO_SUFFIX, RecordLayout, Row, require_unique_ids, row_from_record
from apo_lightning.errors import ConfigError


def row(record, layout=None):
    return row_from_record(record, layout or RecordLayout(), where="set.jsonl:7", default_id="set-7")


@pytest.mark.parametrize("problem_column", ["problem", "question", "prompt"])
@pytest.mark.parametrize("answer_column", ["answer", "target"])
def test_the_usual_column_names_are_understood(problem_column, answer_column):
    assert row({problem_column: "1 + 1?", answer_column: "2"}) == Row(id="set-7", problem="1 + 1?", answer="2")


def test_a_conversation_may_begin_with_a_system_message():
    messages = [{"role": "system", "content": "Be brief. "}, {"role": "user", "content": "1 + 1?"}]
    expected = Row(id="set-7", problem="1 + 1?", answer="2", system="Be brief.")
    assert row({"prompt": messages, "reward_model": {"ground_truth": "2"}}) == expected


def test_dapos_instruction_is_taken_off_a_problem_that_is_plain_text():
    for column in ("prompt", "problem", "question"):
        assert row({column: f"{DAPO_PREFIX}Solve for $x$.{DAPO_SUFFIX}\n", "answer": "34"}).problem == "Solve for $x$."
    # str.lstrip with the instruction would eat "So" here, as it strips a set of characters.
    assert row({"prompt": f"{DAPO_PREFIX}So what is 2?{DAPO_SUFFIX}", "answer": "2"}).problem == "So what is 2?"
    # Once: what looks like it inside a problem is the problem's own.
    twice = f"{DAPO_PREFIX}{DAPO_PREFIX}Solve for $x$."
    assert row({"prompt": twice, "answer": "34"}).problem == f"{DAPO_PREFIX}Solve for $x$."


@pytest.mark.parametrize(
    ("given", "answer"),
    [(27, "27"), (27.0, "27"), (0.5, "0.5"), (-3, "-3"), ("27.0", "27.0"), (" 7 ", "7"), (2.0**70, str(2**70))],
)
def test_numbers_become_the_text_a_verifier_expects(given, answer):
    assert row({"problem": "p", "answer": given}).answer == answer


def test_of_a_worked_gsm8k_solution_the_number_after_the_hashes_is_the_answer():
    got = row({"question": "q", "answer": "half of 2,250 is <<2250/2=1125>>1125\n#### 1,125"})
    assert got.answer == "1125"
    assert row({"question": "q", "answer": "two of them\n#### 2, 3"}).answer == "2, 3"  # a list keeps its commas
    assert got.solution is not None
    assert got.solution.endswith("#### 1,125")


@pytest.mark.parametrize(("record_id", "kept"), [("2024-I-1", "2024-I-1"), (60, "60"), (None, "set-7")])
def test_a_record_keeps_its_own_id(record_id, kept):
    assert row({"id": record_id, "problem": "p", "answer": "1"}).id == kept


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"answer": "1"}, r"set.jsonl:7 has no problem \(problem, question or prompt\): its columns are answer"),
        ({"problem": "p", "solution": "34"}, "set.jsonl:7 has no answer"),
        ({"problem": None, "answer": "1"}, "set.jsonl:7 has no problem"),
        ({"problem": "p", "reward_model": {"style": "rule"}}, "set.jsonl:7 has no answer"),
        ({"problem": "  ", "answer": "1"}, "set.jsonl:7 has an empty problem"),
        ({"problem": "p", "answer": ""}, "set.jsonl:7 has an empty answer"),
        ({"problem": "p", "answer": "long\n#### "}, "set.jsonl:7 has nothing after its '####'"),
        ({"problem": "p", "answer": True}, "set.jsonl:7 has True as its answer"),
        ({"problem": "p", "answer": float("nan")}, "set.jsonl:7 has nan as its answer"),
        ({"problem": "p", "answer": ["1"]}, r"set.jsonl:7 has \['1'\] as its answer"),
        ({"problem": {"text": "p"}, "answer": "1"}, "set.jsonl:7 has .* as its problem"),
        ({"prompt": [], "answer": "1"}, "expected one user message"),
        ({"prompt": [{"role": "system", "content": "s"}], "answer": "1"}, "expected one user message"),
        ({"prompt": [{"role": "user", "content": "a"}] * 2, "answer": "1"}, "expected one user message"),
        (
            {"prompt": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], "answer": "1"},
            "expected",
        ),
        (
            {"prompt": [{"role": "system"}, {"role": "user", "content": "a"}], "answer": "1"},
            "None as its system message",
        ),
        (["p", "1"], "set.jsonl:7 holds .*: expected one object"),
        ({}, "its columns are none"),
    ],
)
def test_a_malformed_record_is_named_by_file_and_line(record, message):
    with pytest.raises(ConfigError, match=message) as error:
        row(record)
    assert "\n" not in str(error.value)


def test_two_rows_of_one_id_are_refused():
    rows = [Row(id="a", problem="p", answer="1"), Row(id="a", problem="q", answer="1")]
    with pytest.raises(ConfigError, match=r"set\.jsonl has two rows with the id 'a'"):
        require_unique_ids(rows, "set.jsonl")

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apo_lightning.errors import ConfigError
from apo_lightning.rewards import NumericReward


def status(completion: str, gold: str, take: str = "first") -> str:
    return NumericReward(take).score([completion], [gold])[0].status


@pytest.mark.parametrize(
    ("completion", "gold"),
    [
        (" 18", "18"),
        (" 18.\nNext: 4 + 4 = 9", "18"),
        ("18.0", "18"),
        ("+18", "18"),
        ("018", "18"),
        ("-3", "-3"),
        ("−3", "-3"),
        ("$-3", "-3"),
        (r"-\$3", "-3"),
        ("$1,234.50", "1234.5"),
        ("1,234,567", "1234567"),
        ("12/4 of it", "3"),
        ("-1/2", "-0.5"),
        (".5", "1/2"),
        ("0.1", "1/10"),
        (r"7, no: \boxed{18}", "18"),
        (r"\boxed{$1{,}800$.}", "1800"),
        (r"\boxed{18 \text{ cm}}", "18"),
        (r"\boxed{18}. Answer: 7", "18"),
        ("13 plus 5\n#### 18", "18"),
        ("7\n**Answer:** $18$.", "18"),
        ("answer: 18 apples", "18"),
        ("Answer: 20%", "20"),
    ],
)
def test_the_same_number_in_another_form_is_correct(completion: str, gold: str):
    assert status(completion, gold) == "correct"


@pytest.mark.parametrize(
    ("completion", "gold"),
    [
        ("19", "18"),
        ("-18", "18"),
        ("1", "18"),
        ("180", "18"),
        ("1,8", "18"),
        ("0.3333333333333333333333333333333333", "1/3"),
        ("9007199254740993", "9007199254740992"),  # equal as floats
        (r"18 is \boxed{19}", "18"),
        ("18\nAnswer: 19", "18"),
    ],
)
def test_another_number_is_incorrect(completion: str, gold: str):
    assert status(completion, gold) == "incorrect"


@pytest.mark.parametrize(
    "completion",
    [
        "",
        "eighteen",
        r"\boxed{}",
        r"18 is \boxed{eighteen}",
        r"\boxed{\sqrt{18}}",
        r"\boxed{18x}",
        r"\boxed{18, 19}",
        r"\boxed{\frac{18}{1}}",
        r"it is \boxed{18",  # cut at the token limit
        "Answer: thirteen plus 5 is 18",
        "18/0",
        "-",
        "$",
        "\x00",
    ],
)
def test_a_completion_that_states_no_single_number_is_unparsed(completion: str):
    assert status(completion, "18") == "unparsed"


def test_a_prefilled_sum_takes_the_first_number_and_a_derivation_the_last():
    text = "5 more than 13, that is 13+5 = 18"
    assert NumericReward("first").score([text], ["18"])[0].extracted == "5"
    assert NumericReward("last").score([text], ["18"])[0].extracted == "18"
    assert NumericReward("last").score(["13-5"], ["5"])[0].extracted == "5"


@given(st.fractions(), st.booleans())
def test_every_rational_equals_itself_and_not_its_successor(value: Fraction, boxed: bool):
    text = f"\\boxed{{{value}}}" if boxed else f" {value} "
    assert status(text, str(value)) == "correct"
    assert status(text, str(value + 1)) == "incorrect"


@given(st.integers())
def test_thousands_separators_change_nothing(value: int):
    assert status(f"{value:,}", str(value)) == "correct"


@pytest.mark.parametrize("take", ["first", "last"])
@pytest.mark.parametrize("unit", ["1", "1,234", "0.", "1/", "-", "$", "\\boxed{", "{", "Answer:", "1 ", "\x00", "٣"])
def test_a_megabyte_of_nonsense_is_no_number_and_takes_no_time(unit: str, take: str):
    assert status(unit * (1_000_000 // len(unit)), "18", take) in ("unparsed", "incorrect")


def test_a_number_too_long_for_python_to_read_is_unparsed():
    assert status("1" * 5000, "1") == "unparsed"
    assert status(f"\\boxed{{{'1' * 5000}}}", "1") == "unparsed"
    assert status("1/" + "1" * 5000, "1") == "unparsed"


def test_the_first_gold_answer_that_is_no_number_is_named_with_a_remedy():
    NumericReward().check_answers(["18", "1,234", "-3/4", "$5"])
    with pytest.raises(ConfigError, match=r"answer 1 of 3 is 'x\^2'.*reward=math_verify"):
        NumericReward().check_answers(["18", "x^2", "y"])
    assert status("18", "x^2") == "error"


def test_an_unknown_choice_is_refused():
    with pytest.raises(ConfigError, match="'middle'"):
        NumericReward("middle")

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apo_lightning.errors import ConfigError
from apo_lightning.rewards import NumericReward


def status(completion: str, gold: str, take: str = "first") -> str:
    return NumericReward(take).score([completion], [gold])[0].status


# status: completions, each of 18 or of the number before "|"
JUDGED = {
    "correct": [
        " 18", " 18.\nNext: 4 + 4 = 9", "18.0", "+18", "018", "-3|-3", "-3|−3", "-3|$-3", r"-3|-\$3",
        "1234.5|$1,234.50", "1234567|1,234,567", "3|12/4 of it", "-0.5|-1/2", "1/2|.5", "1/10|0.1",
        r"7, no: \boxed{18}", r"1800|\boxed{$1{,}800$.}", r"\boxed{18 \text{ cm}}", r"\boxed{18}. Answer: 7",
        "13 plus 5\n#### 18", "7\n**Answer:** $18$.", "answer: 18 apples", "20|Answer: 20%",
    ],
    "incorrect": [
        "19", "-18", "1", "180", "1,8", "1/3|0.3333333333333333333333333333333333",
        "9007199254740992|9007199254740993",  # equal as floats
        r"18 is \boxed{19}", "18\nAnswer: 19",
    ],
    "unparsed": [
        "", "eighteen", r"\boxed{}", r"18 is \boxed{eighteen}", r"\boxed{\sqrt{18}}", r"\boxed{18x}", r"\boxed{18, 19}",
        r"\boxed{\frac{18}{1}}",
        r"it is \boxed{18",  # cut at the token limit
        "Answer: thirteen plus 5 is 18", "18/0", "-", "$", "\x00",
    ],
}  # fmt: skip


@pytest.mark.parametrize(("verdict", "text"), [(verdict, text) for verdict, texts in JUDGED.items() for text in texts])
def test_a_number_in_any_form_is_correct_another_incorrect_and_no_single_one_unparsed(verdict: str, text: str):
    gold, _, completion = text.rpartition("|")
    assert status(completion, gold or "18") == verdict


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

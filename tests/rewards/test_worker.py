"""What is equal and what is not, without the processes."""

import pytest

from apo_lightning.rewards.worker import judge


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        (r"4 \times 10^{-24}", r"7 \times 10^{-22}"),  # both round to 0.000000
        ("0.003", "0.0030004"),
        (r"4 \times 10^{-24}", "0.0"),
        ("0.0", r"4 \times 10^{-24}"),
    ],
)
def test_numbers_that_agree_only_because_they_are_small_are_not_equal(gold: str, answer: str):
    assert judge(gold, answer) == "incorrect"


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        ("0", r"\sqrt{2} + \sqrt{3} - \sqrt{5 + 2\sqrt{6}}"),
        (r"\frac{1}{3}", "0.333333"),
        (r"6 \times 10^{-5}", "0.00006"),
        ("0.0", "0"),
        (r"\sqrt{2}", "1.414214"),
    ],
)
def test_a_rounded_decimal_is_still_equal(gold: str, answer: str):
    assert judge(gold, answer) == "correct"


def test_an_answer_that_sympy_refuses_to_compare_is_unparsed_and_no_error():
    assert judge("5", r"\frac{1}{0}") != "error"
    assert judge(r"05\!:\!00", "3") != "error"
    assert judge(r"05\!:\!00", r"05\!:\!00") == "correct"


@pytest.mark.parametrize("infinite", [r"\infty", r"-\infty", r"\frac{1}{0}"])
def test_infinities_can_be_compared(infinite: str):
    assert judge(infinite, infinite) == "correct"
    assert judge(infinite, "5") in ("incorrect", "unparsed")


def test_a_gold_answer_that_cannot_be_read_is_an_error():
    assert judge("", "5") == "error"

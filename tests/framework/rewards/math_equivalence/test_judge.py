"""What is equal and what is not, without the processes."""

import pytest

from apo_lightning.rewards.math_equivalence.judge import judge


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


@pytest.mark.parametrize("answer", [r"\varkappa_1^2", r"\varkappa = 7, 2"])
def test_the_last_number_of_what_cannot_be_read_is_not_taken_for_the_whole(answer: str):
    assert judge("2", answer) != "correct"


def test_equations_are_told_apart_by_a_solution_of_one():
    growth = r"\frac{d M}{d t} = \frac{10^{5} L_{\odot}}{0.007 c^{2} M_{\odot}^{6}} M^{6}"
    assert judge(growth, growth.replace("10^{5}", "10^{6}")) == "incorrect"
    assert judge("2x + y = 3", "4x + 2y = 6") == "correct"
    assert judge("2x + y = 3", "4x + 2y = 7") == "incorrect"


@pytest.mark.parametrize(
    ("gold", "answer", "verdict"),
    [
        (r"\sqrt{a b}", r"\sqrt{a} \sqrt{b}", "correct"),
        ("x", "|x|", "incorrect"),  # equal at positive numbers alone
        ("(x+1)^9", "(x+1)^8 (1+x)", "correct"),
        ("f(t) + 1", "1 + f(t)", "correct"),
        ("f(t)", "f(2t)", "incorrect"),
        ("f(t)", "g(t)", "incorrect"),
        ("(1+2i)^2 x", "(4i-3) x", "correct"),
        ("x + 10^{-4}", "x", "incorrect"),
    ],
)
def test_expressions_in_variables_are_compared_as_functions(gold: str, answer: str, verdict: str):
    assert judge(gold, answer) == verdict

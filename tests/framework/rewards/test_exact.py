from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apo_lightning.rewards.exact import read_number, same_number
from apo_lightning.rewards.normalise import normalise


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("007", "7"),
        ("-.5", "-0.5"),
        ("5.", "5"),
        ("1,234,567", "1234567"),
        (r"1{,}234", "1234"),
        (r"-12,\! 345.5", "-12345.5"),
        (r"12\,345", "12345"),
        (r"\frac34", "3/4"),
        (r"\dfrac{-3}{4}", "-3/4"),
        (r"-\frac{3}{-4}", "3/4"),
        (r"\frac{1.5}{2}", "3/4"),
        ("-1./3", "-1/3"),
        (r"1\frac{4}{5}", "9/5"),
        ("-2 1/2", "-5/2"),
        ("6e-5", "0.00006"),
        (r"6.25 \cdot 10^{-2}", "1/16"),
        (r"10^{3} \times 2.5", "2500"),
        (r"10^4", "10000"),
        (r"-10^4", "-10000"),
        (r"0.\overline{3}", "1/3"),
        (r"2.1\overline{45}", "2.1 45"),
        ("3 million", "3000000"),
        (r"5.4 \text{ cents}", "5.4"),
        (r"864 \mbox{ inches}^2", "864"),
        (r"45^{\circ}", "45"),
        (r"\$18.50", "18.5"),
        (r"20\%", "20"),
        ("7 apples", "7"),
        ("9.8 m/s^2", "9.8"),
        ("−3", "-3"),
    ],
)
def test_a_rational_number_is_read_however_it_is_written(text: str, value: str):
    # 2.1454545… = 21/10 + 45/990
    expected = Fraction(21, 10) + Fraction(45, 990) if value == "2.1 45" else Fraction(value)
    number = read_number(normalise(text))
    assert number is not None
    assert number.value == expected


@pytest.mark.parametrize(
    "text",
    ["", "-", ".", "x", r"\sqrt{4}", r"2\frac{3}{2}", "1/0", r"\frac{1}{0}", "1,23", "12,345,6", "1, 2", "2^{10}",
     "5 x", "5 m", "3 squared", "3 plus two", r"3 \text{ dozen}", "1" * 4097, r"10^{1000}", "1e9999999999", "٣"],
)  # fmt: skip
def test_what_is_no_rational_number_or_too_large_is_left_alone(text: str):
    assert read_number(normalise(text)) is None


def test_a_lone_letter_is_a_unit_only_where_no_variable_can_be():
    number = read_number("5 m", lone_units=True)
    assert number is not None
    assert number.value == 5
    assert read_number("5 x", lone_units=True) is None


@pytest.mark.parametrize(
    ("left", "right", "is_same"),
    [
        (r"\frac{1}{3}", "0.333333", True),
        (r"\frac{1}{3}", "0.33333", False),  # five digits
        (r"\frac{2}{3}", "0.666667", True),
        (r"\frac{2}{3}", "0.666666", False),  # cut off, not rounded
        (r"\frac{1}{300000}", "0.000003", False),  # one digit, zeros in front do not count
        ("58500", "58500.1", False),
        ("5", "5.0000001", False),
        ("4.6e-24", "7e-22", False),
        ("9007199254740993", "9007199254740992", False),  # equal as floats
    ],
)
def test_a_decimal_of_six_digits_stands_for_what_it_is_the_rounding_of(left: str, right: str, is_same: bool):
    numbers = read_number(normalise(left)), read_number(normalise(right))
    assert numbers[0] is not None
    assert numbers[1] is not None
    assert same_number(numbers[0], numbers[1]) == is_same
    assert same_number(numbers[1], numbers[0]) == is_same


@given(st.fractions(max_denominator=10**6))
def test_every_fraction_is_read_back_and_differs_from_its_neighbour(value: Fraction):
    number = read_number(rf"\frac{{{value.numerator}}}{{{value.denominator}}}")
    neighbour = read_number(f"{value.numerator + 1}/{value.denominator}")
    assert number is not None
    assert neighbour is not None
    assert number.value == value
    assert not same_number(number, neighbour)


@given(st.text(max_size=4200))
def test_no_text_makes_it_raise(text: str):
    read_number(normalise(text), lone_units=True)

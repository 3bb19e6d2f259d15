import pytest
from hypothesis import given
from hypothesis import strategies as st

from apo_lightning.rewards.extraction import MAX_ANSWER_CHARS
from apo_lightning.rewards.normalise import normalise, without_unit
from apo_lightning.rewards.wording import words


@pytest.mark.parametrize(
    ("answer", "normal"),
    [
        ("1e5", r"1 \times 10^{5}"),
        ("-2.5E-3", r"-2.5 \times 10^{-3}"),
        ("2e", "2e"),
        ("2e3x", "2e3x"),
        ("x2e3", "x2e3"),
        ("0x1e5", "0x1e5"),
        (r"$\boxed{3}$", "3"),
        (r"\left(3,4\right]", "(3,4]"),
        (r"\left\{1\right\}", r"\{1\}"),
        (r"a \leftarrow b", r"a \leftarrow b"),
        (r"\frac 59", r"\frac{5}{9}"),
        (r"\tfrac{270}7", r"\frac{270}{7}"),
        (r"\frac\pi 2", r"\frac{\pi}{2}"),
        (r"1,\!234 \times 5{,}678", r"1234 \times 5678"),
        (r"(1,\,200)", "(1, 200)"),
        (r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}"),
        (r"1-\frac{1}{\mathrm{e}}", r"1-\frac{1}{e }"),
        ("np.arcsin(10/13)", r"\arcsin(10/13)"),
        (r"$3$ and $\$4$", "3 and 4"),
    ],
)
def test_notation_is_brought_into_one_form(answer: str, normal: str):
    assert normalise(answer) == normal


@given(st.text(alphabet=r" \{}()[]$^_,.!0123456789abexfrctimsqlght%", max_size=60))
def test_a_normal_form_is_its_own_normal_form_up_to_blanks_in_numbers(text: str):
    normalise(normalise(text))  # never raises
    assert "$" not in normalise(text)


@pytest.mark.parametrize(
    ("quantity", "bare"),
    [
        (r"2\sqrt{5} \text{ meters}", r"2\sqrt{5}"),
        (r"15\text{ cm}^2", "15"),
        ("30^\\circ", "30"),
        ("3 apples", "3"),
        ("x", "x"),
        (r"x_\text{max}", r"x_\text{max}"),
        (r"y = \text{red}", r"y = \text{red}"),
        (r"\text{Ada} \text{Lovelace}", r"\text{Ada} \text{Lovelace}"),
        ("4 squared", "4 squared"),
        (r"4 \text{ more than } 3", r"4 \text{ more than } 3"),
        (r"5 \text{ million}", r"5 \times 10^{6}"),
    ],
)
def test_a_unit_is_dropped_and_nothing_else(quantity: str, bare: str):
    assert without_unit(quantity) == bare


@pytest.mark.parametrize(
    ("answer", "letters"),
    [
        (r"\text{(B)}", "b"),
        ("(B)", "b"),
        (r"\text{Tom-Tom}", "tomtom"),
        ("even", "even"),
        ("xy", None),
        ("x+y", None),
        (r"\text{3 cm}", None),
    ],
)
def test_words_are_told_from_mathematics(answer: str, letters: str | None):
    assert words(answer) == letters


@pytest.mark.parametrize(
    "unit", [" ", "m ", "a", r"\,", r"\text{", "{", "1,", "^", r"\left(", "1e5", "$", "and ", "m s/ "]
)
def test_a_long_answer_is_read_in_at_most_quadratic_time(unit: str):
    # In cubic time it would take hours.
    length = 4 * MAX_ANSWER_CHARS
    text = ("5 " + unit * length)[: length - 1] + "!"
    assert without_unit(normalise(text), lone_letters=True).startswith("5")

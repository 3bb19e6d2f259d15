import pytest
from hypothesis import given
from hypothesis import strategies as st

from apo_lightning.rewards.structure import Compound, take_apart, without_group


@pytest.mark.parametrize(
    ("answer", "compound"),
    [
        ("(1, 2)", Compound("tuple", ("1", "2"))),
        ("(3,4]", Compound("interval", ("3", "4"), "(]")),
        ("[3,4]", Compound("interval", ("3", "4"), "[]")),
        ("[1,2,3]", Compound("tuple", ("1", "2", "3"))),
        (r"\{1\}", Compound("set", ("1",))),
        (r"\{(1,2), (3,4)\}", Compound("set", ("(1,2)", "(3,4)"))),
        ("1, f(2,3)", Compound("list", ("1", "f(2,3)"))),
        (r"1 \text{ and } 2", Compound("list", ("1", "2"))),
        ("1, 2, and 3", Compound("list", ("1", "2", "3"))),
        (r"(0,9) \cup (9,36)", Compound("union", ("(0,9)", "(9,36)"))),
        (r"\pm 2", Compound("list", ("2", "- 2"))),
        (r"\frac{3 \pm \sqrt{5}}{2}", Compound("list", (r"\frac{3 + \sqrt{5}}{2}", r"\frac{3 - \sqrt{5}}{2}"))),
        (r"\{1\pm\sqrt{5},-2\}", Compound("set", (r"1+\sqrt{5}", r"1-\sqrt{5}", "-2"))),
        (r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}", Compound("matrix", ("1", "2", "3", "4"), "[2, 2]")),
        (r"\begin{bmatrix} 1 \\ 2 \end{bmatrix}", Compound("matrix", ("1", "2"), "[1, 1]")),
    ],
)
def test_an_answer_of_several_parts_is_taken_apart(answer: str, compound: Compound):
    assert take_apart(answer) == compound


@pytest.mark.parametrize(
    "answer",
    ["", "x", "(x+1)(x+2)", "f(1,2)", "(1+2)", "(1,2", "1,2)", "(1,,2)", ",", "sand", r"\{1,2\} + x", r"\pm 1 \pm 2"],
)
def test_a_single_expression_and_broken_brackets_are_left_whole(answer: str):
    assert take_apart(answer) is None


def test_parentheses_around_everything_are_dropped():
    assert without_group("((x+1))") == "x+1"
    assert without_group("(x+1)(x+2)") == "(x+1)(x+2)"
    assert without_group("(1,2)") == "(1,2)"
    assert without_group("(" * 100 + "x" + ")" * 100).startswith("(((")


@given(st.text(alphabet=r"()[]{},\pmandcup &12x", max_size=80))
def test_no_text_makes_it_raise_and_every_part_is_part_of_it(text: str):
    compound = take_apart(text)
    assert compound is None or all(compound.parts) or compound.kind == "matrix"

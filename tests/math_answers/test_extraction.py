import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from math_answers import equal, extract
from math_answers.extraction import final_boxes, last_boxed, last_line_after, stated_answer
from math_answers.text import MAX_CHARS, unwrap

ANSWER = re.compile("Answer:")


@pytest.mark.parametrize(
    ("text", "content"),
    [
        (r"\boxed{1} then \boxed{2}", "2"),
        (r"\boxed{\frac{1}{\sqrt{2}}}", r"\frac{1}{\sqrt{2}}"),
        (r"\boxed {5}", "5"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{[0, \infty\}} and more", None),  # \} is a set's brace, the box is closed by the next one
        (r"\boxed{a \\} b", r"a \\"),  # \\ is a line break, and } closes
        (r"\boxed{}", ""),
        (r"\boxed{1} and \boxed{2", None),
        (r"\boxed{42 \text{ or } \boxed{43}}", r"42 \text{ or } \boxed{43}"),  # a box around it says more
        (r"\boxed", None),
        (r"\boxed 5", "5"),
        (r"so $\boxed 2$", "2"),
        (r"\boxed2.", "2"),
        (r"so $\boxed 25$", "2"),  # as LaTeX reads it: the next token
        (r"$\boxed\pi$", r"\pi"),
        (r"$\boxed$ 5", None),
        (r"\boxedx", None),
        ("no box", None),
        ("", None),
    ],
)
def test_the_last_box_is_read_with_its_braces_balanced(text: str, content: str | None):
    assert last_boxed(text) == (content if content is not None or "more" not in text else r"[0, \infty\}")


@given(
    st.recursive(
        st.text("ab1+\n\x00", max_size=5),
        lambda inner: st.builds("{}{{{}}}{}".format, inner, inner, inner),
        max_leaves=20,
    )
)
def test_any_balanced_content_comes_back_whole(content: str):
    assert last_boxed(f"so \\boxed{{{content}}} }}{{") == content


@pytest.mark.parametrize(
    ("text", "contents"),
    [
        (r"\boxed{2}, \boxed{3}", ["2", "3"]),
        (r"$\boxed{(2,2)}$ and $\boxed{(6,2)}$.", ["(2,2)", "(6,2)"]),
        (r"$$\boxed{2}$$" + "\n\n" + r"$$\boxed{3}$$", ["2", "3"]),
        (r"\(\boxed{2}\),\quad \(\boxed{3}\)", ["2", "3"]),
        (r"\[\boxed{2} \text{ and } \boxed{3} \text{, or } \boxed{4}\]", ["2", "3", "4"]),
        (r"$k = \boxed{45}$ and $n = \boxed{2}$", ["45", "n = 2"]),
        (r"$\boxed{x}$ or $g(x)=\boxed{-x}$, $\theta_1 = \boxed{1}$", ["x", "g(x) = -x", r"\theta_1 = 1"]),
        (r"\boxed{1}. So \boxed{2}, \boxed{3}", ["2", "3"]),
        (r"\boxed{2}, not \boxed{3}", ["3"]),
        (r"\boxed{2}. \boxed{3}", ["3"]),
        (r"\boxed{2}\boxed{3}", ["3"]),
        (r"\boxed{2} \boxed{3}", ["3"]),
        (r"\boxed{2}, x + y = \boxed{3}", ["3"]),
        (r"\boxed{\boxed{2}, \boxed{3}}", ["2", "3"]),
        (r"\boxed{\boxed{2}}, \boxed{3}", ["3"]),
        (r"\boxed{2}," + " " * 64 + r"\boxed{3}", ["3"]),
        (r"\boxed{2}, \boxed{3", []),
        (r"\boxed{1}, \boxed{2}, \boxed{3}, \boxed{4}", ["2", "3", "4"]),
        ("none", []),
    ],
)
def test_boxes_with_separators_alone_between_them_end_a_completion_together(text: str, contents: list[str]):
    assert final_boxes(text, most=3) == contents


def test_the_answer_is_on_the_line_of_the_last_marker_or_on_the_next():
    assert last_line_after("Answer: 1\nAnswer: 2 apples \nbye", ANSWER) == "2 apples"
    assert last_line_after("**Answer:** 7", ANSWER) == "7"
    assert last_line_after("Answer:\n\n 7\n8", ANSWER) == "7"
    assert last_line_after("Answer: Answer: 7", ANSWER) == "7"
    assert last_line_after("Answer: ", ANSWER) is None
    assert last_line_after("7", ANSWER) is None


@pytest.mark.parametrize(
    ("answer", "bare"),
    [
        ("$5$", "5"),
        ("$5$.", "5"),
        (r"\(x^2\)", "x^2"),
        (r"\[ x \].", "x"),
        ("**$$7$$**", "7"),
        ("5.", "5"),
        ("5.0", "5.0"),
        ("$5$,", "5"),
        ("1,2;", "1,2"),
        ("$3$ and $4$", "$3$ and $4$"),
        ("$5", "$5"),
        ("$", "$"),
        ("", ""),
        (r"\left\{ x \right.", r"\left\{ x \right."),
    ],
)
def test_what_surrounds_an_answer_is_taken_off_and_nothing_else(answer: str, bare: str):
    assert unwrap(answer) == bare


@given(st.text("$.* 5()\\[]", max_size=30))
def test_unwrapping_twice_is_unwrapping_once(answer: str):
    assert unwrap(unwrap(answer)) == unwrap(answer)


# What a box that begins with the text holds, and what the last box of the text alone; the line behind a marker.
@pytest.mark.parametrize(
    ("unit", "begun", "alone", "has_line"),
    [
        ("{", None, None, True),
        ("}", "", None, True),
        (r"\boxed{", None, None, True),  # the last one is never closed
        (r"\boxed{}", "", "", True),
        ("\\", None, None, True),
        ("Answer:", None, None, False),  # behind the last marker there is nothing
        ("$", None, None, False),  # display maths with nothing in it
        (" ", None, None, False),
        ("\x00", None, None, True),
        ("1", None, None, True),
        ("\n*", None, None, False),
    ],
)
def test_a_megabyte_of_anything_is_read_in_linear_time(unit: str, begun: str | None, alone: str | None, has_line: bool):
    # In quadratic time it would take hours.
    text = unit * (1_000_000 // len(unit))
    assert last_boxed(r"\boxed{" + text) == begun
    assert last_boxed(text) == alone
    assert last_line_after("Answer:" + text, ANSWER) == (text if has_line else None)
    answer = unit * (MAX_CHARS // len(unit)) + "1"
    assert unwrap(answer) == answer.strip()


STUCK = [
    *("answer" + " " * 10**6, "answer is" + "\n" * 10**6, "答案" * 10**6, "answer **" * 10**5),
    "</b>" * 10**5 + "Answer",
]


@pytest.mark.parametrize("completion", STUCK, ids=lambda text: repr(text[:12]))
def test_a_policy_that_repeats_itself_is_read_at_once(completion: str):
    # With a search that takes the square of the length, the suite would not end.
    assert extract(completion) is None
    assert extract(rf"{completion} \boxed{{7}}") == "7"


@pytest.mark.parametrize(
    "completion",
    [
        *("**Answer: 12**", "**Final Answer: 12**", "*Answer:* 12", "The answer is: 12", "答案是：12", "**答案：12**"),
        "<p>Answer: 12</p>",
    ],
)
def test_marks_around_marker_and_answer_are_no_part_of_it(completion: str):
    assert extract(completion) == "12"


@pytest.mark.parametrize(
    "completion",
    ["", "42", "the result is 42", r"\boxed{42", "Answer:", "Answer: 42 \\boxed{42", r"\boxed{" + "1" * 4097 + "}"],
)
def test_an_answer_that_is_not_stated_or_too_long_is_none(completion: str):
    assert extract(completion) is None
    assert extract(completion, "42") is None


@pytest.mark.parametrize(
    ("completion", "answer"),
    [
        (r"so it is \boxed{042}.", "042"),
        (r"Answer: 1, or \boxed{2}", "2"),
        (r"\boxed{2}, so Answer: 1", "2"),
        ("thus\nAnswer: $GOLD$.", "$GOLD$."),
        (r"**Answer:** $\frac12$", r"$\frac12$"),
        ("**Answer**: 7", "7"),
        ("ANSWER: 7", "7"),
        ("答案：7", "7"),
        ("Answer:\n\\[\nx +\ny\n\\]", "x +\ny"),
        ("Answer:\n$$\n7\n$$ as said", "7"),
        ("Answer: $$7", None),
    ],
)
def test_the_box_comes_first_then_the_line_behind_the_marker(completion: str, answer: str | None):
    assert stated_answer(completion) == answer
    assert extract(completion) == answer


# Each a gold answer and a completion.
SEVERAL_RIGHT = [
    ("2, 3", r"\boxed{2}, \boxed{3}"),
    ("2,3", r"so $x = \boxed{3}$ or $x = \boxed{2}$."),
    (r"\{2, 3\}", r"\boxed{2} and \boxed{3}"),
    (r"2 \text{ or } 3", r"\boxed{2} \text{ and } \boxed{3}"),
    ("(2,2), (6,2)", r"\boxed{(2,2)} and \boxed{(6,2)}"),
    ("(2,2), (6,2)", r"First \boxed{1}. They are $\boxed{(6,2)}$, $\boxed{(2,2)}$."),
    ("k=45, n=2", r"\boxed{k=45}, \boxed{n=2}"),
    ("k=45, n=2", r"$k=\boxed{45}$ and $n=\boxed{2}$"),
    (r"1 \pm \sqrt{5}", r"$\boxed{1+\sqrt{5}}$ or $\boxed{1-\sqrt{5}}$"),
    (r"\{1\pm\sqrt{5},-2\}", r"$\boxed{1+\sqrt{5}}$, $\boxed{1-\sqrt{5}}$, $\boxed{-2}$"),
    (r"\text{B, E, and G}", r"\boxed{B}, \boxed{E} and \boxed{G}"),
    ("2, 3", r"\boxed{$2$.}, \boxed{$3$.}"),
    ("2, 3", r"\boxed{5}, \boxed{2, 3}"),  # the last box is the whole answer
    ("3", r"\boxed{2}, \boxed{3}"),  # a single gold keeps the last box
    ("(2, 3)", r"\boxed{(0, 1)}, \boxed{(2, 3)}"),  # a point is single
    ("58,500", r"\boxed{1} or \boxed{58,500}"),
]
SEVERAL_WRONG = [
    ("2, 3", r"\boxed{2}, \boxed{2}"),
    ("2, 3", r"\boxed{2}, \boxed{4}"),
    ("2, 3", r"\boxed{1}, \boxed{2}, \boxed{3}"),
    ("2, 3", r"\boxed{2}, \boxed{3}, \boxed{2}"),
    ("2, 3", r"\boxed{2}. No, it is \boxed{3}"),
    ("2, 3", r"\boxed{2} \boxed{3}"),
    ("2, 3", r"\boxed{2}, \boxed{3}, so \boxed{6}"),
    ("2, 3", r"\boxed{2}, \boxed{3"),
    ("2", r"\boxed{2}, \boxed{3}"),
    ("k=45, n=2", r"\boxed{n=45}, \boxed{k=2}"),
    ("k=45, n=2", r"$n=\boxed{45}$ and $k=\boxed{2}$"),
    ("(2,2), (6,2)", r"\boxed{(2,2)} and \boxed{(2,6)}"),
    ("(2, 3)", r"\boxed{2}, \boxed{3}"),  # two numbers need not be a point
    ("58,500", r"\boxed{58}, \boxed{500}"),
    (r"(-\infty, 2) \cup (5, \infty)", r"\boxed{(-\infty, 2)}, \boxed{(5, \infty)}"),
]


@pytest.mark.parametrize(("gold", "completion"), SEVERAL_RIGHT)
def test_boxes_that_end_a_completion_together_are_one_answer_where_the_gold_has_as_many_parts(
    gold: str, completion: str
):
    answer = extract(completion, gold)
    assert answer is not None
    assert equal(gold, answer)


@pytest.mark.parametrize(("gold", "completion"), SEVERAL_WRONG)
def test_other_boxes_are_not_combined(gold: str, completion: str):
    answer = extract(completion, gold)
    assert answer is None or not equal(gold, answer)

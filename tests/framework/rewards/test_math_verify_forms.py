"""Forms in which models write right and wrong answers, by what makes them hard. Whole verifier, real processes."""

from collections.abc import Iterator

import pytest

from apo_lightning.rewards import MathVerifyReward


@pytest.fixture(scope="module")
def reward() -> Iterator[MathVerifyReward]:
    reward = MathVerifyReward(num_workers=2, timeout_s=60.0, memory_limit_gib=1.0)
    yield reward
    reward.close()


NESTED_ROOTS = r"\frac{\sqrt{\sqrt{11}+\sqrt{194}}}{15+2\sqrt{33}}"
LOGARITHMS = r"\frac{\log 2}{\log 2-\log 3}"

# gold: right answers
SAME: dict[str, dict[str, list[str]]] = {
    "complex constants": {
        r"\frac{1}{5}+\frac{3}{5}i": [r"\frac{1+3i}{5}", r"\frac{3i+1}{5}", "0.2+0.6i", r"\frac15 + \frac{3i}{5}"],
        "292i": [r"292 \cdot i", r"292\mathrm{i}", r"146i \cdot 2"],
        "6-5i": ["-5i+6", "6 + -5i", r"6 - 5 \cdot i", "z = 6-5i"],
        "1+2i": ["i(2-i)", "1 + i + i", r"1+2\sqrt{-1}", r"1 + 2\mathbf{i}", r"1 + 2\imath"],
        "-1": ["i^2", r"e^{i\pi}"],
        r"\frac{1}{2}+\frac{\sqrt{3}}{2}i": [r"e^{i\pi/3}", r"\cos 60^\circ + i \sin 60^\circ"],
        "3+4i, 3-4i": [r"3 \pm 4i", "3-4i, 3+4i"],
        r"\frac{4 A}{3+3 i} e^{i t}": [r"\frac{4A(1-i)}{6}e^{it}"],
        r"2\mathbf{i}+3\mathbf{j}": [r"3\mathbf{j}+2\mathbf{i}"],
    },
    "slow constants": {
        NESTED_ROOTS: [r"\frac{\sqrt{\sqrt{194}+\sqrt{11}}}{2\sqrt{33}+15}"],
        LOGARITHMS: [r"\frac{\ln 2}{\ln 2-\ln 3}", r"-\frac{\log 2}{\log 3-\log 2}", r"\frac{1}{1-\log_2 3}"],
        "2^{100}": ["4^{50}", "1267650600228229401496703205376"],
        "0": [r"\sin \pi", r"e^{i\pi}+1", r"\sqrt{2}+\sqrt{3}-\sqrt{5+2\sqrt{6}}"],
        "-2": [r"\sqrt[3]{-8}", "(-8)^{1/3}"],
        r"\sqrt{2}": ["1.41421", "1.414214"],
        r"\frac{\pi}{3}": [r"0.333333\pi", "1.047198"],
    },
    "equals signs": {
        "5": [
            *("x=5", "5=x", "a=b=5", "n = 2+3 = 5", "2+3=5", r"I_{\max}=5", "f(x)=5", "f(3) = 5", "x_1=5", "x'=5"),
            *(
                r"\alpha = 5",
                r"\angle ABC = 5",
                r"m\angle A = 5^\circ",
                r"\overline{AB}=5",
                "AB=5",
                "|AB|=5",
                "[ABC]=5",
            ),
            *(r"\text{Area} = 5 \text{ cm}^2", "Area = 5", "P(A)=5", r"\hat{x}=5", r"x \in \{5\}", "面积=5"),
        ],
        "2,3": [r"x = 2 \text{ or } x=3", "x=2, x=3", "x_1=2, x_2=3", r"x = 2 \text{ or } 3"],
        "(1,2)": ["(x,y)=(1,2)", "x=1, y=2"],
        "x=5": ["5", "5=x"],
        "y=2x+3": ["2x+3", "2x+3=y", "y-2x=3"],
        "58,500": ["x = 58,500"],
        "[-2,7]": [r"-2 \le x \le 7"],
    },
    "thousands": {
        r"\frac{2469}{20,000}": [r"\frac{2469}{20000}", "0.12345", "2469/20,000", r"\frac{2,469}{20,000}"],
        "1/2,000": ["1/2000", r"\frac{1}{2000}", "0.0005", r"\frac{1}{2,000}", "1/2{,}000"],
        "32": [r"\sqrt{1,024}"],
    },
    "text": {
        "204": [
            r"\text{204}",
            r"\mathrm{204}",
            r"\mathbf{204}",
            r"\bf{204}",
            r"{\bf 204}",
            r"\text{$204$}",
            r"\text{204 cm}",
        ],
        r"-\frac{1}{2}": [r"\text{-1/2}", r"\text{-0.5}", r"\mathbf{-\frac{1}{2}}"],
        r"\text{B, E, G}": ["B, E, G", r"\text{G, E, B}", r"\text{B}, \text{E}, \text{G}", r"\text{B, E, and G}"],
        r"\text{June 20}": ["June 20", r"\text{June }20", r"\text{June 20.}", "June 20th"],
        r"\text{1:03 PM}": ["1:03 PM", r"1:03 \text{ p.m.}", r"1\!:\!03 \text{ PM}", r"1{:}03\text{ PM}", "1:03pm"],
        r"\text{Softball, Kickball, Picnic}": ["Softball, Kickball, Picnic"],
        r"\text{A5}_{11}": ["A5_{11}"],
    },
    "braces, names and commas": {
        r"\{1,2\}": ["{1,2}", "{2, 1}"],
        "{1,2}": [r"\{2, 1\}"],
        r"I_{\max}=X": ["I_{max}=X", r"I_{\text{max}}=X", r"I_\max=X", "X"],
        r"k_{\text{B}}T": ["k_B T", r"k_\text{B} T", "T k_B", r"k_{\rm B}T"],
        "5": ["5,", "5;", "{5}"],
        "5,": ["5"],
        "(1,2)": ["(1,2),"],
        "I R": ["R I"],
    },
    "degrees inside functions": {
        r"\frac{1}{2}": [r"\sin 30^\circ", r"\sin(30^\circ)", r"\cos 60^{\circ}", r"\sin{30^\circ}", "\\sin 30°"],
        r"\tan 15^\circ": [r"2-\sqrt{3}", r"\tan(15^\circ)", r"\tan\frac{\pi}{12}"],
        r"2\sin 40^\circ": [r"2 \cos 50^\circ", r"2\sin\frac{2\pi}{9}"],
    },
    "Chinese": {
        "5": [
            "5米",
            "5 厘米",
            r"5\text{米}",
            r"\text{5 米}",
            "5平方米",
            "5元",
            "5 克/升",
            "5 度",
            "5。",
            "５",
            "5 cm²",
            "5千米",
        ],
        "5米": ["5", r"5 \text{ 米}", "5m"],
        r"2\sqrt{3}": ["2\\sqrt{3}厘米"],
        "50000": ["5万", "5 万元", r"5\text{万}"],
        "10": ["10％"],
        "2,3": ["2，3", "2、3", "2和3", "2或3"],
        "(1,2)": ["（1，2）"],
    },
}

# gold: wrong answers
DIFFERENT: dict[str, dict[str, list[str]]] = {
    "complex constants": {
        "6-5i": ["6+5i", "-6+5i", "5-6i", "6-5k", "6-5", "6", "11"],
        "292i": ["292", "-292i", "293i"],
        "1+2i": ["1-2i", "2+i", "3", "1+2x"],
        "292": ["292i"],
        "2i+3j": ["3i+2j", "-2i+3j"],
        r"\frac{4 A}{3+3 i} e^{i t}": [r"\frac{4A}{3-3i}e^{it}"],
        "IR": [r"\sqrt{-1}R", "iR"],
    },
    "slow constants": {
        NESTED_ROOTS: [r"\frac{\sqrt{\sqrt{194}+\sqrt{11}}}{2\sqrt{33}+16}"],
        LOGARITHMS: [r"\frac{\log 2}{\log 3-\log 2}", r"\frac{\log 3}{\log 2-\log 3}"],
        "10^{400}": ["10^{400}+1"],
        "0": ["10^{-50}", r"\frac{1}{2^{1000}}"],
        r"\sqrt{2}": ["1.4142", "1.414213", r"\sqrt{2}+10^{-7}"],
        r"\pi R^2": [r"\pi r^2"],
        "x^T": ["x"],
    },
    "equals signs": {
        "0": ["x+y+z=0", "2x = 0", "x^2=0", "f(x) + 1 = 0", r"\sin x = 0", "0=x+y"],
        "13": ["n+1=13", "13=n+1", "n^2 = 13", "|x|=13", r"\sqrt{x}=13", "x/2=13"],
        "5": [
            "2x=5",
            "a+b=5",
            "xy=5",
            "n(n+1)=5",
            "-x=5",
            r"\frac{x}{2}=5",
            "x>5",
            r"x \neq 5",
            "x=4=5",
            "5=3",
            "x=5, y=6",
        ],
        "-50": ["4x-5y=-50", "-50=4x-5y"],
        "2,3": ["x=2, 2x=3", "x=2", r"x=2 \text{ or } x=4"],
        "2x=5": ["5"],
        "x+y+z=0": ["0", "x+y-z=0"],
        "x=5": ["y=5", "2x=5"],
    },
    "thousands": {
        r"\frac{2469}{20,000}": [r"\frac{2469}{20}", r"\frac{2469}{2,000}"],
        "1/2,000": ["1/2", "(1/2, 0)", "2000"],
        "58,500": ["(58,500)", r"\{58,500\}"],
    },
    "text": {
        "204": [r"\text{205}", r"\text{2040}", r"\text{-204}", r"\text{204 or 205}"],
        "12": [r"\text{12 hours 30 minutes}", r"12\text{ hours 30 minutes}"],
        r"\text{B, E, G}": [r"\text{B, E}", r"\text{B, E, F}", "B,E,G,H"],
        r"\text{June 20}": [r"\text{June 21}", "20", r"\text{July 20}", r"\text{June 200}"],
        r"\text{1:03 PM}": [r"\text{1:03 AM}", r"\text{1:04 PM}", r"\frac{1}{3}"],
        r"5 \text{ p.m.}": ["5 a.m."],
        r"\text{Softball, Kickball, Picnic}": ["Kickball, Softball, Picnic"],
    },
    "braces, names and commas": {"{1,2}": ["(1,2)", "{1,3}", "12"], r"k_{\text{B}}T": ["k_C T", "k T", "k_b T"]},
    "degrees inside functions": {
        r"\frac{1}{2}": [r"\sin 30", r"\sin 60^\circ"],
        r"2\sin 40^\circ": [r"2\sin 40", r"2\sin 41^\circ"],
    },
    "Chinese": {"5": ["50米", "5万", "6米", "5个半", "5分之一", "5或6", "5千"]},
}


def judged(reward: MathVerifyReward, cases: dict[str, list[str]]) -> list[tuple[str, str, str]]:
    pairs = [(gold, answer) for gold, answers in cases.items() for answer in answers]
    verdicts = reward.score([rf"so \boxed{{{answer}}}" for _, answer in pairs], [gold for gold, _ in pairs])
    return [(gold, answer, verdict.status) for (gold, answer), verdict in zip(pairs, verdicts, strict=True)]


@pytest.mark.parametrize("form", SAME)
def test_a_right_answer_is_accepted_in_every_form(reward: MathVerifyReward, form: str):
    assert [case for case in judged(reward, SAME[form]) if case[2] != "correct"] == []


@pytest.mark.parametrize("form", DIFFERENT)
def test_a_wrong_answer_of_the_same_form_is_refused_and_in_time(reward: MathVerifyReward, form: str):
    assert [case for case in judged(reward, DIFFERENT[form]) if case[2] not in ("incorrect", "unparsed")] == []


def test_a_box_without_braces_holds_the_next_token(reward: MathVerifyReward):
    completions = [r"so $\boxed 2$", r"\boxed2.", r"\boxed 25"]
    assert [verdict.extracted for verdict in reward.score(completions, ["2"] * 3)] == ["2"] * 3


@pytest.mark.parametrize("answer", [r"9^{9^{9^9}}", r"(10^{10})!", r"7^{7^{7^7}} \mod 100", r"x = 10^{10^{10}}"])
def test_a_tower_of_powers_costs_no_worker(reward: MathVerifyReward, answer: str):
    reward.score([r"\boxed{\sqrt{2}}"], ["2"])  # a worker is up
    num_started = reward.pool.num_started
    assert reward.score([rf"\boxed{{{answer}}}"], [r"\frac{1}{3}"])[0].status == "unparsed"
    assert reward.pool.num_started == num_started


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


def test_boxes_that_end_a_completion_together_are_one_answer_where_the_gold_has_as_many_parts(reward: MathVerifyReward):
    pairs = [*SEVERAL_RIGHT, *SEVERAL_WRONG]
    verdicts = reward.score([completion for _, completion in pairs], [gold for gold, _ in pairs])
    judged = list(zip(pairs, verdicts, strict=True))
    assert [pair for pair, verdict in judged[: len(SEVERAL_RIGHT)] if verdict.status != "correct"] == []
    assert [pair for pair, verdict in judged[len(SEVERAL_RIGHT) :] if verdict.reward != 0.0] == []
    assert verdicts[0].extracted == "2, 3"

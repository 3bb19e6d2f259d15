"""Answers that ask for all time and memory, or that are programs: each is judged at once, and nothing of it is run."""

import itertools
import json
import os
import signal
import subprocess
import sys
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from math_answers import explain, tables
from math_answers.expressions import FRACTIONS

MOST_S = 2.0
"""CPU time for one answer [s]."""


def nested(opening: str, closing: str, depth: int, inside: str = "2") -> str:
    return opening * depth + inside + closing * depth


LARGE = [
    *(r"9^{9^{9^9}}", r"(10^{10})!", r"7^{7^{7^7}} \mod 100", r"x = 10^{10^{10}}", "9**9**9**9x", "((99!)!)!"),
    *(r"10^{10^{10}}, x = 8^{9^{9^9}} = 7^{9^9}", ", ".join(f"9^{{9^{{9^{n}}}}}" for n in range(2, 6))),
    *(r"\binom{30000000}{15000000}", r"\binom{30000000}{15000000}, \binom{30000000}{15000001}, \gcd(9^{9^9}, 7)"),
    *(
        r"\gcd(9^{9^9}, 6)",
        r"\gcd(2^{30000000000}, 3)",
        r"2^{10^{20}}",
        r"2^{-10^{20}}",
        r"x^{10^{10}}",
        r"i^{10^{20}}",
    ),
    *(r"1^{10^{30}}", r"(-1)^{10^{30}}", r"(-1)^{10^{3999}+1}", r"1.0000001^{10^{10}}", r"(1+10^{-3999})^{10^{3999}}"),
    *("9" * 4096, "9" * 5000, "0." + "9" * 4000, "1/" + "9" * 4000, "1e999", "1e99999999", "10^{-1e999}", "10^{1e999}"),
    *("6000!", "2000.5!", "(x+1000)!", "6000!+" * 50 + "1", "6000!*6000!*6000!", r"\gcd(6000!, 5999!)"),
    *(r"6000! \bmod 5999!", r"\max(6000!, 5999!)", "x!" * 100, "2" + "!" * 50, "x" + "!" * 1000),
    *(r"\binom{20000}{10000}", r"\binom{20000}{10000}" * 80, r"\binom{x}{10^9}", r"\binom{10^{9}}{x}"),
    *(r"\binom{10^{9}+x}{10^{9}}", r"\binom{10^{20}}{10^{19}}", r"\binom{-10^{9}}{10^{8}}", r"\binom{0.5}{10^{9}}"),
    *(r"x^{1999}", r"(x+1)^{1000}", r"\lcm(" + ",".join(map(str, range(1, 350))) + ")", r"\gcd(10^{300}x, 7)"),
]
FUNCTIONS = [
    *(r"\sin(10^{3999})", r"\sin(10^{4001})", r"\tan(10^{3000})", r"\sin(e^{9000})", r"\cis(10^{3999})"),
    *(r"e^{i 10^{3999}}", r"e^{e^{e^{e^{x}}}}", r"\exp(\exp(\exp(10)))", r"e^{9000}", r"\cosh(9000)", r"e^{x^{x^{x}}}"),
    *(r"\ln(10^{19000})", r"\ln\ln\ln 10^{10^{10}}", r"\arcsin(10^{3999})", r"\arctan(10^{3999})"),
    r"\lfloor e^{9000} \rfloor",
    *(r"\zeta(\frac{1}{2}+10^{6} i)", r"\zeta(\frac12+10^{9}i)", r"\zeta(10^{9})", r"\zeta(-10^{9})"),
    r"\zeta(-3001.5)",
    *(r"\zeta(1)", r"\zeta(1.0000001)", r"\zeta(x)^{100}", r"(\zeta(\frac12+10^{6}i), 1)", r"\sgn(x)^{x}"),
    *(r"\sqrt[10^{9}]{2}", r"\sqrt[0]{2}", r"2^{1/10^{3999}}", r"\lfloor 10^{3999}\pi \rfloor"),
    r"10^{3999}x - 10^{3999}x + 1",
    *(r"\frac{1}{0}", "1/0", r"\infty-\infty", "0^0", "0^{-1}", r"\log 0", r"\tan 90^\circ"),
    *(r"\int_0^1 e^{e^{x^{2}}} dx", r"\lim_{x\to 1} \sin(1/x)", r"\sin " * 300 + "x", r"\sin" * 39 + " 3"),
]  # fmt: skip
SUMS = [
    *(r"\sum_{k=1}^{10^9} \frac{1}{k+\sqrt{k}}", r"\sum_{k=-10^{20}}^{10} k", r"\sum_{k=1}^{1000} k!"),
    *(r"\prod_{k=1}^{1000} k^k", r"\prod_{k=1}^{1000} k!", r"\sum_{k=1}^{1000} \frac{1}{k!}"),
    r"\sum_{k=1}^{1000} x^{k}",
    *(r"\sum_{k=1}^{1000} \frac{1}{k^{k}}", r"\sum_{k=1}^{1000} \frac{1}{k^{30}+1}"),
    r"\sum_{k=1}^{1000} \sin(k^{900})",
    *(r"\sum_{k=1}^{1000} \zeta(k+x)", r"\sum_{k=1}^{1000} \sum_{j=1}^{1000} \sqrt{j k}"),
    r"\sum_{k=1}^{1000} \sum_{j=1}^{1000} \sum_{i=1}^{1000} i j k",
]  # fmt: skip
LISTS = [
    *(",".join(["1"] * 400), ",".join(f"x_{n}" for n in range(200)), ",".join(rf"\sqrt{{{n}}}" for n in range(40))),
    *(r"\pm 1" * 60, r"\pm x" * 200, r"\pm" * 400 + "1", "(" + ",".join([r"\pm 1"] * 100) + ")"),
    *("+".join([r"\sqrt{2\pm x}"] * 30), ",".join([r"\pm x \pm y \pm z \pm u"] * 30)),
    *(r"\begin{pmatrix}" + body + r"\end{pmatrix}" for body in (" & ".join("x" * 350), r" \\ ".join(["x & y"] * 120))),
    *(nested(r"\begin{pmatrix}", r"\end{pmatrix}", 60), "(0,1)" + r" \cup (2,3)" * 100),
    "(0,1)" + r" \cup (0,1)" * 300,
    *("1<x<2" + "<3" * 300, r"\{x \mid x > 10^{3999}\}", r"(0, 9^{9^{9}})", r"x > 9^{9^{9}}", r"[6000!, \infty)"),
    *(r"x \in " * 300 + "R", "x=" * 399 + "1", "=".join([r"\sqrt{x}"] * 200), "1:" * 399 + "1", "1," * 2000),
]  # fmt: skip
LONG = [
    *(nested(r"\sqrt{", "}", depth) for depth in (38, 500)),
    *(nested(r"\frac{1}{1+", "}", 38, "x"), nested("(", ")", 200) + "+x", nested("(1,", ")", 300)),
    nested("(1,", ")", 1000),
    *(nested(r"\{", r"\}", 600), nested("{", "}", 2000), nested("|", "|", 1000), "|" * 799, r"\lfloor " * 300),
    *(nested(r"\text{", "}", 400), r"\text{" * 500, nested(r"\boxed{", "}", 400), nested("x_{", "}", 400), "x_" * 400),
    *(nested("f(", ")", 39), nested("f(", ")", 300), nested(r"\log_{", "}", 39), nested("2^{", "}", 12)),
    "2" + "^{2}" * 11,
    *("-" * 4000 + "1", "+".join("x" * 400), "x" * 400, "x" * 4000, "*".join("x" * 400), "/".join("x" * 400)),
    "x^" * 400 + "x",
    *("x" + "'" * 1000, "^{2}" * 200, r"\frac" * 400 + "1" * 400, r"\sqrt" * 400 + "2", r"\vec" * 400 + "a"),
    r"\(" * 2000,
    *("5 " + "m " * 2000, "5" + " billion" * 400, "5" + " m/s" * 200, "五万" * 500, "万" * 4000, "5" + "万" * 700),
    *("1,000" * 500, "1 000" * 800, "1" + " 000" * 1000, "1{,}000" * 400, r"1\,000" * 400, "1e5" * 500),
    *("√" * 4000, "²" * 4000, "½" * 400, "%" * 4000, "$" * 4000, "*" * 4000, "`" * 4000, "." * 4000, " " * 4000 + "x"),
    *(rf"0.\overline{{{'1' * 4000}}}", "\x00", "\ud800", "a\nb", "\u2028", "\\", "\x01" * 4096),
    *("5 " + unit * 4000 for unit in (r"\,", r"\text{", "1,", "^", r"\left(", "and ", "m s/ ")),
    *(("5 " + unit * 4000)[:4095] + "!" for unit in ("m ", "a", r"\,", "{", "1,", "^", r"\left(", "and ", "m s/ ")),
]  # fmt: skip
GOLDS = ["2", "x", r"\sqrt{2}", "(0,1)", "1, 2", r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}"]


def judged(pairs: list[tuple[str, str]]) -> list[str]:
    """The status of each pair, or what went wrong, up to the first that does not end.

    In a fork, which ends with what takes too long.
    """
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        try:
            for gold, answer in pairs:
                signal.setitimer(signal.ITIMER_PROF, 2 * MOST_S)
                os.write(writing, f"{judged_here(gold, answer)}\n".encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as replies:
        found = replies.read().splitlines()
    os.waitpid(child, 0)
    return found if len(found) == len(pairs) else [*found, "did not end"]


def judged_here(gold: str, answer: str) -> str:
    start = time.process_time()
    try:
        status = explain(gold, answer).status
    except BaseException as error:
        return f"raised {type(error).__name__}: {error}".replace("\n", " ")[:200]
    time_s = time.process_time() - start
    return status if time_s < MOST_S else f"took {time_s:.1f} s"


def pairs(answer: str) -> list[tuple[str, str]]:
    """Of an answer as the gold one and as the answer to others, and to what it nearly is."""
    others = [pair for gold in GOLDS for pair in ((gold, answer), (answer, gold))]
    return [*others, (answer, f"{answer}+1"), (f"{answer}+0", answer), (answer, f"-{answer}"), (answer, answer)]


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(answer, id=f"{kind}: {answer[:60]}")
        for kind, answers in {
            "large": LARGE,
            "functions": FUNCTIONS,
            "sums": SUMS,
            "lists": LISTS,
            "long": LONG,
        }.items()
        for answer in answers
    ],
)
def test_an_answer_of_huge_work_is_judged_within_two_seconds_and_raises_nothing(answer: str):
    asked = pairs(answer)
    known = ("correct", "incorrect", "unparsed", "timeout", "error")
    found = zip(asked, judged(asked), strict=False)
    assert [(gold[:80], text[:80], status) for (gold, text), status in found if status not in known] == []


@pytest.mark.parametrize("gold", [r"\frac{1}{3}", "2", "x"])
@pytest.mark.parametrize("answer", LARGE[:13])
def test_a_tower_of_powers_is_no_number(gold: str, answer: str):
    assert explain(gold, answer).status in ("incorrect", "unparsed", "timeout")


LISTS = (tables.FUNCTIONS, tables.GREEK, tables.ACCENTS, tables.VECTORS, tables.UPRIGHT, tables.FRAMES, FRACTIONS)
COMMANDS = """sum prod binom begin end cup cap setminus bmod pmod circ mid in to emptyset infty pi cdots ldots dots
    approx equiv cdot times div pm choose prime top vee land lfloor rfloor langle rangle lvert rvert angle imath"""
MARKS = r"""\{ \} \\ {2} {x} {pmatrix} (1,2) [1,2] _{10}"""
TOKENS = sorted({f"\\{name} " for name in {*COMMANDS.split()}.union(*LISTS)})
TOKENS += [
    *"0123456789xyniefABCTh=<>+-,;()[]{}/^|_!':.%$&~ ",
    *MARKS.split(),
    " and ",
    " or ",
    " is ",
    " hours ",
    " min ",
]


@settings(max_examples=1000)
@given(st.lists(st.sampled_from(TOKENS), min_size=1, max_size=9).map("".join))
@pytest.mark.parametrize("beside", ["x", "5", "(1,2)"])
def test_no_text_raises_as_a_gold_or_as_an_answer(beside, text):
    explain(beside, text)
    explain(text, beside)


@pytest.mark.parametrize("answer", [r"(\dots)", r"(\emptyset)", " or ", r"[\ldots]"])
def test_what_is_nearly_nothing_raises_nothing(answer):
    assert explain("5", answer).status in ("incorrect", "unparsed")
    explain(answer, "5")


def test_a_timeout_is_counted_and_not_measured():
    costly = (r"\binom{30000000}{15000000}", r"\sum_{k=1}^{10^9} \frac{1}{k+\sqrt{k}}", r"\gcd(9^{9^9}, 6)")
    start = time.process_time()
    assert [explain("x", answer).status for answer in costly] == ["timeout"] * 3
    assert time.process_time() - start < 1.0


PLACES = (
    *("{}", r"\text{{{}}}", r"\operatorname{{{}}}(1)", r"\operatorname{{diag}}({},1)", r"\gcd({},4)", r"\max({},3)"),
    *("x_{{{}}}", r"\{{\text{{{}}},1\}}", "({},1)", r"\begin{{pmatrix}}{}&1\end{{pmatrix}}", r"\sum_{{{}=1}}^3 n"),
    *(r"\frac{{d}}{{d{}}}x", "{}=1", "1<{}<2", r"{}\cup\{{1\}}", "f({})", r"1 \text{{ or {}}}", "{}!"),
)
PROGRAMS = (
    "canary",
    "canary()",
    "__import__('os').system('canary')",
    "().__class__.canary",
    "lambda: canary",
    "exec(canary)",
)
WATCHED = """
import json, sys
from math_answers import judge

judge("1", r"\\frac{2}{2}")
events = []

def watch(event, arguments):
    if event in ("compile", "exec", "import", "open", "os.system", "subprocess.Popen") and "canary" in str(arguments):
        events.append(event)

sys.addaudithook(watch)
answers = json.load(sys.stdin)
verdicts = {judge("2", answer) for answer in answers}
compile("canary", "the watch is awake", "eval")
print(sorted(verdicts), events)
"""


def test_no_part_of_an_answer_is_compiled_imported_opened_or_run():
    answers = [place.format(program) for place, program in itertools.product(PLACES, PROGRAMS)]
    run = subprocess.run([sys.executable, "-c", WATCHED], input=json.dumps(answers), capture_output=True, text=True)
    assert run.stdout == "['incorrect', 'unparsed'] ['compile']\n", run.stderr[-2000:]

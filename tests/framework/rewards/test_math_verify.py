import threading
from collections.abc import Iterator

import pytest

from answer_rewrites import Rewrite, rewrites
from apo_lightning.errors import ConfigError
from apo_lightning.rewards import MathVerifyReward, Reward
from apo_lightning.types import count_statuses


@pytest.fixture(scope="module")
def reward() -> Iterator[MathVerifyReward]:
    reward = MathVerifyReward(num_workers=2, timeout_s=60.0, memory_limit_gib=1.0)
    yield reward
    reward.close()


GOLDS = [
    r"\frac{3}{4}", r"\frac34", r"-\frac{7}{12}", r"3\frac{1}{2}", "0.125", "-17", "+4", "1,234,567", r"10,\!000",
    r"\sqrt{2}", r"2\sqrt{3} - 1", r"\sqrt[3]{5}", r"\frac{\sqrt{5}+1}{2}", r"\pi", r"\frac{2\pi}{3}", r"e^{-2}",
    r"6 - 5i", r"2^{10}", r"\log_2 5", r"45^\circ", r"20\%", r"\$18.50", "4.5e33", r"6.02 \times 10^{23}", "1.3e-27",
    "(3, 4)", r"\left( \frac12, -1 \right)", "(3,4]", r"(-\infty, 2) \cup (5, \infty)", r"[0, 1]",
    r"\{1, 2, 3\}", "1, -2", r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}", r"\begin{pmatrix} -1 \\ 0 \end{pmatrix}",
    "p - q", "x^2 + 2x + 1", r"y = 2x + 3", r"x \geq 4", r"\text{Evelyn}", r"\text{(B)}", "C", r"\emptyset",
    r"\frac{1}{1+x^{2}}", r"\frac{m g}{k} \left(1 - e^{-k t / m}\right)",
]  # fmt: skip


@pytest.mark.parametrize(
    "template", [r"thus $\boxed{GOLD}$.", r"\boxed{7}, or rather \boxed{ GOLD. }", "Answer: $GOLD$."]
)
def test_every_gold_answer_is_judged_correct_against_itself(reward: MathVerifyReward, template: str):
    reward.check_answers(GOLDS)
    verdicts = reward.score([template.replace("GOLD", gold) for gold in GOLDS], GOLDS)
    assert [gold for gold, verdict in zip(GOLDS, verdicts, strict=True) if verdict.status != "correct"] == []
    assert all(verdict.reward == 1.0 for verdict in verdicts)


# Of every form that the rules of `answer_rewrites` know.
SUITE_GOLDS = [
    "17", "-8", "0", "1", "2048", "31,415", r"27,\!182", r"\$7.25", "0.625", "-.75", "3.25", "6.1e-7", "2e5",
    "-4.75e12", r"\frac{5}{8}", r"-\frac{7}{12}", r"\frac 27", r"\dfrac{22}{7}", r"3\frac{2}{5}", "-5./4", r"72^\circ",
    r"12.5 \text{ grams}", r"48\mbox{ feet}^2", "312_4", "75_{9}", r"\text{west}", r"\text{(D)}", "(2,-7)",
    r"\left( 5, \frac{\pi}{3} \right)",
    "(4,-9,11)", "(1,6]", r"[-3, \infty)", r"\{2, 5, 11\}", r"\{3\pm\sqrt{7},-4\}", "4,-6", "8, 9, 13",
    r"2 \pm \sqrt{11}", r"\begin{pmatrix} -3 \\ 8 \end{pmatrix}", r"\begin{pmatrix} 2/7 & 1 \\ 0 & -6 \end{pmatrix}",
    "x=12", "y = 3x - 4", "2x - 9y + 4z = 0", r"x \in [-1,5]", r"5\sqrt{7}", r"9 \pi", "4 - 3i", r"\frac{3\sqrt{5}}{8}",
    r"\frac{3\pi}{4}", "x^4 + 3x - 1", "3k + 7", r"\cos x", "u - v", r"\beta", "m", r"\frac{5}{2} m", "4.5 Q",
    r"\frac{1}{2} E_{1}+\frac{1}{3} E_{2}", r"\frac{\gamma^{2}-1}{c^{2}}", r"A e^{-k t} \sin \left(\omega t\right)",
    r"\frac{d N}{d t}=r N-b", r"g(0) e^{-\frac{t}{\tau}}", r"(-\infty, 1) \cup (4, \infty)",
]  # fmt: skip


def shown(mistakes: list[Rewrite]) -> list[tuple[str, str, str]]:
    return [(mistake.gold, mistake.kind, mistake.completion) for mistake in mistakes]


@pytest.mark.slow
def test_what_is_made_by_rule_is_accepted_if_it_is_equal_and_else_refused(reward: MathVerifyReward):
    made = list(rewrites(SUITE_GOLDS))
    verdicts = reward.score([rewrite.completion for rewrite in made], [rewrite.gold for rewrite in made])
    judged = list(zip(made, verdicts, strict=True))
    assert sum(rewrite.is_equal for rewrite in made) > 1000
    assert sum(not rewrite.is_equal for rewrite in made) > 400
    assert shown([rewrite for rewrite, verdict in judged if not rewrite.is_equal and verdict.reward == 1.0]) == []
    assert shown([rewrite for rewrite, verdict in judged if rewrite.is_equal and verdict.reward == 0.0]) == []
    assert count_statuses(verdict.status for verdict in verdicts)["error"] == 0


def test_the_answer_is_reported_as_the_completion_stated_it(reward: MathVerifyReward):
    completions = [r"\boxed{ x = \dfrac12 \text{ cm}. }", "Answer: $1{,}234$ apples"]
    verdicts = reward.score(completions, [r"\frac{1}{2}", "1234"])
    assert [verdict.extracted for verdict in verdicts] == [r" x = \dfrac12 \text{ cm}. ", "$1{,}234$ apples"]
    assert [verdict.status for verdict in verdicts] == ["correct", "correct"]


EQUAL = [
    (r"\frac{3}{4}", "0.75"),
    (r"\frac{3}{4}", "3/4"),
    (r"\frac{3}{4}", r"\dfrac{6}{8}"),
    ("8", r"2^3"),
    ("204", "204."),
    ("336", r"336^\circ"),
    ("50", r"50\%"),
    (r"20\%", "20"),
    ("4.5e33", r"4.5 \times 10^{33}"),
    (r"4.5 \times 10^{33}", "4.5E+33"),
    ("1.3e-27", r"1.3 \cdot 10^{-27}"),
    (r"2\sqrt{3}", r"\sqrt{12}"),
    ("1234567", "1,234,567"),
    (r"x^2 + 2x + 1", "(x+1)^2"),
    (r"(3,4]", r"\left(3, 4\right]"),
    (r"\{1,2\}", r"\{2,1\}"),
    ("5", "x = 5"),
    ("18.5", r"\$18.50"),
    (r"\text{Evelyn}", "Evelyn"),
    (r"1-\frac{1}{e}", r"1-\frac{1}{\mathrm{e}}"),
    (r"\alpha", r"\frac{2\alpha}{2}"),
    (r"\gamma^2 - 1", r"(\gamma-1)(\gamma+1)"),
    (r"\sqrt{2}", "1.414214"),
    (r"(1, \sqrt{8}]", r"(1.0, 2\sqrt{2}]"),
    ("x, 2y", r"\{y+y, x\}"),
    ("y''+y=0", "y+y''=0"),
]


def test_an_equal_answer_in_another_form_is_correct(reward: MathVerifyReward):
    verdicts = reward.score([rf"\boxed{{{answer}}}" for _, answer in EQUAL], [gold for gold, _ in EQUAL])
    assert [pair for pair, verdict in zip(EQUAL, verdicts, strict=True) if verdict.status != "correct"] == []


DIFFERENT = [
    (r"\frac{3}{4}", r"\frac{4}{3}"),
    (r"\frac{1}{3}", "0.333"),
    ("50", "0.5"),
    ("50", "5000"),
    ("10000", "10001"),
    ("0.5", r"50\%"),
    ("(3,4]", "(3,4)"),
    ("(3,4)", "(4,3)"),
    (r"\sqrt{2}", r"-\sqrt{2}"),
    ("p - q", "q - p"),
    (r"\text{(B)}", r"\text{(C)}"),
    ("4.6e-24", "7e-22"),
    ("3", "7 apples and 3 pears"),
    ("4", "1, 2, 3, 4"),
    ("2", r"\pm 2"),
    (r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", r"\begin{pmatrix} 2 \\ 1 \end{pmatrix}"),
    ("6 - 5i", "6 + 5i"),
    ("7", r"\frac{1}{0}"),
    (r"1-\frac{1}{e}", r"1+\frac{1}{\mathrm{e}}"),
    (r"\frac{3}{2} m", r"\frac{3}{2}"),
    ("y''+y=0", "y'+y=0"),
    (r"2\pi R", "2"),  # the last number of what cannot be read is no answer
    (r"\gamma^2 - 1", r"\gamma^2 - 2"),
    (r"(\pi \times 10^{-9}, 1)", r"(3\pi \times 10^{-9}, 1)"),
    (r"\frac{dN}{dt} = 10 N", r"\frac{dN}{dt} = 11 N"),
]


def test_a_wrong_answer_earns_nothing(reward: MathVerifyReward):
    verdicts = reward.score([rf"\boxed{{{answer}}}" for _, answer in DIFFERENT], [gold for gold, _ in DIFFERENT])
    assert [pair for pair, verdict in zip(DIFFERENT, verdicts, strict=True) if verdict.reward != 0.0] == []
    assert {verdict.status for verdict in verdicts} <= {"incorrect", "unparsed"}


@pytest.mark.parametrize(
    "completion",
    ["", "42", "the result is 42", r"\boxed{}", r"\boxed{ }", r"\boxed{42", "Answer:", "Answer: 42 \\boxed{42"],
)
def test_an_answer_that_is_not_stated_is_unparsed(completion: str):
    assert MathVerifyReward().score([completion], ["42"])[0].status == "unparsed"


@pytest.mark.slow
def test_absurd_completions_touch_no_other_verdict_of_the_batch():
    reward = MathVerifyReward(num_workers=2, timeout_s=3.0, memory_limit_gib=1.0)  # the others take 3 ms
    hanging = [
        r"\binom{30000000}{15000000}",
        r"\sum_{k=1}^{10^9} \frac{1}{k+\sqrt{k}}",
        r"\gcd(9^{9^9}, 6)",
        r"\binom{30000000}{15000000}, \binom{30000000}{15000001}, \gcd(9^{9^9}, 7)",
    ]
    absurd = [rf"\boxed{{{answer}}}" for answer in hanging] + [
        r"\boxed{9^{9^{9^9}}}",
        r"\boxed{(10^{10})!}",
        r"\boxed{7^{7^{7^7}} \mod 100}",
        r"\boxed{10^{10^{10}}, x = 8^{9^{9^9}} = 7^{9^9}}",
        "{" * 1_000_000,
        r"\boxed{" * 150_000,
        r"\boxed{" + "{" * 500_000 + "}" * 500_000 + "}",
        r"\boxed{" + "9" * 1_000_000 + "}",
        r"\boxed{" + "9" * 5000 + "}",
        r"\boxed{0." + "9" * 4000 + "}",
        "\\boxed{\x00}",
        "\\boxed{\ud800}",
        r"\boxed{1/0}",
        r"\boxed{\infty-\infty}",
        r"\boxed{" + r"\sqrt{" * 500 + "2" + "}" * 500 + "}",
        r"\boxed{" + "(" * 200 + "2" + ")" * 200 + "+x}",
        r"\boxed{" + "(1," * 1000 + "2" + ")" * 1000 + "}",
        r"\boxed{" + "5 " + "m " * 2000 + "}",
    ]
    completions = [text for index, bad in enumerate(absurd) for text in (bad, rf"\boxed{{0.{index + 1}x}}")]
    golds = [rf"\frac{{{index + 1}x}}{{{10 ** len(str(index + 1))}}}" for index in range(len(absurd)) for _ in range(2)]
    verdicts = reward.score(completions, golds)
    reward.close()
    assert [verdict.status for verdict in verdicts[1::2]] == ["correct"] * len(absurd)
    assert [verdict.status for verdict in verdicts[: 2 * len(hanging) : 2]] == ["timeout"] * len(hanging)
    assert all(verdict.reward == 0.0 and verdict.status != "error" for verdict in verdicts[::2])
    assert all(len(verdict.extracted or "") <= 4096 for verdict in verdicts)
    assert reward.pool.num_started <= 2 + len(absurd)


def test_a_step_of_integers_starts_no_worker():
    reward = MathVerifyReward()
    golds = [str(number // 8 - 100) for number in range(4096)]
    verdicts = reward.score([rf"so \boxed{{{number - 100}}}" for number in range(4096)], golds)
    assert count_statuses(verdict.status for verdict in verdicts) == {
        "correct": 1,
        "incorrect": 4095,
        "unparsed": 0,
        "timeout": 0,
        "error": 0,
    }
    reward.check_answers(golds)
    assert reward.pool.num_started == 0


def test_numbers_points_and_words_start_no_worker():
    reward = MathVerifyReward()
    golds = [r"\frac{1}{8}", "(1, 2.5)", r"\text{east}", "1,234", "6e-5", "3_4"]
    answers = ["0.125", r"(1, \frac{5}{2})", "west", r"1{,}234 \text{ cm}", r"6 \times 10^{-4}", "3_5"]
    verdicts = reward.score([rf"\boxed{{{answer}}}" for answer in answers], golds)
    assert [verdict.reward for verdict in verdicts] == [1.0, 1.0, 0.0, 1.0, 0.0, 0.0]
    assert reward.pool.num_started == 0


@pytest.mark.parametrize(
    ("gold", "answer", "status"),
    [
        ("7", "007", "correct"),
        ("7", "+7", "correct"),
        ("0", "-0", "correct"),
        ("0", "00", "correct"),
        ("7", "-7", "incorrect"),
        ("-7", "7", "incorrect"),
        ("70", "7", "incorrect"),
        ("1" * 4000, "0" + "1" * 4000, "correct"),
        (r"\text{Ada Lovelace}", r"\text{AdaLovelace}", "correct"),
    ],
)
def test_integers_and_equal_texts_are_decided_exactly_without_a_worker(gold: str, answer: str, status: str):
    reward = MathVerifyReward()
    assert reward.score([rf"\boxed{{{answer}}}"], [gold])[0].status == status
    assert reward.pool.num_started == 0


def test_one_wrong_answer_repeated_by_a_group_is_judged_once(monkeypatch: pytest.MonkeyPatch):
    reward = MathVerifyReward(num_workers=1)
    judged: list[tuple[str, str]] = []
    judge = reward.pool.judge
    monkeypatch.setattr(reward.pool, "judge", lambda pairs: judged.extend(pairs) or judge(pairs))
    verdicts = reward.score([r"\boxed{x+1}"] * 8, ["x"] * 8)
    assert [verdict.status for verdict in verdicts] == ["incorrect"] * 8
    assert judged == [("x", "x+1")]
    reward.close()


def test_it_works_from_a_thread(reward: MathVerifyReward):
    statuses: list[str] = []
    thread = threading.Thread(target=lambda: statuses.append(reward.score([r"\boxed{0.5}"], ["1/2"])[0].status))
    thread.start()
    thread.join()
    assert statuses == ["correct"]


@pytest.mark.parametrize("gold", ["", "  ", r"\boxed{}", "1" * 5000])
def test_a_gold_answer_that_cannot_be_judged_is_named_with_a_remedy(reward: MathVerifyReward, gold: str):
    with pytest.raises(ConfigError, match=r"answer 1 of 3 is .*drop the row"):
        reward.check_answers(["5", gold, r"\frac{1}{2}"])


def test_a_gold_answer_that_was_not_checked_is_an_error_and_not_a_zero(reward: MathVerifyReward):
    verdicts = reward.score([r"\boxed{5}", r"\boxed{5}"], ["", "1" * 5000])
    assert [verdict.status for verdict in verdicts] == ["error", "error"]


@pytest.mark.parametrize(
    "arguments", [{"num_workers": 0}, {"timeout_s": 0.0}, {"timeout_s": float("inf")}, {"memory_limit_gib": 0.1}]
)
def test_settings_that_cannot_work_are_refused_by_name(arguments: dict):
    with pytest.raises(ConfigError, match=next(iter(arguments))):
        MathVerifyReward(**arguments)


def test_it_is_a_reward(reward: MathVerifyReward):
    assert isinstance(reward, Reward)

from collections.abc import Iterator

import pytest

from apo_lightning.errors import ConfigError, VerifierError
from apo_lightning.rewards import MathVerifyReward
from apo_lightning.types import count_statuses
from math_answers import pool as pool_module

# Of every kind.
GOLDS = [
    r"\frac{3}{4}", r"\frac34", r"-\frac{7}{12}", r"3\frac{1}{2}", "0.125", "-17", "+4", "1,234,567", r"10,\!000",
    r"\sqrt{2}", r"2\sqrt{3} - 1", r"\sqrt[3]{5}", r"\frac{\sqrt{5}+1}{2}", r"\pi", r"\frac{2\pi}{3}", r"e^{-2}",
    r"6 - 5i", r"2^{10}", r"\log_2 5", r"45^\circ", r"20\%", r"\$18.50", "4.5e33", r"6.02 \times 10^{23}", "1.3e-27",
    "(3, 4)", r"\left( \frac12, -1 \right)", "(3,4]", r"(-\infty, 2) \cup (5, \infty)", r"[0, 1]",
    r"\{1, 2, 3\}", "1, -2", r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}", r"\begin{pmatrix} -1 \\ 0 \end{pmatrix}",
    "p - q", "x^2 + 2x + 1", r"y = 2x + 3", r"x \geq 4", r"\text{Evelyn}", r"\text{(B)}", "C", r"\emptyset",
    r"\frac{1}{1+x^{2}}", r"\frac{m g}{k} \left(1 - e^{-k t / m}\right)",
]  # fmt: skip


@pytest.fixture(scope="module")
def reward() -> Iterator[MathVerifyReward]:
    reward = MathVerifyReward(num_workers=2, timeout_s=60.0, memory_limit_gib=1.0)
    yield reward
    reward.close()


@pytest.mark.parametrize(
    "template", [r"thus $\boxed{GOLD}$.", r"\boxed{7}, or rather \boxed{ GOLD. }", "Answer: $GOLD$."]
)
def test_every_gold_answer_is_judged_correct_against_itself(reward: MathVerifyReward, template: str):
    reward.check_answers(GOLDS)
    verdicts = reward.score([template.replace("GOLD", gold) for gold in GOLDS], GOLDS)
    assert [gold for gold, verdict in zip(GOLDS, verdicts, strict=True) if verdict.status != "correct"] == []
    assert all(verdict.reward == 1.0 for verdict in verdicts)


def test_the_answer_is_reported_as_the_completion_stated_it(reward: MathVerifyReward):
    completions = [r"\boxed{ x = \dfrac12 \text{ cm}. }", "Answer: $1{,}234$ apples"]
    verdicts = reward.score(completions, [r"\frac{1}{2}", "1234"])
    assert [verdict.extracted for verdict in verdicts] == [r" x = \dfrac12 \text{ cm}. ", "$1{,}234$ apples"]
    assert [verdict.status for verdict in verdicts] == ["correct", "correct"]


def test_absurd_completions_touch_no_other_verdict_of_the_batch(reward: MathVerifyReward):
    absurd = [
        r"\boxed{\binom{30000000}{15000000}, \gcd(9^{9^9}, 7)}",
        r"\boxed{\sum_{k=1}^{10^9} \frac{1}{k+\sqrt{k}}}",
        "{" * 1_000_000,
        r"\boxed{" * 150_000,
        r"\boxed{" + "9" * 1_000_000 + "}",
        "\\boxed{\x00}",
        "\\boxed{\ud800}",
        r"\boxed{1/0}",
        r"\boxed{" + "(1," * 1000 + "2" + ")" * 1000 + "}",
    ]
    completions = [text for index, bad in enumerate(absurd) for text in (bad, rf"\boxed{{0.{index + 1}x}}")]
    golds = [rf"\frac{{{index + 1}x}}{{{10 ** len(str(index + 1))}}}" for index in range(len(absurd)) for _ in range(2)]
    reward.score([r"\boxed{0.5}", r"\boxed{0.6}"], ["1/2", "1/2"])  # its workers are up
    num_started = reward.pool.num_started
    verdicts = reward.score(completions, golds)
    assert [verdict.status for verdict in verdicts[1::2]] == ["correct"] * len(absurd)
    assert all(verdict.reward == 0.0 and verdict.status != "error" for verdict in verdicts[::2])
    assert all(len(verdict.extracted or "") <= 4096 for verdict in verdicts)
    assert reward.pool.num_started == num_started


def test_a_step_of_integers_starts_no_worker():
    reward = MathVerifyReward()
    golds = [str(number // 8 + 100) for number in range(4096)]
    verdicts = reward.score([rf"so \boxed{{{number + 100}}}" for number in range(4096)], golds)
    assert count_statuses(verdict.status for verdict in verdicts) == {
        "correct": 1,
        "incorrect": 4095,
        "unparsed": 0,
        "timeout": 0,
        "error": 0,
    }
    reward.check_answers(golds + GOLDS)
    assert reward.pool.num_started == 0


def test_several_boxes_are_extracted_as_the_gold_has_parts(reward: MathVerifyReward):
    completions = [r"\boxed{2}, \boxed{3}"] * 2
    verdicts = reward.score(completions, ["2, 3", "3"])
    assert [(verdict.status, verdict.extracted) for verdict in verdicts] == [("correct", "2, 3"), ("correct", "3")]


def test_one_wrong_answer_repeated_by_a_group_is_judged_once(monkeypatch: pytest.MonkeyPatch):
    reward = MathVerifyReward(num_workers=1)
    judged: list[tuple[str, str]] = []
    judge = reward.pool.judge
    monkeypatch.setattr(reward.pool, "judge", lambda pairs: judged.extend(pairs) or judge(pairs))
    verdicts = reward.score([r"\boxed{x+1}"] * 8, ["x"] * 8)
    assert [verdict.status for verdict in verdicts] == ["incorrect"] * 8
    assert judged == [("x", "x+1")]
    reward.close()


def test_workers_that_cannot_start_are_a_verifier_error(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pool_module, "_START_WORKER", "raise SystemExit(7)")
    with pytest.raises(VerifierError, match="exit status 7"):
        MathVerifyReward().score([r"\boxed{x}"], ["5"])


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

from random import Random

import pytest

from apo_lab.puzzles import Locks
from apo_lab.puzzles.locks import CLASSES, RATES, RULES, SPREAD, STRATEGIES
from apo_lightning.errors import ConfigError

LOCKS = Locks()


def test_the_digits_follow_from_key_and_strategy():
    # Strategy A copies the places 0 and 3; G adds 1 to place 0 and copies place 2.
    answers = {answer.strategy: answer.text for answer in LOCKS.answers("q407913:")}
    assert RULES[0] == ((0, 0), (3, 0))
    assert answers["A"] == "A49"
    assert RULES[6] == ((0, 1), (2, 0))
    assert answers["G"] == "G57"


@pytest.mark.parametrize("lock_class", CLASSES)
def test_the_rates_of_a_class_are_a_permutation(lock_class):
    rates = [LOCKS.rate(lock_class, strategy) for strategy in range(len(STRATEGIES))]
    assert sorted(rates) == sorted(RATES)


def test_in_half_the_classes_the_best_strategy_stands_at_rank_5():
    best = [max(range(12), key=lambda s: LOCKS.rate(c, s)) for c in CLASSES]
    assert best.count(4) == 4
    assert list(SPREAD) == sorted(SPREAD, reverse=True)


def test_the_hash_opens_as_often_as_the_rates_say():
    problems = [f"p{key:06d}:" for key in range(20_000)]
    for strategy in (0, 4, 11):
        rate = LOCKS.rate("p", strategy)
        share = sum(LOCKS.opens(problem, strategy) for problem in problems) / len(problems)
        # Five standard errors of 20,000 draws.
        assert share == pytest.approx(rate, abs=5 * (rate * (1 - rate) / 20_000) ** 0.5)


def test_only_the_whole_answer_of_an_opening_strategy_is_correct():
    problem = next(p for p in LOCKS.problems(50, 0, held_out=True) if LOCKS.opens(p, 0) and not LOCKS.opens(p, 1))
    opening, other = LOCKS.answers(problem)[:2]
    assert opening.is_valid
    assert LOCKS.is_correct(problem, opening.text)
    assert not LOCKS.is_correct(problem, other.text)
    wrong_digit = opening.text[:2] + str((int(opening.text[2]) + 1) % 10)
    for completion in (wrong_digit, opening.text + "0", opening.text[:2], "", "a" + opening.text[1:]):
        assert not LOCKS.is_correct(problem, completion)


def test_demonstrations_never_show_a_held_out_problem_and_have_the_accuracy_asked_for():
    random = Random(0)
    held_out = set(LOCKS.problems(2000, 0, held_out=True))
    shown = [LOCKS.demonstration(random) for _ in range(4000)]
    assert not held_out & {problem for problem, _ in shown}
    digits = [
        got == right
        for problem, text in shown
        for got, right in zip(text[1:], LOCKS.answers(problem)[STRATEGIES.index(text[0])].text[1:], strict=True)
    ]
    assert sum(digits) / len(digits) == pytest.approx(0.74, abs=0.025)  # five standard errors of 8,000 draws
    share = sum(text[0] == "A" for _, text in shown) / len(shown)
    assert share == pytest.approx(SPREAD[0] / sum(SPREAD), abs=0.032)


def test_every_problem_has_a_valid_answer_and_draws_are_repeatable():
    problems = LOCKS.problems(300, 7, held_out=False)
    assert len(set(problems)) == 300
    assert problems == LOCKS.problems(300, 7, held_out=False)
    assert all(any(answer.is_valid for answer in LOCKS.answers(problem)) for problem in problems)
    assert not set(problems) & set(LOCKS.problems(300, 7, held_out=True))


def test_bad_settings_are_refused():
    with pytest.raises(ConfigError, match="digit_accuracy is 0"):
        Locks(digit_accuracy=0.0)
    with pytest.raises(ConfigError, match="at most"):
        LOCKS.problems(10**7, 0, held_out=True)

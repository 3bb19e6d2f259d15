"""Each puzzle against a search of its own, and what all puzzles have in common."""

import functools
import itertools
import json
from random import Random

import pytest
from hydra.utils import instantiate
from hypothesis import given, settings
from hypothesis import strategies as st

from apo_lab.puzzles import Countdown, Divisors, Locks, Puzzle
from apo_lab.puzzles.countdown import operator_sequences
from apo_lab.puzzles.divisors import _sides
from apo_lab.puzzles.locks import CLASSES, RATES, RULES, SPREAD, STRATEGIES
from apo_lightning.errors import ConfigError
from apo_lightning.run import train
from composing import composed

COUNTDOWN = Countdown(num_numbers=5, min_solutions=8, min_strategies=4)
DIVISORS, LOCKS = Divisors(), Locks()
EVERYTHING = [int(problem) for side in _sides(13, None).values() for problem in side]


def from_left_to_right(text):
    """The value, written a second time: by nesting brackets and asking Python."""
    nested = text[0]
    for operator, number in zip(text[1::2], text[2::2], strict=True):
        nested = f"({nested}{operator}{number})"
    return eval(nested)


def by_brute_force(numbers, target):
    return {
        text
        for order in set(itertools.permutations(numbers))
        for operators in operator_sequences(len(numbers))
        if from_left_to_right(text := order[0] + "".join(map("".join, zip(operators, order[1:], strict=True))))
        == target
    }


@pytest.mark.parametrize(
    ("least", "numbers", "total"), [((1, 1), 5, 88_024), ((8, 4), 5, 52_296), ((4, 2), 4, 5_714 + 1_400)]
)
def test_the_counts_of_all_problems(least, numbers, total):
    solutions, strategies = least
    sides = Countdown(num_numbers=numbers, min_solutions=solutions, min_strategies=strategies)._sides()
    assert sum(map(len, sides.values())) == total


@pytest.mark.parametrize("problem", ["13579=42:", "11223=12:", "99999=90:"])
def test_the_answers_are_those_of_a_search_by_brute_force(problem):
    assert {answer.text for answer in COUNTDOWN.answers(problem)} == by_brute_force(problem[:5], int(problem[6:-1]))


@settings(max_examples=60)
@given(st.text(alphabet="123456789+-*", min_size=7, max_size=11))
def test_a_completion_is_correct_iff_it_is_listed(text):
    problem = "13579=42:"
    assert COUNTDOWN.is_correct(problem, text) == (text in {answer.text for answer in COUNTDOWN.answers(problem)})


def test_sides_share_no_numbers():
    numbers = [{problem[:5] for problem in COUNTDOWN._sides()[held_out]} for held_out in (False, True)]
    assert not numbers[0] & numbers[1]


def test_a_demonstration_is_a_solution():
    random = Random(3)
    for _ in range(50):
        problem, text = COUNTDOWN.demonstration(random)
        assert from_left_to_right(text) == int(problem[6:-1])
        assert sorted(text[::2]) == sorted(problem[:5])


def test_the_answers_of_a_number_are_the_products_of_its_primes():
    # 1911 = 3 · 7 · 7 · 13.
    products = {3, 7, 13, 3 * 7, 3 * 13, 7 * 7, 7 * 13, 3 * 7 * 7, 3 * 7 * 13, 7 * 7 * 13}
    assert [answer.text for answer in DIVISORS.answers("1911")] == [str(product) for product in sorted(products)]
    assert all(answer.is_valid and answer.strategy == answer.text for answer in DIVISORS.answers("1911"))


def test_the_count_of_problems_is_that_of_inclusion_and_exclusion():
    # Of the numbers below 10,000 without those below 1,000, coprime to 10 and with a factor 3, 7, 11 or 13: those
    # coprime to 10 less those coprime to 10 and to all four. A period of 30,030 would have 12,000 and 5,760.
    def count(below, primes):
        if not primes:
            return below - 1
        return count(below, primes[1:]) - count((below - 1) // primes[0] + 1, primes[1:])

    wanted = [count(n, [2, 5]) - count(n, [2, 3, 5, 7, 11, 13]) for n in (1_000, 10_000)]
    assert len(EVERYTHING) == wanted[1] - wanted[0] == 1_873


def test_no_divisor_is_right_everywhere():
    """A policy that always gives the best single answer loses a third of the problems."""
    shares = [sum(number % divisor == 0 for number in EVERYTHING) / len(EVERYTHING) for divisor in (3, 7, 9, 11)]
    # 1,200 of the 3,600 numbers coprime to 10 are multiples of 3.
    assert shares[0] == pytest.approx(1_200 / 1_873)
    assert max(shares[1:]) < 0.3


@settings(max_examples=60)
@given(st.integers(1, 9_999), st.sampled_from(EVERYTHING))
def test_a_number_is_correct_iff_it_divides(answer, number):
    assert DIVISORS.is_correct(str(number), str(answer)) == (1 < answer < number and number % answer == 0)


@pytest.mark.parametrize(
    ("puzzle", "problem", "texts"),
    [
        (COUNTDOWN, "13579=42:", "9*5-7+3+1 ;9*5-7+3;9*5-7+3+2;42;;9*5-7+3+1+0;9*5/7+3+1;(9*5)-7+3+1"),
        (DIVISORS, "1911", ";1;1911; 3;3 ;03;3.;3<|im_end|>;0;-3;5;٣;3×637"),
    ],
)
def test_near_misses_are_wrong(puzzle, problem, texts):
    assert not [text for text in texts.split(";") if puzzle.is_correct(problem, text)]


@pytest.mark.parametrize("puzzle", [COUNTDOWN, DIVISORS, LOCKS])
def test_the_sides_are_disjoint_and_draws_are_repeatable_and_solvable(puzzle):
    train, held_out = puzzle.problems(1_024, 0, held_out=False), puzzle.problems(256, 0, held_out=True)
    assert (len(set(train)), len(set(held_out)), set(train) & set(held_out)) == (1_024, 256, set())
    assert train == puzzle.problems(1_024, 0, held_out=False) != puzzle.problems(1_024, 1, held_out=False)
    assert all(any(answer.is_valid for answer in puzzle.answers(problem)) for problem in train[:300])


def test_a_demonstration_is_a_divisor_of_a_training_problem():
    random = Random(3)
    for _ in range(50):
        problem, text = DIVISORS.demonstration(random)
        assert problem in _sides(13, None)[False]
        assert DIVISORS.is_correct(problem, text)


def test_every_divisor_is_a_strategy():
    found = {answer.strategy for number in EVERYTHING for answer in DIVISORS.answers(str(number))}
    assert list(DIVISORS.strategies) == sorted(found, key=int)


def test_the_examples_of_the_prompt_are_right_and_no_problems():
    cfg = composed("experiment=lab/divisors")
    *examples, last = cfg.model.prompt_template.split("<|im_end|>")
    assert last == "{problem}:"
    for number, divisor in (map(int, example.split(":")) for example in examples):
        assert number % divisor == 0
        assert not DIVISORS.is_problem(str(number))


def test_the_experiment_trains_and_is_measured_exactly(tmp_path):
    own = ("model=tiny", "model.prompt_template='{problem}:'", "prompts_per_step=4", "prompts_per_minibatch=2")
    few = ("data.num_train=64", "data.num_validation=16", "validation_samples=4", "~callbacks.export")
    train(
        composed("experiment=lab/divisors", *own, *few, "trainer.max_steps=1", "trainer.val_check_interval=1"), tmp_path
    )
    lines = (tmp_path / "exact" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [0, 1]
    assert all(0 <= json.loads(line)["pass@1"] <= json.loads(line)["pass@64"] <= 1 for line in lines)


@pytest.mark.parametrize("text", ["1911:", "911", "1912", "1915", "2021", "19110", "x911", ""])
def test_other_texts_are_no_problems(text):
    """1912 is even, 1915 ends in 5, and the smallest divisor of 2021 = 43 · 47 is above 13."""
    assert not DIVISORS.is_problem(text)
    assert DIVISORS.is_problem("1911")


def test_the_digits_follow_from_key_and_strategy():
    # Strategy A copies the places 0 and 3; G adds 1 to place 0 and copies place 2.
    answers = {answer.strategy: answer.text for answer in LOCKS.answers("q407913:")}
    assert RULES[0] == ((0, 0), (3, 0))
    assert answers["A"] == "A49"
    assert RULES[6] == ((0, 1), (2, 0))
    assert answers["G"] == "G57"


def test_the_rates_of_a_class_are_a_permutation_and_in_half_of_them_the_best_strategy_stands_at_rank_5():
    rates = [sorted(LOCKS.rate(lock_class, strategy) for strategy in range(len(STRATEGIES))) for lock_class in CLASSES]
    assert rates == [sorted(RATES)] * len(CLASSES)
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


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Countdown(num_numbers=6), "num_numbers is 6"),
        (lambda: COUNTDOWN.problems(20_000, 0, held_out=True), "10245 are held out"),
        (lambda: Divisors(max_smallest=2), "max_smallest is 2"),
        (lambda: Divisors(dominance=0.25), "dominance is 0.25"),
        (lambda: Divisors(dominance=0.9), "dominance is 0.9"),
        (lambda: Divisors(max_smallest=11, dominance=0.5), "max_smallest is 11"),
        (lambda: Divisors(dominance=0.5).problems(513, 0, held_out=True), "512 are held out"),
        (lambda: DIVISORS.problems(372, 0, held_out=True), "371 are held out"),
        (lambda: Locks(digit_accuracy=0.0), "digit_accuracy is 0"),
        (lambda: LOCKS.problems(10**7, 0, held_out=True), "at most"),
    ],
)
def test_what_cannot_be_listed_or_drawn_is_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


@functools.cache
def tokenizer_of(model):
    """Read once: a GGUF file takes seconds."""
    return instantiate(composed(f"model={model}").model, _convert_="all").load_tokenizer()


@pytest.mark.parametrize("dominance", [0.3, 0.45, 0.64, 0.85])
def test_three_divides_a_share_of_the_numbers_and_all_shares_have_equally_many_divisors(dominance):
    puzzle = Divisors(dominance=dominance)
    held_out, trained_on = (puzzle.problems(count, 0, held_out=side) for count, side in ((512, True), (128, False)))
    assert len({*held_out, *trained_on}) == 640
    for problems, mean, tolerance in ((held_out, 2.915, 0.04), (trained_on, 2.7, 0.2)):
        divisors = [[d for d in range(2, int(n)) if int(n) % d == 0] for n in problems]
        solved = {d: sum(d in own for own in divisors) / len(divisors) for own in divisors for d in own}
        assert solved[3] == pytest.approx(dominance, abs=0.5 / len(problems) + 1e-12)
        assert all(share < solved[3] for d, share in solved.items() if d != 3)
        assert sum(map(len, divisors)) / len(divisors) == pytest.approx(mean, abs=tolerance)
    assert set(puzzle.strategies) <= set(DIVISORS.strategies)


@pytest.mark.parametrize("model", ["tiny", "smollm2_135m"])
@pytest.mark.parametrize("puzzle", [Locks(), Countdown(), Divisors(), Divisors(dominance=0.3)])
def test_a_tokenizer_reads_one_token_a_symbol(puzzle, model):
    """Else the kinds of tokens, and the exact pass@k of a sampled answer, would be of other tokens."""
    assert isinstance(puzzle, Puzzle)
    tokenizer = tokenizer_of(model)
    for problem in puzzle.problems(20, 0, held_out=True):
        assert len(tokenizer(problem, add_special_tokens=False)["input_ids"]) == puzzle.max_prompt_tokens
        for answer in puzzle.answers(problem):
            ids = tokenizer(answer.text, add_special_tokens=False)["input_ids"]
            assert len(ids) + 1 == len(puzzle.kinds(answer.text))
            joined = tokenizer(problem + answer.text, add_special_tokens=False)["input_ids"]
            assert joined[-len(ids) :] == ids

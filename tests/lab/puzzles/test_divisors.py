import json
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apo_lab.puzzles import Divisors
from apo_lab.puzzles.divisors import _sides
from apo_lightning.errors import ConfigError
from apo_lightning.run import train
from composing import composed

DIVISORS = Divisors()
EVERYTHING = [int(problem) for side in _sides(13).values() for problem in side]


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


@pytest.mark.parametrize("text", ["", "1", "1911", " 3", "3 ", "03", "3.", "3<|im_end|>", "0", "-3", "5", "٣", "3×637"])
def test_near_misses_are_wrong(text):
    assert not DIVISORS.is_correct("1911", text)


def test_the_sides_are_disjoint_and_draws_are_repeatable():
    train, held_out = DIVISORS.problems(1_024, 0, held_out=False), DIVISORS.problems(256, 0, held_out=True)
    assert len(set(train)) == 1_024
    assert len(set(held_out)) == 256
    assert not set(train) & set(held_out)
    assert train == DIVISORS.problems(1_024, 0, held_out=False) != DIVISORS.problems(1_024, 1, held_out=False)


def test_a_demonstration_is_a_divisor_of_a_training_problem():
    random = Random(3)
    for _ in range(50):
        problem, text = DIVISORS.demonstration(random)
        assert problem in _sides(13)[False]
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


def test_bad_settings_are_refused():
    with pytest.raises(ConfigError, match="max_smallest is 2"):
        Divisors(max_smallest=2)
    with pytest.raises(ConfigError, match="371 are held out"):
        DIVISORS.problems(372, 0, held_out=True)

import functools

import pytest
from hydra.utils import instantiate

from apo_lab.puzzles import Countdown, Divisors, Locks, Puzzle
from composing import composed


@functools.cache
def tokenizer_of(model):
    """Read once: a GGUF file takes seconds."""
    return instantiate(composed(f"model={model}").model, _convert_="all").load_tokenizer()


@pytest.mark.parametrize("model", ["tiny", "smollm2_135m"])
@pytest.mark.parametrize("puzzle", [Locks(), Countdown(), Divisors()])
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

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from apo_lightning.rollout.transformers_engine import CACHED_PROBABILITIES, sample_tokens, uniforms


@given(
    st.lists(st.floats(-20, 20, width=32), min_size=2, max_size=30),
    st.floats(0, 1, exclude_max=True),
    st.floats(0.1, 2.0),
)
def test_a_token_is_where_the_distribution_function_passes_u(logits, u, temperature):
    tokens, logprobs, _ = sample_tokens(
        torch.tensor([logits]), torch.tensor([temperature]), torch.tensor([u], dtype=torch.float64)
    )
    probabilities = (torch.tensor(logits, dtype=torch.float64) / temperature).softmax(0)
    token, cumulative = int(tokens[0]), probabilities.cumsum(0)
    assert cumulative[token] >= u - 1e-5
    assert token == 0 or cumulative[token - 1] <= u + 1e-5
    assert logprobs[0] == pytest.approx(float(probabilities[token].log()), abs=1e-4)


def test_impossible_tokens_are_never_drawn():
    logits = torch.tensor([[-torch.inf, 0.0, -torch.inf, 0.0, -torch.inf]])
    for u, expected in [(0.0, 1), (0.49, 1), (0.5, 3), (1 - 2**-53, 3)]:
        tokens, _, _ = sample_tokens(logits, torch.ones(1), torch.tensor([u], dtype=torch.float64))
        assert tokens.tolist() == [expected]


def test_rows_sampled_in_several_parts_are_those_sampled_one_by_one():
    generator = torch.Generator().manual_seed(0)
    vocab, rows = CACHED_PROBABILITIES // 4, 11  # parts of 4, 4 and 3 rows
    logits = 3 * torch.randn(rows, vocab, generator=generator)
    temperatures = torch.tensor([0.0, 1.0, 0.7] * 4)[:rows]
    top_p = torch.tensor([1.0, 1.0, 1.0, 1.0, 0.9, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0])
    drawn = torch.rand(rows, generator=generator, dtype=torch.float64)
    tokens, logprobs, _ = sample_tokens(logits, temperatures, drawn, top_p)
    for row in range(rows):
        one = slice(row, row + 1)
        token, logprob, _ = sample_tokens(logits[one], temperatures[one], drawn[one], top_p[one])
        assert (tokens[row], logprobs[row]) == (token[0], logprob[0])


def test_a_samples_uniforms_depend_on_its_seed_alone():
    assert uniforms(5, 4).tolist() == numpy.random.default_rng(5).random(4).tolist()
    assert uniforms(5, 4).tolist() != uniforms(5 + 2**40, 4).tolist()  # all bits count

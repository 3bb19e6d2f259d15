import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from apo_lightning.errors import ConfigError, StaleWeightsError
from apo_lightning.rollout.transformers_engine import TransformersEngine, sample_tokens
from apo_lightning.rollout.weight_sync import publish
from rollout.bench import context, tiny_llama
from rollout.contract import request


@given(
    st.lists(st.floats(-20, 20, width=32), min_size=2, max_size=30),
    st.floats(0, 1, exclude_max=True),
    st.floats(0.1, 2.0),
)
def test_a_token_is_where_the_distribution_function_passes_u(logits, u, temperature):
    tokens, logprobs = sample_tokens(
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
        tokens, _ = sample_tokens(logits, torch.ones(1), torch.tensor([u], dtype=torch.float64))
        assert tokens.tolist() == [expected]


def test_all_bits_of_a_seed_count(tmp_path):
    model = tiny_llama(tied=True)
    model.config.save_pretrained(tmp_path)
    engine = TransformersEngine(sequences_per_batch=4)
    engine.setup(context(tmp_path))
    publish(model, engine, 1)
    first, second = engine.generate([request(seed=3, max_new_tokens=10), request(seed=3 + 2**40, max_new_tokens=10)])
    assert first.token_ids != second.token_ids


def test_an_engine_is_born_without_weights_and_dies_once(tmp_path):
    tiny_llama(tied=True).config.save_pretrained(tmp_path)
    engine = TransformersEngine(sequences_per_batch=4)
    for call in (lambda: engine.generate([request()]), engine.sleep, engine.wake):
        with pytest.raises(RuntimeError, match="the transformers engine was never set up"):
            call()
    engine.setup(context(tmp_path))
    with pytest.raises(StaleWeightsError, match="has no weights"):
        engine.generate([request()])
    engine.close()
    engine.close()
    for call in (lambda: engine.generate([request()]), lambda: engine.setup(context(tmp_path)), engine.wake):
        with pytest.raises(RuntimeError, match="is closed"):
            call()


def test_settings_that_cannot_work_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="sequences_per_batch is 0"):
        TransformersEngine(sequences_per_batch=0).check(torch.device("cpu"))
    with pytest.raises(ConfigError, match=r"has no config\.json"):
        TransformersEngine(sequences_per_batch=1).setup(context(tmp_path))

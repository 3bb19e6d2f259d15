import pytest
import torch
from torch import nn
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from apo_lightning.errors import ConfigError, StaleWeightsError
from apo_lightning.rollout.transformers_engine import (
    UNREPEATED_KEYS,
    TransformersEngine,
    _attention,
    _Batch,
    attend_with_unrepeated_keys,
)
from apo_lightning.rollout.weight_sync import publish
from engine_bench import context, tiny_llama
from engine_contract import request


def ready_engine(folder, sequences_per_batch, dtype=torch.float32):
    model = tiny_llama(tied=True)
    model.config.save_pretrained(folder)
    engine = TransformersEngine(sequences_per_batch=sequences_per_batch)
    engine.setup(context(folder, dtype=dtype))
    publish(model, engine, 1)
    return engine


def shapes_of_forwards(engine, requests):
    """Rows and columns of every forward."""
    shapes = []
    embeddings = engine._model.get_input_embeddings()
    hook = embeddings.register_forward_pre_hook(lambda _, inputs: shapes.append(tuple(inputs[0].shape)))
    engine.generate(requests)
    hook.remove()
    return shapes


def test_a_prompt_is_read_once_a_group_and_finished_rows_leave(tmp_path):
    engine = ready_engine(tmp_path, 8)
    group = [request((5, 6, 7), seed=i, max_new_tokens=length) for i, length in enumerate((1, 4, 2))]
    other = [request((8, 9), seed=i, max_new_tokens=3) for i in range(2)]
    # two prompts of at most 3 tokens; then those that want a second token, a third and a fourth
    assert shapes_of_forwards(engine, group + other) == [(2, 3), (4, 1), (3, 1), (1, 1)]


def test_logits_are_in_float32_whatever_the_weights_are_in(tmp_path):
    engine = ready_engine(tmp_path, 8, torch.bfloat16)
    assert engine._last_logits(_Batch([request((5, 6, 7))], torch.device("cpu"))).dtype == torch.float32


def test_long_prompts_stand_together(tmp_path):
    engine = ready_engine(tmp_path, 2)
    requests = [request(range(3, 3 + length), max_new_tokens=1) for length in (4, 30, 5, 31)]
    assert shapes_of_forwards(engine, requests) == [(2, 31), (2, 5)]


def test_asleep_it_holds_no_weights(tmp_path):
    engine = ready_engine(tmp_path, 4)
    weights = list(engine._model.parameters())
    engine.sleep()
    assert sum(weight.untyped_storage().nbytes() for weight in weights) == 0
    engine.wake()
    assert all(weight.untyped_storage().nbytes() == weight.nbytes for weight in weights)


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


@pytest.mark.parametrize("tokens", [1, 17, 70])
def test_attention_with_unrepeated_keys_returns_the_same_bits(tokens):
    generator = torch.Generator().manual_seed(tokens)
    module = nn.Module()
    module.num_key_value_groups = 3
    query = torch.randn(5, 6, 1, 16, generator=generator)
    key, value = (torch.randn(5, 2, tokens, 16, generator=generator) for _ in range(2))
    mask = torch.rand(5, 1, 1, tokens, generator=generator) < 0.7
    mask[..., -1] = True
    ours, _ = _attention(module, query, key, value, mask, scaling=0.3)
    theirs, _ = sdpa_attention_forward(module, query, key, value, mask, scaling=0.3)
    assert torch.equal(ours, theirs)


def test_only_float32_on_a_cpu_is_given_other_attention():
    model, half = tiny_llama(tied=True), tiny_llama(tied=True).bfloat16()
    attend_with_unrepeated_keys(model)
    attend_with_unrepeated_keys(half)
    assert (model.config._attn_implementation, half.config._attn_implementation) == (UNREPEATED_KEYS, "sdpa")

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from apo_lightning.rollout.decoding import UNREPEATED_KEYS, GrowingLayer, _attention, attend_with_unrepeated_keys
from engine_bench import tiny_llama


def states(generator, rows, tokens):
    return torch.randn(rows, 2, tokens, 3, generator=generator)


@settings(max_examples=30)
@given(st.data())
def test_a_layer_holds_what_was_appended_whatever_is_moved(data):
    """The reference keeps a list of token states a row and concatenates."""
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 99)))
    layer, prompts = GrowingLayer(), data.draw(st.integers(1, 3))
    keys, values = states(generator, prompts, 5), states(generator, prompts, 5)
    layer.update(keys, values)
    index = torch.tensor(data.draw(st.lists(st.integers(0, prompts - 1), min_size=1, max_size=6)))
    layer.spread(index)
    expected = [[row] for row in torch.cat([keys, values], dim=-1)[index]]
    for _ in range(data.draw(st.integers(1, 150))):
        keys, values = states(generator, len(expected), 1), states(generator, len(expected), 1)
        found = layer.update(keys, values)
        for row, new in zip(expected, torch.cat([keys, values], dim=-1), strict=True):
            row.append(new)
        assert torch.equal(torch.cat(found, dim=-1), torch.stack([torch.cat(row, dim=1) for row in expected]))
        assert layer.get_seq_length() == found[0].shape[2]
        if len(expected) > 1 and data.draw(st.integers(0, 9)) == 0:
            hole = data.draw(st.integers(0, len(expected) - 1))
            last = len(expected) - 1
            moved = [] if hole == last else [last]
            layer.move(torch.tensor(moved, dtype=torch.long), torch.tensor([hole] * len(moved), dtype=torch.long), last)
            if moved:
                expected[hole] = expected[last]
            expected = [list(row) for row in expected[:last]]


@pytest.mark.parametrize("tokens", [1, 17, 70])
def test_attention_with_unrepeated_keys_returns_the_same_bits(tokens):
    generator = torch.Generator().manual_seed(tokens)
    module = nn.Module()
    module.num_key_value_groups = 3
    query = torch.randn(5, 6, 1, 16, generator=generator)
    key, value = (torch.randn(5, 2, tokens + 9, 16, generator=generator)[:, :, :tokens] for _ in range(2))
    mask = torch.rand(5, 1, 1, tokens, generator=generator) < 0.7
    mask[..., -1] = True
    ours, _ = _attention(module, query, key, value, mask, scaling=0.3)
    theirs, _ = sdpa_attention_forward(module, query, key, value, mask, scaling=0.3)
    assert torch.equal(ours, theirs)


def test_only_what_gains_by_it_is_given_other_attention():
    model = tiny_llama(tied=True)
    attend_with_unrepeated_keys(model)
    assert model.config._attn_implementation == UNREPEATED_KEYS
    half = tiny_llama(tied=True).bfloat16()
    attend_with_unrepeated_keys(half)
    assert half.config._attn_implementation == "sdpa"

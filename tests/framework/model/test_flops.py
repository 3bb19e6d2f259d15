"""Operations of a real model against torch's own count; peaks by the names that devices give themselves."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import LlamaConfig, LlamaForCausalLM

from apo_lightning.model.flops import Work, model_size, peak_flops_per_second, training_flops, work_of
from apo_lightning.model.packing import PackedSequences


@pytest.mark.parametrize("tied", [True, False])
def test_operations_are_those_that_torch_counts(tied):
    config = LlamaConfig(
        vocab_size=50,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        tie_word_embeddings=tied,
        attn_implementation="eager",
    )
    model = LlamaForCausalLM(config)
    length = 10
    with FlopCounterMode(display=False) as counter:
        model(torch.arange(length)[None]).logits.sum().backward()
    # Eager attention computes the whole square of pairs, so that is what is asked for here.
    work = Work(num_tokens=length, num_pairs=length**2, num_rows=length)
    assert counter.get_total_flops() == training_flops(model_size(model), work)


def test_pairs_are_those_of_positions_that_attend_to_each_other():
    packed = PackedSequences(
        prompts=[(5, 6, 7), (5, 6, 8, 9)], completions=[(1, 2), (3, 4, 4), (3,)], owners=[0, 0, 1], beginning=2
    )
    work = work_of(packed.microbatches([0, 1, 2], 100, torch.device("cpu")))
    # 5 6 | 7, 1, 3 4 | 8 9: each attends to itself and to what it follows in its own sequence.
    assert work == Work(num_tokens=8, num_pairs=1 + 2 + 3 + 4 + 4 + 5 + 3 + 4, num_rows=6)


@pytest.mark.parametrize(
    ("name", "peak"),
    [
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA A800 80GB PCIe", 312e12),
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA H200", 989e12),
        ("NVIDIA H20", 148e12),
        ("NVIDIA L40S", 362e12),
        ("NVIDIA L4", 121e12),
        ("Tesla V100-SXM2-16GB", None),
    ],
)
def test_the_peak_of_a_device(name, peak):
    assert peak_flops_per_second(name) == peak

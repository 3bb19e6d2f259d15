"""Random models in the shapes of real ones, for `make gpu`; nothing is downloaded."""

from collections.abc import Mapping
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

LLAMA3B: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 3072,
    "intermediate_size": 8192,
    "num_hidden_layers": 28,
    "num_attention_heads": 24,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 128256,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": True,
}
"""Llama-3.2-3B."""
QWEN7B: dict[str, Any] = {
    "model_type": "qwen2",
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "vocab_size": 152064,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
}
"""Qwen2.5-7B."""
QWEN1_5B: dict[str, Any] = QWEN7B | {
    "hidden_size": 1536,
    "intermediate_size": 8960,
    "num_attention_heads": 12,
    "num_key_value_heads": 2,
    "vocab_size": 151936,
    "tie_word_embeddings": True,
}
"""Qwen2.5-1.5B."""
SMOLLM2: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "head_dim": 64,
    "vocab_size": 49152,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": True,
}
"""SmolLM2-135M."""
TINY: dict[str, Any] = SMOLLM2 | {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "vocab_size": 512,
    "initializer_range": 0.1,
}
"""No real one's: for a CPU."""


def config_of(fields: Mapping[str, Any]) -> PretrainedConfig:
    others = {key: value for key, value in fields.items() if key != "model_type"}
    return AutoConfig.for_model(fields["model_type"], **others)


def random_model(config: PretrainedConfig, device: torch.device) -> PreTrainedModel:
    """Float32 weights, made where they are used: a CPU would draw billions of numbers for minutes."""
    torch.manual_seed(0)
    with device:
        return AutoModelForCausalLM.from_config(config, dtype=torch.float32)

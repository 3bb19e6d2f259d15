"""An architecture is computed exactly or refused in one line, from its config alone."""

import importlib.util
import re

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from apo_lightning.errors import ConfigError
from apo_lightning.model.architecture import check_architecture, check_length
from apo_lightning.model.packing import PackedSequences
from apo_lightning.model.policy import Policy
from apo_lightning.model.tokenizer import character_tokenizer
from apo_lightning.rollout.vllm_private import NOT_IN_VLLM, NOT_ON_CPU
from apo_lightning.rollout.weight_sync import as_in_checkpoint, named_weights
from benchmarks.robustness.models import check, small_config, sweep
from composing import ROOT

LONGROPE = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.1] * 16, "long_factor": [4.0] * 16}


def longrope(original):
    return {"rope_parameters": LONGROPE, "original_max_position_embeddings": original}


DYNAMIC = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}


def quantised(method):
    return small_config("llama", quantization_config={"quant_method": method, "bits": 4})


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (AutoConfig.for_model("t5"), "an encoder"),
        (AutoConfig.for_model("mistral3"), "is multimodal"),
        (small_config("gemma3"), "is multimodal"),
        (small_config("gemma4_text"), "layers of different sizes"),
        *((quantised(method), rf"is quantised \({method}\)") for method in ("gptq", "awq", "bitsandbytes")),
        (small_config("gpt2"), "no rotary positions"),
        (small_config("qwen3_next"), "layers of linear_attention"),
        (small_config("deepseek_v3"), "kv_lora_rank=512"),
        (small_config("gemma2"), r"attn_logit_softcapping=50\.0"),
        (small_config("llama", attention_dropout=0.1), r"attention_dropout=0\.1"),
        (small_config("seed_oss", attention_dropout=0.0), r"residual_dropout=0\.1"),
        (small_config("mixtral", router_jitter_noise=0.1), r"router_jitter_noise=0\.1"),
        # Seen by the forward on the meta device.
        (small_config("falcon"), r"no base_model\.layers"),
        (small_config("gpt_oss"), "s_aux in its attention"),
        (small_config("stablelm"), "does not hand arguments on"),
        (small_config("diffllama"), "4 calls of attention in 2 layers"),
        (small_config("recurrent_gemma"), "convolutions over positions"),
        (small_config("doge"), "fail without a mask"),
    ],
    ids=lambda value: value.model_type if hasattr(value, "model_type") else None,
)
def test_what_the_policy_does_not_compute_is_refused_by_name(config, message):
    with pytest.raises(ConfigError, match=f"^a {config.model_type} model .*{message}.*: choose another$"):
        check_architecture(config)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (small_config("granite", logits_scaling=8.0), r"GraniteForCausalLM transforms its logits \(logits_scaling=8"),
        (small_config("phi"), "PhiForCausalLM has a bias in its head"),
        (small_config("dots1", n_shared_experts=None), "transformers cannot build the dots1 model"),
    ],
)
def test_a_head_of_its_own_and_a_config_that_builds_nothing_are_refused(config, message):
    with pytest.raises(ConfigError, match=message):
        check_architecture(config)


@pytest.mark.parametrize(
    ("model_type", "fields", "longest"),
    [
        ("llama", {}, None),
        ("qwen3_moe", {}, None),
        ("jetmoe", {}, None),  # its router reads values, which there are none of on the meta device
        ("mistral", {"sliding_window": 64}, 64),
        ("gemma3_text", {"sliding_window": 128}, 128),
        ("qwen2", {"use_sliding_window": False, "sliding_window": 64}, None),
        ("phi3", longrope(32), 32),
        ("llama", {"rope_parameters": DYNAMIC}, 512),
    ],
)
def test_windows_and_rotary_types_limit_the_length_not_the_model(model_type, fields, longest):
    config = small_config(model_type, **fields)
    before = config.to_dict()
    check_architecture(config)
    check_length(config, longest or 10**9, "shorten it")
    if longest is not None:
        with pytest.raises(ConfigError, match=f"computes up to {longest}: shorten it"):
            check_length(config, longest + 1, "shorten it")
    assert config.to_dict() == before  # the forward on the meta device leaves no mark


@pytest.mark.parametrize(
    ("model_type", "fields"),
    [
        ("mistral", {"sliding_window": 8}),
        ("phi3", longrope(8)),
    ],
)
def test_a_sequence_is_exact_in_any_company_or_refused(model_type, fields):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(small_config(model_type, **fields), dtype=torch.float32)
    policy = Policy(model, character_tokenizer(), torch.float32)

    def logprobs(*completions):
        packed = PackedSequences.of([(5, 6, 7)] * len(completions), completions)
        [microbatch] = packed.microbatches(range(len(completions)), 100, torch.device("cpu"))
        return policy(microbatch).logprobs

    torch.testing.assert_close(logprobs((8, 9))[:2], logprobs((8, 9), (4, 5, 6, 7, 8))[:2])
    with pytest.raises(ConfigError, match=r"sequences of up to 10 tokens, .* computes up to 8: shorten"):
        logprobs((8, 9), (4, 5, 6, 7, 8, 9, 4, 5))


@pytest.mark.parametrize("model_type", ["qwen3_moe", "olmoe", "llama"])
def test_an_engine_gets_the_names_shapes_and_values_of_a_checkpoint(model_type, tmp_path):
    model = AutoModelForCausalLM.from_config(small_config(model_type, tie_word_embeddings=False), dtype=torch.float32)
    model.save_pretrained(tmp_path)
    with torch.device("meta"):
        skeleton = AutoModelForCausalLM.from_config(model.config)
    streamed = dict(as_in_checkpoint(named_weights(model, torch.float32), skeleton))
    from safetensors.torch import load_file

    saved = load_file(tmp_path / "model.safetensors")
    assert streamed.keys() == saved.keys()
    assert all(torch.equal(streamed[name], saved[name]) for name in saved)


@pytest.mark.slow(30)
@pytest.mark.parametrize("model_type", ["llama", "qwen3_moe", "olmoe", "phi3", "glm4_moe", "gemma3_text", "jetmoe"])
def test_an_architecture_trains_and_its_export_agrees(model_type, tmp_path):
    found = check(model_type, "transformers", tmp_path)
    assert (found.outcome, found.reason) == ("runs", "")


def test_adapters_of_experts_are_refused_and_named_ones_train(tmp_path):
    found = check("qwen3_moe", "transformers", tmp_path / "all", "policy=lora")
    assert found.outcome == "refused"
    assert "the experts of a qwen3_moe model are no linear layers" in found.reason
    found = check(
        "qwen3_moe", "transformers", tmp_path / "named", "policy=lora", "policy.lora.target_modules=[q_proj,v_proj]"
    )
    assert (found.outcome, found.reason) == ("runs", "")


@pytest.mark.long
@pytest.mark.vllm
@pytest.mark.slow(120)
@pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed")
def test_experts_and_transformers_own_classes_run_in_vllm(tmp_path):
    pairs = [(model_type, "vllm") for model_type in ("qwen3_moe", "smollm3")]
    assert {found.model_type: found.outcome + found.reason for found in sweep(pairs, tmp_path, 1, 600)} == {
        "qwen3_moe": "runs",
        "smollm3": "runs",
    }


def test_the_page_of_models_has_every_architecture_and_what_vllm_is_refused():
    page = (ROOT / "docs" / "models.md").read_text()
    listed = re.findall(r"`([\w-]+)`", page[page.index("## Trained") :])
    assert sorted(set(listed) & set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)) == sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
    refused = {
        name for name in NOT_IN_VLLM | NOT_ON_CPU if re.search(rf"^\| `{name}` \| yes \| no", page, re.MULTILINE)
    }
    assert refused == (NOT_IN_VLLM | NOT_ON_CPU).keys()

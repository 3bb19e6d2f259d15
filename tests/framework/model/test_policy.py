"""A policy scores exactly the tokens it is asked about, whatever the padding around them."""

import copy
import functools
import random

import gguf
import pytest
import torch
from hydra.utils import instantiate
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from apo_lightning.errors import ConfigError
from apo_lightning.model.architecture import refuse_unsupported_head
from apo_lightning.model.packing import PackedSequences
from apo_lightning.model.policy import Policy
from apo_lightning.model.spec import PolicySpec, cpu_multiplies_bfloat16
from apo_lightning.model.tokenizer import character_tokenizer
from composing import composed


@pytest.fixture(scope="module")
def spec() -> PolicySpec:
    return instantiate(composed("model=tiny").model, _convert_="all")


@pytest.fixture
def policy(spec) -> Policy:
    return Policy(spec.load_model(seed=1), spec.load_tokenizer(), torch.float32)


def packed() -> PackedSequences:
    return PackedSequences(prompts=[(5, 6, 7), (9,)], completions=[(11, 12), (13, 14, 15, 16), (17,)], owners=[0, 1, 1])


CPU = torch.device("cpu")


CHOICES = torch.tensor([1.0, -2.0, 0.5, 3.0, -1.0, 2.0, 0.7])
ARCHITECTURE = {"hidden_size": 24, "intermediate_size": 48, "num_hidden_layers": 2, "max_position_embeddings": 64}


def small(name, *, heads=4, kv_heads=2, seed=0) -> Policy:
    """A random model of another architecture than the tiny one's."""
    config = AutoConfig.for_model(
        name, vocab_size=32, num_attention_heads=heads, num_key_value_heads=kv_heads, head_dim=6, **ARCHITECTURE
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Policy(
            AutoModelForCausalLM.from_config(config, dtype=torch.float32), character_tokenizer(), torch.float32
        )


def one_by_one(policy, sequences, weights):
    """Log-probs and Σ_t w_t·log π(y_t)'s gradients, from a plain forward of each sequence alone."""
    policy.zero_grad()
    logprobs = []
    for owner, completion in zip(sequences.owners, sequences.completions, strict=True):
        prompt = sequences.prompts[owner]
        logits = policy.model(torch.tensor([prompt + completion])).logits[0, len(prompt) - 1 : -1]
        logprobs.append(logits.log_softmax(-1).gather(1, torch.tensor(completion)[:, None])[:, 0])
    (weights * torch.cat(logprobs)).sum().backward()
    return torch.cat(logprobs).detach(), [parameter.grad.clone() for parameter in policy.parameters()]


def packed_together(policy, sequences, weights, budget):
    policy.zero_grad()
    logprobs = torch.full_like(weights, torch.nan)
    for microbatch in sequences.microbatches(range(len(sequences.completions)), budget, CPU):
        found = policy(microbatch).logprobs
        (weights[microbatch.token_index] * found).sum().backward()
        logprobs[microbatch.token_index] = found.detach()
    return logprobs, [parameter.grad.clone() for parameter in policy.parameters()]


def largest_difference(gradients, others):
    """Relative to the largest entry of all."""
    scale = max(gradient.abs().max() for gradient in others)
    return max((one - two).abs().max() / scale for one, two in zip(gradients, others, strict=True))


def test_statistics_are_those_of_a_plain_forward_of_each_sequence_alone(policy):
    sequences = packed()
    (microbatch,) = sequences.microbatches([0, 1, 2], 100, CPU)
    found = policy(microbatch, temperature=0.7)
    for b, (owner, completion) in enumerate(zip(sequences.owners, sequences.completions, strict=True)):
        prompt = sequences.prompts[owner]
        logits = policy.model(torch.tensor([prompt + completion])).logits[0].double() / 0.7
        rows = logits.log_softmax(-1)[len(prompt) - 1 : -1]
        start = sequences.starts[b]
        inside = (microbatch.token_index >= start) & (microbatch.token_index < start + len(completion))
        expected = {
            "logprobs": rows.gather(1, torch.tensor(completion)[:, None])[:, 0],
            "entropy": -(rows.exp() * rows).sum(-1),
            "max_prob": rows.exp().amax(-1),
        }
        for name, values in expected.items():
            torch.testing.assert_close(getattr(found, name)[inside].double(), values, atol=1e-5, rtol=0)


@pytest.mark.parametrize("budget", [1, 6, 9, 100])
@pytest.mark.parametrize("gradient_checkpointing", [False, True])
@pytest.mark.parametrize(("name", "heads", "kv_heads"), [("llama", 4, 2), ("qwen2", 6, 1), ("qwen3", 4, 4)])
def test_running_sequences_together_leaves_every_gradient_as_it_is(
    name, heads, kv_heads, gradient_checkpointing, budget
):
    policy = small(name, heads=heads, kv_heads=kv_heads)
    logprobs, gradients = one_by_one(policy, packed(), CHOICES)
    if gradient_checkpointing:
        policy.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        policy.train()
    found, others = packed_together(policy, packed(), CHOICES, budget)
    torch.testing.assert_close(found, logprobs, atol=1e-5, rtol=0)
    assert largest_difference(others, gradients) <= 1e-5


RAGGED = st.lists(
    st.tuples(st.integers(1, 6), st.lists(st.integers(1, 6), min_size=1, max_size=4)), min_size=1, max_size=3
)


@given(groups=RAGGED, budget=st.integers(1, 60), seed=st.integers(0, 99))
@settings(max_examples=20)
def test_any_mix_of_lengths_gives_the_gradient_of_each_sequence_alone(groups, budget, seed):
    draw = random.Random(seed)
    sequences = PackedSequences(
        prompts=[tuple(draw.choices(range(32), k=length)) for length, _ in groups],
        completions=[tuple(draw.choices(range(32), k=length)) for _, lengths in groups for length in lengths],
        owners=[owner for owner, (_, lengths) in enumerate(groups) for _ in lengths],
    )
    policy = small("llama")
    weights = torch.tensor([draw.gauss(0, 1) for completion in sequences.completions for _ in completion])
    logprobs, gradients = one_by_one(policy, sequences, weights)
    found, others = packed_together(policy, sequences, weights, budget)
    torch.testing.assert_close(found, logprobs, atol=1e-5, rtol=0)
    assert largest_difference(others, gradients) <= 1e-5


def test_in_bfloat16_both_ways_are_off_by_rounding_alone():
    policy = small("llama")
    exact, gradients = one_by_one(policy, packed(), CHOICES)
    policy.compute_dtype = torch.bfloat16
    found, others = packed_together(policy, packed(), CHOICES, 100)
    torch.testing.assert_close(found, exact, atol=0.03, rtol=0)
    assert largest_difference(others, gradients) <= 0.05


@pytest.mark.parametrize(
    ("name", "has", "takes"),
    [
        ("AMD EPYC", [], False),
        ("AMD EPYC", ["avx512_bf16"], True),
        ("AMD EPYC", ["avx512_bf16", "avx512_fp16"], True),
        ("Intel Xeon", ["avx512_bf16", "avx512_fp16", "amx_bf16"], True),
        ("Intel Xeon", ["avx512_bf16"], True),
        ("Intel Xeon", ["avx512_bf16", "avx512_fp16"], False),
    ],
)
def test_a_cpu_computes_in_bfloat16_where_that_is_faster(name, has, takes):
    # The last is a virtual machine that hides AMX; what it shows multiplies at half the rate of float32.
    assert cpu_multiplies_bfloat16({"cpu_name": name, **dict.fromkeys(has, True)}) == takes


def test_the_backbone_sees_each_position_once_and_every_layer_runs_once(policy):
    counts = []
    for layer in policy.model.model.layers:
        layer.register_forward_pre_hook(lambda module, inputs: counts.append(inputs[0].shape[:2].numel()))
    (microbatch,) = packed().microbatches([0, 1, 2], 100, CPU)
    policy(microbatch)
    # Prompts of 3 and 1; completions of 2, 4 and 1, each without its last token: 4 + 1 + 3 + 0.
    assert counts == [8] * len(policy.model.model.layers)


def test_the_same_seed_makes_the_same_random_model_and_leaves_the_global_generator_alone(spec):
    before = torch.get_rng_state()
    first, second, other = (spec.load_model(seed=seed) for seed in (1, 1, 2))
    assert torch.equal(before, torch.get_rng_state())
    pairs = list(zip(first.parameters(), second.parameters(), strict=True))
    assert all(torch.equal(a, b) for a, b in pairs)
    assert not torch.equal(first.lm_head.weight, other.lm_head.weight)


def test_a_saved_policy_loads_in_transformers_with_the_same_weights(policy, tmp_path):
    policy.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    for (name, mine), theirs in zip(policy.model.named_parameters(), loaded.parameters(), strict=True):
        assert torch.equal(mine, theirs), name
    assert AutoTokenizer.from_pretrained(tmp_path)("13 + 5").input_ids == policy.tokenizer("13 + 5").input_ids


def test_a_model_that_caps_its_logits_is_refused_by_name(policy):
    policy.model.config.final_logit_softcapping = 30.0
    with pytest.raises(ConfigError, match=r"final_logit_softcapping=30\.0"):
        refuse_unsupported_head(policy.model)


def test_a_model_that_attends_otherwise_is_refused_before_its_weights_are_made():
    spec = PolicySpec(name="x", config={"model_type": "gpt2"})
    with pytest.raises(ConfigError, match="a gpt2 model has no rotary positions"):
        spec.load_model(seed=0)


@pytest.mark.parametrize("path", ["outputs/bases/locks", "/no/model", "./model", "~/model"])
def test_a_path_that_cannot_be_a_hub_id_is_a_folder_that_exists(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    place = "" if path.startswith(("/", "~")) else f" in {tmp_path}"
    with pytest.raises(ConfigError, match=f"model.path={path}: there is no such folder{place}:") as refused:
        PolicySpec(name="x", path=path).load_config()
    assert ("; apo pretrain data=locks makes it" in str(refused.value)) == (path == "outputs/bases/locks")


@pytest.mark.slow
def test_smollm2_loads_from_its_package_and_can_be_saved(tmp_path, monkeypatch):
    # What the library reads anew for the configuration, the tokenizer and the weights, and maps for each module.
    for name in ("GGUFReader", "get_tensor_name_map"):
        monkeypatch.setattr(gguf, name, functools.cache(getattr(gguf, name)))
    spec = instantiate(composed("model=smollm2_135m").model, _convert_="all")
    policy = Policy(spec.load_model(seed=0), spec.load_tokenizer(), torch.float32)
    assert sum(parameter.numel() for parameter in policy.parameters()) == 134_515_008
    assert all(parameter.dtype == torch.float32 for parameter in policy.parameters())
    policy.save_pretrained(tmp_path)
    assert (tmp_path / "model.safetensors").is_file()


def test_an_architecture_has_one_folder_whatever_its_weights(spec, policy, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = policy.architecture_folder()
    other = Policy(spec.load_model(seed=2), spec.load_tokenizer(), torch.float32)
    assert folder == other.architecture_folder() != small("llama").architecture_folder()
    assert len(list(tmp_path.glob("apo-lightning/architectures/*"))) == 2
    assert AutoConfig.from_pretrained(folder).to_json_string() == policy.model.config.to_json_string()


def test_an_architecture_without_a_cache_folder_is_refused(policy, monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(ConfigError, match=r"cache folder .*file \(.*Not a directory.*\): set XDG_CACHE_HOME"):
        policy.architecture_folder()


def sampled(policy: Policy) -> torch.Tensor:
    """Log-probs of a few tokens."""
    sequences = PackedSequences(prompts=[(5, 6, 7), (9,)], completions=[(11, 12, 13), (14, 15)], owners=[0, 1])
    (microbatch,) = sequences.microbatches([0, 1], 100, torch.device("cpu"))
    with torch.no_grad():
        return policy(microbatch).logprobs


def off_powers_of_two(policy: Policy) -> Policy:
    """Weights that no rounding leaves alone, the norms' too."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.mul_(1 + 0.3 * torch.rand(parameter.shape, generator=generator))
    return policy


def test_rounded_matrices_are_what_autocast_makes_of_whole_ones():
    spec = instantiate(composed("model=tiny").model, _convert_="all")
    policy = off_powers_of_two(Policy(spec.load_model(1), spec.load_tokenizer(), torch.bfloat16)).eval()
    before, num_bytes = sampled(policy), sum(p.nbytes for p in policy.parameters())
    rounded, all_of_it = copy.deepcopy(policy), copy.deepcopy(policy).to(torch.bfloat16)
    rounded.round_matrices()
    assert torch.equal(sampled(rounded), before)
    matrices = [p for p in rounded.model.base_model.layers.parameters() if p.dim() == 2]
    assert {p.dtype for p in matrices} == {torch.bfloat16}
    assert sum(p.nbytes for p in rounded.parameters()) == num_bytes - 2 * sum(p.numel() for p in matrices)
    # A residual stream in bfloat16 is another policy: this is what the matrices alone do not cost.
    assert not torch.equal(sampled(all_of_it), before)

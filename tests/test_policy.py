"""A policy scores exactly the tokens it is asked about, whatever the padding around them."""

import pytest
import torch
from hydra.utils import instantiate
from transformers import AutoModelForCausalLM, AutoTokenizer

from apo_lightning.errors import ConfigError
from apo_lightning.packing import PackedSequences
from apo_lightning.policy import Policy, PolicySpec, refuse_unsupported_head
from apo_lightning.reference import Reference
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


@pytest.mark.parametrize("share_prompts", [False, True])
def test_statistics_are_those_of_a_plain_forward_of_each_sequence_alone(policy, share_prompts):
    sequences = packed()
    (microbatch,) = sequences.microbatches([0, 1, 2], 100, CPU, share_prompts=share_prompts)
    found = policy(microbatch, temperature=0.7)
    logprobs = torch.empty_like(found.logprobs)
    for row in range(3):
        prompt, completion = sequences.prompts[sequences.owners[row]], sequences.completions[row]
        logits = policy.model(torch.tensor([prompt + completion])).logits[0].double() / 0.7
        rows = logits.log_softmax(-1)[len(prompt) - 1 : -1]
        start = sequences.starts[row]
        inside = (microbatch.token_index >= start) & (microbatch.token_index < start + len(completion))
        logprobs[inside] = rows.gather(1, torch.tensor(completion)[:, None])[:, 0].float()
    torch.testing.assert_close(found.logprobs, logprobs, atol=1e-5, rtol=0)


def test_a_prompt_run_once_for_its_group_leaves_every_gradient_as_it_is(policy):
    gradients = []
    for share_prompts, budget in ((False, 100), (True, 100), (True, 6)):
        policy.zero_grad()
        for microbatch in packed().microbatches([0, 1, 2], budget, CPU, share_prompts=share_prompts):
            statistics = policy(microbatch)
            weights = torch.tensor([1.0, -2.0, 0.5, 3.0, -1.0, 2.0, 0.7])[microbatch.token_index]
            (weights * statistics.logprobs + 0.1 * statistics.entropy).sum().backward()
        gradients.append([parameter.grad.clone() for parameter in policy.parameters()])
    largest = max(gradient.abs().max() for gradient in gradients[0])
    for other in gradients[1:]:
        for one, two in zip(gradients[0], other, strict=True):
            assert (one - two).abs().max() <= 1e-5 * largest


def test_the_same_seed_makes_the_same_random_model_and_leaves_the_global_generator_alone(spec):
    before = torch.get_rng_state()
    first, second, other = (spec.load_model(seed=seed) for seed in (1, 1, 2))
    assert torch.equal(before, torch.get_rng_state())
    pairs = list(zip(first.parameters(), second.parameters(), strict=True))
    assert all(torch.equal(a, b) for a, b in pairs)
    assert not torch.equal(first.lm_head.weight, other.lm_head.weight)


def test_the_reference_is_frozen_and_does_not_follow_the_policy(policy):
    reference = Reference(policy)
    (microbatch,) = packed().microbatches([0, 1], 100, CPU, share_prompts=True)
    before = reference.hidden_states(microbatch)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(0.1)
    assert torch.equal(reference.hidden_states(microbatch), before)
    assert not any(parameter.requires_grad for parameter in reference.policy.parameters())


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


def test_a_missing_package_file_is_one_line():
    with pytest.raises(ConfigError, match="no_such_package"):
        PolicySpec(name="x", path="package://no_such_package/x.gguf").load_config()


@pytest.mark.slow
def test_smollm2_loads_from_its_package_and_can_be_saved(tmp_path):
    spec = instantiate(composed("model=smollm2_135m").model, _convert_="all")
    policy = Policy(spec.load_model(seed=0), spec.load_tokenizer(), torch.float32)
    assert sum(parameter.numel() for parameter in policy.parameters()) == 134_515_008
    assert all(parameter.dtype == torch.float32 for parameter in policy.parameters())
    policy.save_pretrained(tmp_path)
    assert (tmp_path / "model.safetensors").is_file()

"""Adapters are what is trained; engine, export and reference never see them."""

import copy
import json
from types import SimpleNamespace

import pytest
import torch
from hydra.utils import instantiate
from peft import LoraConfig, PeftModel, inject_adapter_in_model
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoConfig, AutoModelForCausalLM

from apo_lightning.errors import ConfigError
from apo_lightning.model.fingerprint import weights_sha256
from apo_lightning.model.flops import Work, model_size, training_flops
from apo_lightning.model.lora import LoRA, adapters_off, merged_parameters
from apo_lightning.model.packing import PackedSequences
from apo_lightning.model.policy import Policy, Reference
from apo_lightning.rollout.engine import parameter_shapes
from apo_lightning.rollout.weight_sync import named_weights
from apo_lightning.types import Advantages
from composing import composed
from engine_bench import tiny_llama
from factories import logprob_sum
from running import SIGNAL, train_tiny

CPU = torch.device("cpu")
NO_ADVANTAGE = Advantages(values=torch.zeros(1, 2), keep=torch.ones(1, 2, dtype=torch.bool))
IDS = torch.arange(5, 25)[None]


def microbatch():
    packed = PackedSequences(
        prompts=[(5, 6, 7), (9,)], completions=[(11, 12), (13, 14, 15, 16), (17,)], owners=[0, 1, 1]
    )
    (whole,) = packed.microbatches([0, 1, 2], 100, CPU)
    return whole


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A policy after several optimizer steps, the weights it began with, and what the run left behind."""
    folder = tmp_path_factory.mktemp("lora")
    options = (*SIGNAL, "policy=lora", "policy.lora.rank=4", "callbacks=export", "algo=apo", "optimizer.lr=2e-2")
    summary = "+callbacks.summary._target_=apo_lightning.callbacks.RunSummary"
    policy = train_tiny(folder, *options, summary, "trainer.max_steps=3").policy
    cfg = composed("model=tiny")
    return SimpleNamespace(
        policy=policy, base=instantiate(cfg.model, _convert_="all").load_model(cfg.seed), folder=folder
    )


def adapted(*, tied=True, **fields):
    """A model whose adapters do something: PEFT starts B at 0."""
    model = tiny_llama(tied)
    LoRA(**fields).attach(model, seed=1)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.copy_(0.1 * torch.randn(parameter.shape, generator=generator))
    return model


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"rank": 0}, "policy.lora.rank is 0"),
        ({"alpha": 0.0}, r"policy.lora.alpha is 0\.0"),
        ({"target_modules": "q_proj"}, r"target_modules is 'q_proj': give all-linear, or a list"),
        ({"target_modules": []}, r"target_modules is \[\]"),
    ],
)
def test_what_cannot_be_an_adapter_is_one_line(fields, message):
    with pytest.raises(ConfigError, match=message):
        LoRA(**fields)


@pytest.mark.parametrize("target", ["key_proj", "lm_head", "embed_tokens", "proj"])
def test_a_layer_that_is_not_there_or_is_never_adapted_is_named_before_any_weights_are_made(target):
    config = AutoConfig.for_model("llama", hidden_size=1 << 20, intermediate_size=1 << 22)  # terabytes
    with pytest.raises(
        ConfigError, match=f"'{target}'.*choose from down_proj, gate_proj, k_proj, .*; the head is never"
    ):
        LoRA(target_modules=["q_proj", target]).check(config)


def test_a_new_adapter_changes_nothing_and_only_adapters_can_be_trained():
    plain, model = tiny_llama(tied=True), tiny_llama(tied=True)
    before = torch.get_rng_state()
    LoRA(rank=3, target_modules=["q_proj", "mlp.up_proj"]).attach(model, seed=1)
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(model(IDS).logits, plain(IDS).logits)
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert trained == {
        f"model.layers.{i}.{layer}.lora_{part}.default.weight"
        for i in range(2)
        for layer in ("self_attn.q_proj", "mlp.up_proj")
        for part in "AB"
    }


def test_all_linear_is_all_but_the_head():
    model = adapted(tied=False, rank=2)
    # Of each layer the four of attention and the three of the MLP.
    assert sum(name.endswith("base_layer.weight") for name, _ in model.named_parameters()) == 2 * 7
    assert not model.lm_head.weight.requires_grad
    assert type(model.lm_head) is torch.nn.Linear


@pytest.mark.parametrize("tied", [True, False])
def test_the_stream_is_that_of_a_plain_model_which_computes_the_same_and_moves_no_weight(tied, tmp_path):
    model = adapted(tied=tied, rank=4, alpha=8)
    before = copy.deepcopy(model.state_dict())
    stream = list(named_weights(model, torch.float32))
    model.config.save_pretrained(tmp_path)
    assert {name: weight.shape for name, weight in stream} == parameter_shapes(tmp_path)
    assert len({name for name, _ in stream}) == len(stream)
    assert not any(weight.requires_grad for _, weight in stream)
    plain = tiny_llama(tied)
    unadapted = plain(IDS).logits
    plain.load_state_dict(dict(stream))
    torch.testing.assert_close(plain(IDS).logits, model(IDS).logits, atol=1e-4, rtol=0)
    assert (plain(IDS).logits - unadapted).abs().max() > 0.1
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def test_a_merged_matrix_is_w_plus_alpha_over_rank_times_b_a():
    model = adapted(rank=4, alpha=6)
    layer = model.model.layers[1].mlp.down_proj
    product = layer.lora_B["default"].weight.double() @ layer.lora_A["default"].weight.double()
    expected = layer.base_layer.weight.double() + 1.5 * product
    found = dict(merged_parameters(model))["model.layers.1.mlp.down_proj.weight"]
    torch.testing.assert_close(found.double(), expected, atol=1e-6, rtol=0)


def gradient(model, dtype):
    """Of the adapters, as one vector."""
    model.zero_grad()
    with torch.autocast("cpu", dtype=dtype, enabled=dtype != torch.float32):
        logprobs = model(IDS).logits.float().log_softmax(-1)
    (logprobs * torch.linspace(-1, 1, logprobs.shape[-1])).sum().backward()
    parts = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    assert all("lora_" in name and part.dtype == torch.float32 for name, part in parts.items())
    return torch.cat([part.flatten() for part in parts.values()])


def test_the_gradient_is_that_of_peft_s_own_layers_and_no_worse_in_bfloat16():
    ours, theirs = adapted(rank=4), tiny_llama(tied=True)
    inject_adapter_in_model(LoraConfig(r=4, lora_alpha=32, target_modules="all-linear"), theirs)
    theirs.load_state_dict(ours.state_dict())
    exact = gradient(theirs, torch.float32)
    assert (gradient(ours, torch.float32) - exact).norm() <= 1e-5 * exact.norm()
    errors = [(gradient(model, torch.bfloat16) - exact).norm() for model in (ours, theirs)]
    assert errors[0] <= 1.5 * errors[1] <= 0.3 * exact.norm()


def test_in_bfloat16_it_is_the_merged_model_to_the_last_bit():
    model, plain = adapted(rank=4), tiny_llama(tied=True)
    plain.load_state_dict(dict(merged_parameters(model, remove_duplicate=False)))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(model(IDS).logits, plain(IDS).logits)


def test_adapters_come_back_on_after_an_exception_and_keep_their_gradient():
    model, plain = adapted(rank=4), tiny_llama(tied=True)
    with_adapters, without = model(IDS).logits, plain(IDS).logits

    def fails_inside():
        with adapters_off(model):
            with adapters_off(model):
                pass
            assert torch.equal(model(IDS).logits, without)
            assert any(parameter.requires_grad for parameter in model.parameters())
            raise RuntimeError("inside")

    with pytest.raises(RuntimeError, match="inside"):
        fails_inside()
    assert torch.equal(model(IDS).logits, with_adapters)


def test_training_moves_the_adapters_alone_and_they_are_float32(trained):
    base = dict(trained.base.named_parameters())
    kept = {
        name.replace(".base_layer", ""): p for name, p in trained.policy.model.named_parameters() if "lora_" not in name
    }
    assert kept.keys() == base.keys()
    assert all(torch.equal(base[name], parameter) for name, parameter in kept.items())
    moved = [p for p in trained.policy.parameters() if p.requires_grad]
    assert all(parameter.dtype == torch.float32 and parameter.abs().max() > 0 for parameter in moved)
    merged = dict(merged_parameters(trained.policy.model))
    assert all((merged[name] - base[name]).abs().max() > 1e-3 for name in base if "_proj" in name)


def test_after_training_the_policy_without_adapters_is_still_the_frozen_copy_it_replaces(trained):
    frozen = Reference(Policy(copy.deepcopy(trained.base), trained.policy.tokenizer, torch.float32))
    switched = Reference(trained.policy)
    assert switched.policy is trained.policy
    assert switched.copies == []
    tokens = microbatch()
    torch.testing.assert_close(switched.hidden_states(tokens), frozen.hidden_states(tokens), atol=1e-5, rtol=0)
    assert torch.equal(switched.head_weight, frozen.head_weight)
    assert (trained.policy.hidden_states(tokens) - frozen.hidden_states(tokens)).abs().max() > 0.1
    found, expected = (reference.score(tokens, 4, temperature=0.7) for reference in (switched, frozen))
    torch.testing.assert_close(found.logprobs, expected.logprobs, atol=1e-5, rtol=0)
    torch.testing.assert_close(found.anchor_logprobs, expected.anchor_logprobs, atol=1e-5, rtol=0)
    assert torch.equal(found.anchor_ids, expected.anchor_ids)


def test_both_exports_are_the_policy_and_the_summarys_hash_is_theirs(trained):
    expected = trained.policy.model(IDS).logits
    merged = AutoModelForCausalLM.from_pretrained(trained.folder / "checkpoints" / "final", dtype=torch.float32)
    torch.testing.assert_close(merged(IDS).logits, expected, atol=1e-4, rtol=0)
    summary = json.loads((trained.folder / "summary.json").read_text())
    again = Policy(merged, trained.policy.tokenizer, torch.float32)
    assert summary["weights_sha256"] == weights_sha256(again) == weights_sha256(trained.policy)
    with_adapter = PeftModel.from_pretrained(copy.deepcopy(trained.base), trained.folder / "checkpoints" / "adapter")
    torch.testing.assert_close(with_adapter(IDS).logits, expected, atol=1e-5, rtol=0)
    assert (trained.base(IDS).logits - expected).abs().max() > 0.1


def test_operations_are_those_that_torch_counts_where_only_adapters_need_a_gradient():
    model = tiny_llama(tied=True)
    model.set_attn_implementation("eager")
    # As PEFT computes it: merging first takes other operations, which are no part of the model's work.
    inject_adapter_in_model(LoraConfig(r=3, target_modules="all-linear"), model)
    # As if another layer came before the first one.
    inputs = model.get_input_embeddings()(IDS).detach().requires_grad_()
    with FlopCounterMode(display=False) as counter:
        model(inputs_embeds=inputs).logits.sum().backward()
    num_tokens = IDS.shape[1]
    work = Work(num_tokens=num_tokens, num_pairs=num_tokens**2, num_rows=num_tokens)
    assert counter.get_total_flops() == training_flops(model_size(model), work)


@pytest.mark.parametrize("in_chunks", [True, False])
def test_a_frozen_head_is_spared_its_gradient(trained, in_chunks):
    def operations(head_is_frozen):
        policy = Policy(adapted(tied=False, rank=4), trained.policy.tokenizer, torch.float32)
        policy.head_weight.requires_grad_(not head_is_frozen)
        tokens = microbatch()
        with FlopCounterMode(display=False) as counter:
            loss = logprob_sum(policy, tokens) if in_chunks else policy(tokens).logprobs.sum()
            loss.backward()
        return counter.get_total_flops(), policy.head_weight

    trainable, weight = operations(head_is_frozen=False)
    frozen, _ = operations(head_is_frozen=True)
    assert trainable - frozen == 2 * weight.numel() * len(microbatch().rows)

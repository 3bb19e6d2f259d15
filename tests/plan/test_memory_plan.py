"""The plan's figures, derived by hand for a 7B model on eight GPUs, and its arithmetic against real tensors."""

import functools
from dataclasses import replace

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from apo_lightning.common.formatting import GIB
from apo_lightning.model.lora import LoRA
from apo_lightning.model.packing import PackedSequences
from apo_lightning.model.policy import Policy
from apo_lightning.model.tokenizer import character_tokenizer
from apo_plan.memory_plan import LIBRARIES_BYTES, activation_bytes, layer_activation_bytes, plan_memory
from apo_plan.shapes import shape_of
from benchmarks.shared.models import QWEN7B
from factories import logprob_sum
from paper_sizes import PAPER, qwen_math7b

# Qwen2.5-Math-7B. A layer: q 3584² + 3584, k and v 2·(3584·512 + 512), o 3584², MLP 3·3584·18944, two norms 2·3584.
LAYER = 3584**2 + 3584 + 2 * (3584 * 512 + 512) + 3584**2 + 3 * 3584 * 18944 + 2 * 3584
# Embedding and head, untied, and the last norm.
ROOT = 2 * 152064 * 3584 + 3584
N = 28 * LAYER + ROOT


def test_a_7b_model_is_counted_without_its_weights():
    model = qwen_math7b()
    assert (LAYER, ROOT, N) == (233_057_792, 1_089_998_336, 7_615_616_512)
    assert (model.num_parameters, model.layer_parameters, model.root_parameters) == (N, LAYER, ROOT)


def test_the_papers_run_on_eight_gpus_by_hand():
    plan = plan_memory(qwen_math7b(), PAPER)
    parts = {part.name: part for part in plan.allocations}
    # 4·N/8 = 3,807,808,256 bytes = 3.55 GiB, the same for gradients, twice for Adam.
    assert parts["weights"].update == parts["gradients"].update == 3_807_808_256
    # Layers in bfloat16, embedding and head in float32: (2·28·233,057,792 + 4·1,089,998,336)/8 = 2.03 GiB
    assert parts["reference weights"].update == 2_176_403_712
    assert parts["optimizer moments"].update == 2 * 3_807_808_256
    # 2·N = 15,231,233,024 bytes = 14.2 GiB, asleep in the update, as are the keys and values
    assert (parts["engine weights"].generate, parts["engine weights"].update) == (15_231_233_024, 0)
    assert (parts["keys and values"].generate, parts["keys and values"].update) == (24 * GIB, 0)
    # The gradients of a step are gone by the time it samples again.
    assert parts["gradients"].generate == 0
    # Embedding and head in float32, two layers in bfloat16: 4·1,089,998,336 + 2·2·233,057,792 = 5,292,224,512
    assert parts["gathered by FSDP2"].update == 5_292_224_512
    # Checkpointing keeps 4·3584 bytes of every layer's input, 28·14336 = 401,408 a token, 3·14336 = 43,008 behind the
    # last, and one layer whole: 16·3584 norms, 5·2·3584 products' inputs, 2·2·(3584 + 512) + 4·28 attention,
    # 8·18944 MLP = 57,344 + 35,840 + 16,496 + 151,552 = 261,232. Together 705,648 · 16384 tokens = 11,561,336,832.
    assert parts["activations"].update == 705_648 * 16384 == 11_561_336_832
    # Gathered in bfloat16, they leave autocast nothing to cast.
    assert "weights cast by autocast" not in parts
    # The gradient of one layer, as it comes and as it is summed: (2 + 4)·233,057,792
    assert parts["one layer's gradient, unreduced"].update == 1_398_346_752
    # What earlier micro-batches left at embedding and head: 4·1,089,998,336
    assert parts["embedding and head: unsharded gradient"].update == 4_359_993_344
    # Twice a tile of 2^25 logits and 5·2^27 that are held, the head in bfloat16, and 4 bytes for each weight of the
    # head and each number of ∂L/∂h: 4·(2·2^25 + 5·2^27) + 2·152064·3584 + 4·(152064·3584 + 16384·3584)
    # = 2,952,790,016 + 1,089,994,752 + 2,414,870,528
    head = parts["head: logits, its gradient"].update
    assert head == 6_457_655_296
    # No more are held than a micro-batch of 1,024 tokens has: 1024·152064 in place of 5·2^27
    few = plan_memory(qwen_math7b(), replace(PAPER, microbatch_tokens=1024))
    of_few = {part.name: part for part in few.allocations}["head: logits, its gradient"].update
    assert head - of_few == 4 * (5 * 2**27 - 1024 * 152064) + 4 * (16384 - 1024) * 3584
    # Embedding or head in bfloat16, once as gathered and once as handed on: 2·2·152064·3584
    assert parts["tensors sent to the engine"].sync == 2_179_989_504
    assert plan.total("update") == 1 * GIB + (4 * 3_807_808_256 + 2_176_403_712 + 5_292_224_512) + (
        11_561_336_832 + 1_398_346_752 + 4_359_993_344 + head
    )
    # 80 GB hold it, and would not without the sleeping engine.
    assert (
        plan.peak < 80e9 < plan.total("update") + parts["engine weights"].generate + parts["keys and values"].generate
    )


def test_sharding_divides_what_fsdp2_shards_and_ddp_holds_everything_twice_over():
    model, alone = qwen_math7b(), replace(PAPER, world_size=1, strategy="single")

    def sizes(run):
        return {part.name: part.update for part in plan_memory(model, run).allocations}

    for name in ("weights", "gradients", "optimizer moments", "reference weights"):
        assert sizes(alone)[name] == 8 * sizes(PAPER)[name]
    in_float32 = replace(PAPER, compute_bytes=4)
    assert sizes(in_float32)["reference weights"] == sizes(in_float32)["weights"]
    ddp = sizes(replace(PAPER, strategy="ddp"))
    assert ddp["weights"] == sizes(alone)["weights"]
    assert ddp["gradients"] == 2 * sizes(alone)["gradients"]  # the buckets


def test_the_first_rank_alone_loads_whole_weights_where_they_are_sharded_by_hand():
    plan = plan_memory(qwen_math7b(), PAPER)
    # 4·N on the first; on the others the largest tensor on its way, 4·152064·3584. Shards are on the GPUs.
    assert plan.loading - LIBRARIES_BYTES == 4 * N == 30_462_466_048
    assert plan.loading_others - LIBRARIES_BYTES == 2_179_989_504
    # On CPUs the shards of policy and reference are in the same memory.
    cpu = plan_memory(qwen_math7b(), replace(PAPER, is_cuda=False))
    assert cpu.loading == plan.loading + 3_807_808_256 + 2_176_403_712
    assert cpu.loading_others == plan.loading_others + 3_807_808_256 + 2_176_403_712
    # Whole copies of policy and reference in every process of DDP, in float32 until they are on the device.
    ddp = plan_memory(qwen_math7b(), replace(PAPER, strategy="ddp"))
    assert ddp.loading == ddp.loading_others == LIBRARIES_BYTES + 2 * 30_462_466_048
    # Adapters are drawn on the first rank and handed out like the rest.
    lora = plan_memory(shape_of(AutoConfig.for_model(**QWEN7B), LoRA(rank=16)), PAPER)
    assert lora.loading == plan.loading + 4 * 40_370_176


def test_a_reference_that_is_averaged_is_in_float32_and_so_are_the_weights_before_training_by_hand():
    model = qwen_math7b()

    def sizes(**changes):
        return {part.name: part for part in plan_memory(model, replace(PAPER, **changes)).allocations}

    assert sizes(mixes_reference=True)["reference weights"].update == 3_807_808_256  # 4·N/8
    copied = sizes(changes_reference=True)
    assert copied["reference weights"].update == 2_176_403_712
    assert "weights before training" not in copied
    base = sizes(averages_base=True)["weights before training"]
    assert (base.generate, base.update) == (3_807_808_256, 3_807_808_256)
    lora = shape_of(AutoConfig.for_model(**QWEN7B), LoRA(rank=16))
    parts = {part.name: part for part in plan_memory(lora, replace(PAPER, averages_base=True)).allocations}
    assert parts["weights before training"].update == 4 * 40_370_176 // 8


def test_without_a_reference_in_float32_nothing_is_kept_for_either():
    names = {
        part.name
        for part in plan_memory(qwen_math7b(), replace(PAPER, has_reference=False, compute_bytes=4)).allocations
    }
    assert not names & {"reference weights", "weights cast by autocast"}


def test_adapters_alone_have_gradients_and_moments_by_hand():
    config = AutoConfig.for_model(**QWEN7B)
    model = shape_of(config, LoRA(rank=16))
    # 16·(m + n) of every matrix of a layer: q and o 7168 each, k and v 4096 each, gate, up and down 22528 each.
    adapters = 28 * 16 * (2 * 7168 + 2 * 4096 + 3 * 22528)
    assert (model.num_parameters, model.trained_parameters) == (N, adapters) == (7_615_616_512, 40_370_176)
    parts = {part.name: part for part in plan_memory(model, PAPER).allocations}
    # 4·40,370,176/8 = 20,185,088; the base beside it is frozen, whole in float32, and its own reference.
    assert parts["gradients"].update == 20_185_088
    assert parts["optimizer moments"].update == 2 * 20_185_088
    assert parts["weights"].update == 3_807_808_256 + 20_185_088
    assert "reference weights" not in parts
    # The backward of a layer casts the norms and biases that no adapter covers, 2·(3584 + 2·512 + 7168) = 23,552, and
    # merges a matrix of the MLP, (4 + 4 + 2)·3584·18944 = 678,952,960.
    assert parts["weights cast by autocast"].update == 23_552 + 678_952_960


@pytest.mark.parametrize(
    ("lora", "compiled"), [(None, False), (LoRA(rank=2), False), (None, True)], ids=["full", "lora", "compiled"]
)
@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize(("dtype", "size"), [(torch.float32, 4), (torch.bfloat16, 2)])
def test_planned_activations_are_the_bytes_that_a_real_forward_keeps(
    dtype, size, checkpointing, lora, compiled, monkeypatch
):
    tokenizer = character_tokenizer()
    config = AutoConfig.for_model(
        "llama",
        hidden_size=64,
        intermediate_size=160,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        vocab_size=len(tokenizer),
    )
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).train()
    if lora is not None:
        lora.attach(model, seed=0)
    if checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    policy = Policy(model, tokenizer, dtype, compiles_layers=compiled)
    # Divides a layer in forward and backward as the compiler does, which would take half a minute to build its kernels.
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager_decomp_partition"))
    torch.compiler.reset()
    policy.compile_layers()
    packed = PackedSequences(prompts=[(1,)], completions=[tuple(range(4, 54))] * 8, owners=[0] * 8)
    (microbatch,) = packed.microbatches(range(8), 1000, torch.device("cpu"))
    kept: dict[int, int] = {}
    # Weights and what autocast made of them are two-dimensional and are parts of their own.
    weights = {tuple(p.shape) for p in model.parameters()}

    def keep(tensor):
        shape = tuple(tensor.shape)
        if not (shape in weights or shape[::-1] in weights):
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        logprob_sum(policy, microbatch)
    run = replace(
        PAPER,
        compute_bytes=size,
        gradient_checkpointing=checkpointing,
        microbatch_tokens=len(microbatch.input_ids),
        compiles_layers=compiled,
    )
    shape = shape_of(config, lora)
    planned = activation_bytes(shape, run)
    if checkpointing:  # the layer that a backward recomputes is not there yet
        planned -= run.microbatch_tokens * layer_activation_bytes(shape, run)
    assert sum(kept.values()) == pytest.approx(planned, rel=0.03)


FILLING = replace(PAPER, engine=replace(PAPER.engine, kv_cache_bytes=0, gpu_share=0.3), gpu_bytes=80 * GIB)


def test_a_cache_without_a_size_is_what_the_engines_share_of_the_gpu_leaves_by_hand():
    parts = {part.name: part for part in plan_memory(qwen_math7b(), FILLING).allocations}
    # Of 24 GiB the engine has 2·N of weights, 2·3·(3584 + 18944) for each of 8192 tokens and (2 + 8)·152064 for each of
    # 256 sequences.
    assert parts["keys and values"].generate == 24 * GIB - 15_231_233_024 - 8192 * 135_168 - 256 * 1_520_640


def test_the_engine_check_is_a_phase_without_gradients_beside_an_engine_that_is_awake():
    plan = plan_memory(qwen_math7b(), PAPER)
    parts = {part.name: part for part in plan.allocations}
    # Of a layer 261,232 bytes a token as its backward would keep them, and 3·4·3584 behind the last: 304,240 · 16384.
    # The head in bfloat16, 2·152064·3584, and two tiles of 2^23 logits in float32.
    assert parts["engine check: one micro-batch"].check == 304_240 * 16384 + 1_089_994_752 + 2**28
    for name in ("engine weights", "keys and values", "engine workspace", "optimizer moments"):
        assert parts[name].check == parts[name].generate > 0
    assert parts["gathered by FSDP2"].check == parts["gathered by FSDP2"].update
    assert parts["gradients"].check == parts["activations"].check == 0
    assert plan.total("check") == plan.total("generate") + 304_240 * 16384 + 1_089_994_752 + 2**28 + 5_292_224_512


def test_a_share_without_room_for_one_sequence_shows_in_the_plan():
    plan = plan_memory(qwen_math7b(), replace(FILLING, gpu_bytes=40 * GIB))
    parts = {part.name: part for part in plan.allocations}
    assert parts["keys and values"].generate == 2048 * 57_344  # 2·28·4·128·2 bytes a token


def test_a_separate_critic_is_a_second_model_but_for_reference_head_and_engine():
    model, with_critic = qwen_math7b(), replace(PAPER, num_trained_models=2)
    alone, both = (
        {part.name: part.update for part in plan_memory(model, run).allocations} for run in (PAPER, with_critic)
    )
    for name in ("weights", "gradients", "optimizer moments"):
        assert both[name] == 2 * alone[name]
    assert both["reference weights"] == alone["reference weights"]
    # The GPU's worst moment is the head's, whose logits there are once.
    assert both["activations"] == 2 * alone["activations"]
    assert both["head: logits, its gradient"] == alone["head: logits, its gradient"]
    # Loading takes a second copy in float32 where nothing is sharded.
    single = replace(PAPER, world_size=1, strategy="single")
    loading = [plan_memory(model, replace(single, num_trained_models=n)).loading for n in (1, 2)]
    assert loading[1] - loading[0] == 4 * N

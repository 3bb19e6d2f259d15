"""The seconds of a step, derived by hand for a 7B model on eight GPUs, and what changes them."""

from dataclasses import replace

import pytest
from hydra.utils import instantiate
from hypothesis import given
from hypothesis import strategies as st

from apo_lightning.errors import ConfigError
from apo_lightning.preflight.cost_plan import CostPlan, decoding_steps, plan_cost
from apo_lightning.preflight.memory_shapes import AdapterShape
from apo_lightning.preflight.rates import Rates
from apo_lightning.preflight.workload import NOTHING, Expected, Part, Workload, expected_workload
from apo_lightning.run.sizes import step_settings
from composing import composed
from paper_sizes import PAPER, qwen_math7b

MODEL = qwen_math7b()
RUN = PAPER
# 512 prompts of 150 tokens, 8 completions each of 800 in the mean, on 8 ranks; 60 % with A ≠ 0, 35 % with A < 0.
WORK = Workload(
    num_prompts=64,
    group_size=8,
    prompt_tokens=150,
    completion_tokens=800,
    longest_completion=1536,
    num_minibatches=16,
    updated=Part(prompts=0.6, completions=0.6),
    reference=Part(prompts=0.6, completions=0.35),
    subset=Part(prompts=0.05, completions=0.0125),
    old_logprobs=Part(prompts=0.55, completions=0.55),
)
RATES = Rates(
    name="round numbers",
    matmul_flops_per_second=2e14,
    attention_flops_per_second=1e14,
    memory_bytes_per_second=1e12,
    gather_bytes_per_second=1e11,
    engine_step_seconds=0.01,
    graph_step_seconds=0.002,
)


def seconds(plan: CostPlan, phase: str, name: str) -> float:
    return sum(item.seconds for item in plan.items if (item.phase, item.name) == (phase, name))


def test_the_papers_update_by_hand():
    # 38.4 groups, 307.2 completions, whose last tokens are not run: 5,760 + 307.2·799 tokens, 307.2·800 rows;
    # pairs 38.4·11,325 + 307.2·(119,850 + 319,600)
    tokens, pairs, rows = 251_213, 135_433_920, 245_760
    layers = 2 * 28 * 233_057_792 * tokens
    head = 2 * 152064 * 3584 * rows
    plan = plan_cost(MODEL, RUN, WORK, RATES)
    assert seconds(plan, "update", "products") == pytest.approx(3 * (layers + head) / 2e14)
    assert seconds(plan, "update", "products of recomputed layers") == pytest.approx(layers / 2e14)
    # two forwards, for checkpointing, and a backward of five products where a forward has two
    assert seconds(plan, "update", "attention") == pytest.approx(4.5 * 4 * 28 * 28 * 128 * pairs / 1e14)
    # 16 optimizer steps over an eighth of the parameters
    assert seconds(plan, "update", "optimizer") == pytest.approx(16 * 40 * 951_952_064 / 1e12)
    # chunks of 4,096 tokens, fewer than 5·2^27 / 152,064, read and write a matrix, but the first of each of 16
    # micro-batches writes alone; the other matrix is cleared
    assert seconds(plan, "update", "gradients of embedding and head") == pytest.approx(
        4 * 152064 * 3584 * (2 * rows / 4096 - 16 + 16) / 1e12
    )
    # for each mini-batch the root comes once and its gradient goes once, 7/8 of it to others
    assert seconds(plan, "update", "embedding and head, gathered and reduced") == pytest.approx(
        16 * 2 * 4 * 1_089_998_336 * 0.875 / 1e11
    )
    assert seconds(plan, "update", "casts of weights") == 0  # FSDP2 gathers them cast


def test_the_papers_sampling_by_hand():
    # 512 completions on 256 places: 1,600 full forwards, and a tail of 1,536 − 800
    assert decoding_steps(RUN, WORK) == (1600, 736)
    plan = plan_cost(MODEL, RUN, WORK, RATES)
    assert seconds(plan, "generate", "launches and scheduling") == pytest.approx(23.36)
    # products of 256 tokens take longer than to read the weights: 18 ms, not 15
    flops = 2 * (28 * 233_057_792 * 512 * 799 + 152064 * 3584 * 512 * 800)
    assert seconds(plan, "generate", "decoding: products") == pytest.approx(flops / 2e14)
    assert seconds(plan, "generate", "decoding: weights") == 0
    assert seconds(plan, "generate", "decoding: weights, in the tail") == pytest.approx(736 * 2 * 7_615_616_512 / 1e12)
    # keys and values of a token: 2·28·4·128·2 bytes = 57,344; 550 tokens stand before one in the mean, but the first
    pairs = 512 * 799 * 550
    assert seconds(plan, "generate", "decoding: keys and values") == pytest.approx(pairs * 57_344 / 1e12)
    # 4 blocks of 32 tokens once for the group, and the 22 behind them 8 times: 304 tokens for each of 64 prompts
    assert seconds(plan, "generate", "prompts") == pytest.approx(2 * 28 * 233_057_792 * 19_456 / 2e14)
    assert seconds(plan, "generate", "attention over prompts") == pytest.approx(4 * 28 * 28 * 128 * 19_456 * 75 / 1e14)


def test_few_places_read_the_weights_more_slowly_than_they_multiply_and_slow_attention_counts():
    run = replace(RUN, engine=replace(RUN.engine, num_sequences=128))
    plan = plan_cost(MODEL, run, WORK, replace(RATES, attention_flops_per_second=1e12))
    assert seconds(plan, "generate", "decoding: weights") == pytest.approx(3200 * 2 * 7_615_616_512 / 1e12)
    assert seconds(plan, "generate", "decoding: products") == 0
    attention = 4 * 28 * 28 * 128 * 512 * 799 * 550 / 1e12
    assert seconds(plan, "generate", "decoding: attention") == pytest.approx(attention)
    assert seconds(plan, "generate", "decoding: keys and values") == 0


def test_two_ranks_that_share_an_engine_by_hand():
    run = replace(RUN, engine=replace(RUN.engine, num_slices=2))
    # 1,024 completions of both ranks on 256 places
    assert decoding_steps(run, WORK) == (3200, 736)
    one, two = plan_cost(MODEL, RUN, WORK, RATES), plan_cost(MODEL, run, WORK, RATES)
    for name in ("prompts", "decoding: products", "sampling from logits", "between products"):
        assert seconds(two, "generate", name) == seconds(one, "generate", name)
    half = 2 * 7_615_616_512 // 2
    assert seconds(two, "generate", "decoding: weights, in the tail") == pytest.approx(736 * half / 1e12)
    # twice the tokens, each with half of the 4 heads of keys and values
    assert seconds(two, "generate", "decoding: keys and values") == pytest.approx(2 * 512 * 799 * 550 * 28_672 / 1e12)
    # 28 layers sum twice; of 2 ranks each sends and receives the hidden states once, 3,584 numbers of 2 bytes
    tokens = 2 * (19_456 + 512 * 799)
    assert seconds(two, "generate", "sums over slices") == pytest.approx(28 * 2 * tokens * 3584 * 2 / 1e11)
    assert seconds(one, "generate", "sums over slices") == 0
    assert seconds(two, "generate", "launches and scheduling") == pytest.approx(0.01 * (3200 + 736))


def test_what_lies_between_products_by_hand():
    # bytes of a position and layer: 106 for each of 3,584 numbers, 10 of 18,944, 36 of 4,096 queries and keys;
    # attention reads or writes 2·8,192 and, with gradients, 4·8,192
    forward = 106 * 3584 + 10 * 18_944 + 36 * 4096 + 2 * 8192
    backward = 302 * 3584 + 18 * 18_944 + 58 * 4096 + 4 * 8192
    plan = plan_cost(MODEL, RUN, WORK, RATES)
    assert seconds(plan, "update", "between products") == pytest.approx(
        28 * (2 * forward + backward) * 251_213 / 1e12  # with checkpointing forwards are two
    )
    # 60 % of 64 groups of 150 tokens, 35 % of 512 completions of 799
    assert seconds(plan, "reference", "between products") == pytest.approx(28 * forward * 148_941 / 1e12)
    engine = 2 * (8 * 3584 + 3 * 18_944 + 2 * 4096) + 2 * 8192
    assert seconds(plan, "generate", "between products") == pytest.approx(28 * engine * (19_456 + 512 * 799) / 1e12)


def test_a_gpus_sync_by_hand():
    plan = plan_cost(MODEL, RUN, WORK, RATES)
    # an eighth is cast, 6 bytes a weight; all of it is copied twice, each time 2 bytes read and 2 written
    assert seconds(plan, "sync", "weights to the engine") == pytest.approx((6 / 8 + 8) * 7_615_616_512 / 1e12, rel=1e-6)
    assert seconds(plan, "sync", "gathered weights") == pytest.approx(2 * 7_615_616_512 * 0.875 / 1e11)
    graphs = replace(RUN, engine=replace(RUN.engine, has_graphs=True))
    assert seconds(plan_cost(MODEL, graphs, WORK, RATES), "sync", "visits of layers") == pytest.approx(4 * 0.01)
    transformers = replace(RUN, engine=replace(RUN.engine, name="transformers"))
    assert "visits of layers" not in [item.name for item in plan_cost(MODEL, transformers, WORK, RATES).items]


def test_tied_weights_are_sent_twice_and_share_a_gradient():
    head = 152064 * 3584
    plan, tied = (
        plan_cost(replace(MODEL, num_parameters=number), RUN, WORK, RATES)
        for number in (7_615_616_512, 7_615_616_512 - head)
    )
    # 8 bytes for each weight that the engine gets, as many as before; a head less is cast
    assert seconds(plan, "sync", "weights to the engine") - seconds(tied, "sync", "weights to the engine") == (
        pytest.approx(6 / 8 * head / 1e12)
    )
    # one matrix is cleared, and added in each of 16 micro-batches: two are read and one is written
    name = "gradients of embedding and head"
    assert seconds(tied, "update", name) - seconds(plan, "update", name) == pytest.approx(16 * 3 * 4 * head / 1e12)


def test_graphs_are_launched_faster():
    run = replace(RUN, engine=replace(RUN.engine, has_graphs=True))
    assert seconds(plan_cost(MODEL, run, WORK, RATES), "generate", "launches and scheduling") == pytest.approx(4.672)


def test_transformers_begins_a_batch_when_the_last_has_ended():
    run = replace(RUN, engine=replace(RUN.engine, name="transformers"))
    assert decoding_steps(run, WORK) == (2 * 1536, 0)
    assert decoding_steps(run, replace(WORK, num_prompts=1)) == (1536, 0)


def test_phases_and_items_add_up_and_the_largest_come_first():
    plan = plan_cost(MODEL, RUN, WORK, RATES)
    assert list(plan.phases()) == ["generate", "reference", "old_logprobs", "update", "sync"]
    assert sum(plan.phases().values()) == pytest.approx(plan.seconds)
    largest = [item.seconds for item in plan.largest(10)]
    assert len(largest) == 10
    assert largest == sorted(largest, reverse=True)


def test_what_does_not_run_costs_nothing():
    plan = plan_cost(MODEL, RUN, replace(WORK, reference=NOTHING, subset=NOTHING, old_logprobs=NOTHING), RATES)
    assert list(plan.phases()) == ["generate", "update", "sync"]
    assert list(
        plan_cost(
            MODEL, RUN, replace(WORK, updated=NOTHING, reference=NOTHING, subset=NOTHING, old_logprobs=NOTHING), RATES
        ).phases()
    ) == [
        "generate",
        "sync",
    ]


def test_frozen_matrices_spare_a_third_of_their_products():
    adapters = AdapterShape(num_parameters=0, layer_parameters=233_057_792, largest_matrix=1)
    full, adapted = (plan_cost(model, RUN, WORK, RATES) for model in (MODEL, replace(MODEL, adapters=adapters)))
    spared = 2 * (28 * 233_057_792 * 251_213 + 152064 * 3584 * 245_760) / 2e14
    assert seconds(full, "update", "products") - seconds(adapted, "update", "products") == pytest.approx(spared)


@given(
    factor=st.floats(1.5, 10),
    field=st.sampled_from(["matmul_flops_per_second", "attention_flops_per_second", "memory_bytes_per_second"]),
)
def test_a_faster_device_is_never_slower(factor, field):
    faster = replace(RATES, **{field: factor * getattr(RATES, field)})
    assert plan_cost(MODEL, RUN, WORK, faster).seconds < plan_cost(MODEL, RUN, WORK, RATES).seconds


def test_a_further_forward_of_the_head_is_its_products_and_four_passes_over_its_logits():
    none, half = (plan_cost(MODEL, RUN, replace(WORK, head_passes=number), RATES) for number in (0, 0.5))
    products, logits = 2 * 152064 * 3584 * 245_760 / 2e14, 4 * 4 * 152064 * 245_760 / 1e12
    assert half.seconds - none.seconds == pytest.approx((products + logits) / 2)


@pytest.mark.parametrize(
    ("overrides", "passes"),
    [
        (("algo=grpo",), 0),
        (("algo=grpo", "importance=token_mask"), 0),
        # The first of four mini-batches needs log π_old before the loss; the others need the current policy's mean.
        (("algo=grpo", "importance=sequence_mask"), 0.25),
        (("algo=gspo",), 0.75),
        (("algo=gspo", "importance=sequence_gate"), 1),
        # The policy's own candidates, and the ranks of its entropies.
        (("algo=simko",), 2),
    ],
)
def test_loss_and_importance_say_how_often_the_head_runs(overrides, passes):
    cfg = composed("prompts_per_minibatch=4", *overrides)
    assert workload(cfg, Expected()).head_passes == pytest.approx(passes)


def test_slow_collectives_show_where_products_no_longer_hide_them():
    name = "collectives not hidden by products"
    plan = plan_cost(MODEL, RUN, WORK, RATES)
    assert seconds(plan, "update", name) == 0
    slow = plan_cost(MODEL, RUN, WORK, replace(RATES, gather_bytes_per_second=1e9))
    assert seconds(slow, "update", name) > 0
    # so too without a gradient: 10 micro-batches of the reference, 7/8 of the layers in bfloat16 beside its products
    assert seconds(plan, "reference", name) == 0
    gathered = 10 * 2 * 28 * 233_057_792 * 0.875 / 1e9
    assert seconds(slow, "reference", name) == pytest.approx(gathered - seconds(slow, "reference", "products"))
    # DDP reduces with the last micro-batch of a mini-batch, of which half as large ones make two
    for tokens, num_hidden in ((16384, 16), (8192, 8)):
        ddp = replace(RUN, strategy="ddp", microbatch_tokens=tokens)
        beside = seconds(plan_cost(MODEL, ddp, WORK, RATES), "update", "products") + seconds(
            plan_cost(MODEL, ddp, WORK, RATES), "update", "products of recomputed layers"
        )
        moved = 16 * 2 * 4 * 7_615_616_512 * 0.875 / 1e9
        found = seconds(plan_cost(MODEL, ddp, WORK, replace(RATES, gather_bytes_per_second=1e9)), "update", name)
        assert found == pytest.approx(moved - beside * num_hidden / 16)
    # the root stays whole through all of them
    root = 4 * 1_089_998_336 * 0.875 / 1e9
    assert seconds(slow, "reference", "embedding and head, gathered") == pytest.approx(root)


@pytest.mark.parametrize(
    ("algo", "updated", "prompts", "reference"),
    [
        ("apo", 0.6, 0.6, 0.35),
        ("grpo", 0.6, 0.6, 0.0),
        ("grpo_kl", 1.0, 1.0, 1.0),
        ("grpo_kl_error_only", 0.6, 0.6, 0.35),
        # Groups that are wrong throughout train as well; what is right is dropped, and with nsr some prompts with it.
        ("nsr", 0.35 + 0.3, 0.6 + 0.3, 0.0),
        ("psr", 0.25 + 0.1, 0.6 + 0.1, 0.0),
        ("w_reinforce", 1.0, 1.0, 0.0),
    ],
)
def test_loss_and_advantage_say_who_runs_what(algo, updated, prompts, reference):
    cfg = composed(f"algo={algo}", "prompts_per_minibatch=4", "scored_fraction=0.1")
    work = workload(cfg, Expected(signal_share=0.6, error_share=0.35, failed_share=0.3))
    assert (work.updated.completions, work.reference.completions) == pytest.approx((updated, reference))
    # a group whose rewards differ has something to run, right or wrong
    assert (work.updated.prompts, work.reference.prompts) == pytest.approx((prompts, prompts * (reference > 0)))
    # three of four mini-batches come after an optimizer step, and 13 of 128 are scored, where so many are skipped
    assert work.old_logprobs.completions == pytest.approx(0.75 * updated)
    assert (work.subset.completions, work.subset.prompts) == pytest.approx(
        (13 / 128, 104 / 128) if updated < 1 else (0, 0)
    )
    assert (work.num_prompts, work.num_completions, work.completion_tokens) == (8, 64, 8)


def test_dynamic_sampling_samples_in_rounds_and_trains_on_mixed_groups():
    # Half of the groups are mixed and half of their completions wrong: 16, 8, 4, 2, 1 and 1 prompts on two ranks.
    work = workload(composed("algo=dapo"), Expected(signal_share=0.5, error_share=0.25, failed_share=0.5))
    assert [prompts * 2 for prompts in work.rounds] == [16, 8, 4, 2, 1, 1]
    assert work.num_sampled_tokens == 16 * 8 * 8
    assert (work.num_prompts, work.updated.completions) == (8, 1)
    assert "8, 4, 2, 1, 0.5, 0.5" in work.describe()
    at_once = workload(composed("algo=dapo"), Expected())
    assert (list(at_once.rounds), at_once.num_sampled_tokens) == ([8], 8 * 8 * 8)
    # A second round of the same size costs what the first one does, its tail included.
    one, two = (plan_cost(MODEL, RUN, replace(WORK, rounds=[64] * n), RATES).phases() for n in (1, 2))
    assert one == plan_cost(MODEL, RUN, WORK, RATES).phases()
    assert two == one | {"generate": pytest.approx(2 * one["generate"])}


def test_an_auxiliary_term_runs_its_completions_with_the_update():
    # 16 prompts of 8 completions, in four mini-batches of 5 stored completions, on two ranks: 10 with their prompts
    cfg = composed("algo=dph", "algo.auxiliary.completions_per_minibatch=5", "prompts_per_minibatch=4")
    work = workload(cfg, Expected(prompt_tokens=20, completion_tokens=7, rank_balance=1))
    extra = work.work(work.auxiliary)
    assert (extra.num_tokens, extra.num_rows) == (10 * (20 + 6), 10 * 7)
    without = replace(work, auxiliary=NOTHING)
    one, two = (plan_cost(MODEL, RUN, part, RATES) for part in (without, work))
    assert work.work(work.updated) == without.work(without.updated)
    layers = 2 * 28 * 233_057_792 * extra.num_tokens + 2 * 152064 * 3584 * extra.num_rows
    more = seconds(two, "update", "products") - seconds(one, "update", "products")
    assert more == pytest.approx(3 * layers / 2e14)
    assert {**two.phases(), "update": 0} == {**one.phases(), "update": 0}


def test_what_is_dropped_is_not_run_though_the_loss_has_a_gradient_there():
    cfg = composed("algo=nsr", "algo.loss.entropy_coef=0.01")
    work = workload(cfg, Expected(signal_share=1.0, error_share=0.25))
    assert work.updated.completions == pytest.approx(0.25)


def test_the_fullest_rank_has_the_mean_over_the_balance_but_samples_no_more():
    even, uneven = (workload(composed("algo=grpo"), Expected(rank_balance=ratio)) for ratio in (1.0, 0.8))
    assert uneven.work(uneven.updated).num_tokens == pytest.approx(even.work(even.updated).num_tokens / 0.8, abs=1)
    assert uneven.num_sampled_tokens == even.num_sampled_tokens


def workload(cfg, expected: Expected) -> Workload:
    settings = step_settings(cfg, instantiate(cfg.data))
    parts = ("loss", "advantage", "critic", "dynamic_sampling", "auxiliary")
    loss, advantage, critic, sampling, term = (instantiate(cfg.algo.get(part)) for part in parts)
    return expected_workload(
        settings,
        loss,
        advantage,
        expected,
        world_size=2,
        critic=critic,
        dynamic_sampling=sampling,
        auxiliary_completions=term.completions_per_minibatch if term else 0,
    )


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"completion_tokens": 0}, "expected.completion_tokens is 0"),
        ({"signal_share": 0.2, "error_share": 0.5}, "expected.error_share is 0.5"),
        ({"signal_share": 1.2}, "expected.signal_share is 1.2"),
        ({"signal_share": 0.8, "error_share": 0.5, "failed_share": 0.3}, "expected.failed_share is 0.3"),
        ({"rank_balance": 0}, "expected.rank_balance is 0"),
    ],
)
def test_what_cannot_be_expected_is_named(values, words):
    with pytest.raises(ConfigError, match=words):
        Expected(**values)


def test_the_values_of_a_critic_cost_a_forward_without_the_vocabularys_head():
    work = replace(WORK, values=Part(prompts=1.0, completions=1.0))
    # 64 groups, 512 completions, whose last tokens are not run: 9,600 + 512·799 tokens
    products = 2 * 28 * 233_057_792 * 418_688 / 2e14
    assert seconds(plan_cost(MODEL, RUN, work, RATES), "values", "products") == pytest.approx(products)
    assert "values" not in plan_cost(MODEL, RUN, WORK, RATES).phases()


def test_a_separate_critic_is_updated_as_the_policy_is_without_the_vocabularys_head():
    plan = plan_cost(MODEL, RUN, replace(WORK, has_separate_critic=True), RATES)
    layers = 2 * 28 * 233_057_792 * 251_213 / 2e14  # the tokens of the update, as above
    assert seconds(plan, "update", "critic: products") == pytest.approx(3 * layers)
    assert seconds(plan, "update", "critic: logits") == 0
    assert seconds(plan, "update", "critic: optimizer") == seconds(plan, "update", "optimizer")
    alone = plan_cost(MODEL, RUN, WORK, RATES)
    assert seconds(plan, "update", "products") == seconds(alone, "update", "products")


@pytest.mark.parametrize("kind", ["value_head", "separate"])
def test_with_a_critic_every_completion_is_run_and_any_may_read_the_reference(kind):
    expected = Expected(signal_share=0.5, error_share=0.2)
    work = workload(composed("algo=apo_ppo", f"algo.critic.kind={kind}"), expected)
    assert work.updated == work.values == work.reference == Part(prompts=1.0, completions=1.0)
    assert work.has_separate_critic == (kind == "separate")
    assert workload(composed("algo=ppo"), expected).reference == NOTHING

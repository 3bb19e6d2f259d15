"""The seconds of a step, derived by hand for a 7B model on eight GPUs, and what changes them."""

from dataclasses import replace

import pytest

from apo_lightning.errors import ConfigError
from apo_lightning.run.recipe import Recipe
from apo_plan.rates import Rates
from apo_plan.shapes import AdapterShape
from apo_plan.time_plan import Expected, decoding_steps, plan_time, workload_of
from composing import composed
from paper_sizes import PAPER, qwen_math7b

MODEL = qwen_math7b()
RATES = Rates(name="round", model_flops_per_second=1e14, memory_bytes_per_second=1e12, engine_step_seconds=0.01)
# 512 prompts of 150 tokens, 8 completions each of 800 in the mean, in 16 mini-batches, on 8 ranks.
EXPECTED = Expected(prompt_tokens=150, completion_tokens=800, updated_share=0.6, reference_share=0.35)
LAYERS, HEAD = 28 * 233_057_792, 152064 * 3584


@pytest.fixture(scope="module")
def settings():
    cfg = composed("experiment=paper/qwen_math7b_apo")
    return Recipe(cfg).settings


def plan(settings, run=PAPER, expected=EXPECTED, model=MODEL):
    return plan_time(model, run, settings, expected, RATES).phases


def flops(tokens, pairs, rows):
    """2 per weight of the layers and token, 4 per number of the heads and pair, 2 per weight of the head and row."""
    return 2 * LAYERS * tokens + 4 * 28 * 28 * 128 * pairs + 2 * HEAD * rows


def test_the_papers_step_by_hand(settings):
    phases = plan(settings)
    # 64 groups, 307.2 completions, whose last tokens are not run: 64·150 + 307.2·799 tokens, 307.2·800 rows; pairs
    # 64·11,325 + 307.2·(150·799 + 319,600).
    tokens, pairs, rows = 255_053, 135_723_840, 245_760
    # A backward costs two forwards, and checkpointing runs the layers once more. Sixteen optimizer steps.
    update = 3 * flops(tokens, pairs, rows) + flops(tokens, pairs, 0)
    assert phases["update"] == pytest.approx(update / 1e14 + 16 * 40 * 951_952_064 / 1e12)
    # 15 of 16 mini-batches come after an optimizer step.
    assert phases["old_logprobs"] == pytest.approx(15 / 16 * flops(tokens, pairs, rows) / 1e14)
    # 179.2 completions.
    tokens, pairs, rows = 152_781, 79_475_200, 143_360
    assert phases["reference"] == pytest.approx(flops(tokens, pairs, rows) / 1e14, rel=1e-4)
    assert phases["sync"] == pytest.approx((4 + 3 * 2) * 7_615_616_512 / 1e12)
    # 512 completions on 256 places: 1,600 full forwards, and a tail of 1,536 − 800, each of 15 ms to read 15.2 GB, or
    # together the products of 409,600 tokens, which take longer. A token has 57,344 bytes of keys and values, and each
    # sampled one reads 150 + 400 of them.
    decoded = 2 * (LAYERS + HEAD) * 409_600 / 1e14
    assert decoded > 2336 * 15_231_233_024 / 1e12
    read = 409_600 * 550 * 57_344 / 1e12
    assert phases["generate"] == pytest.approx(2 * LAYERS * 9600 / 1e14 + decoded + read + 2336 * 0.01)


def test_what_a_run_has_not_takes_no_time(settings):
    run = replace(PAPER, has_reference=False)
    assert set(plan(replace(settings, old_logprobs="rollout"), run)) == {"generate", "update", "sync"}


def test_a_separate_critic_is_updated_too_and_computes_values_without_the_head(settings):
    alone, both = (plan(settings, replace(PAPER, num_trained_models=n)) for n in (1, 2))
    layers = flops(255_053, 135_723_840, 0)
    assert both["values"] == pytest.approx(layers / 1e14)
    assert both["update"] - alone["update"] == pytest.approx(4 * layers / 1e14 + 16 * 40 * 951_952_064 / 1e12)


def test_frozen_matrices_have_no_gradient(settings):
    adapters = AdapterShape(num_parameters=8, layer_parameters=1, largest_matrix=1)
    full, adapted = (plan(settings, model=replace(MODEL, adapters=a))["update"] for a in (None, adapters))
    # One of the backward's two products, of layers and head; and no weight but eight is updated.
    saved = (2 * LAYERS * 255_053 + 2 * HEAD * 245_760) / 1e14 + 16 * 40 * 951_952_064 / 1e12
    assert full - adapted == pytest.approx(saved, rel=1e-6)


def test_dynamic_sampling_samples_more_than_it_trains_on(settings):
    all_kept, half = (plan(settings, expected=replace(EXPECTED, kept_share=share)) for share in (1, 0.5))
    assert half["update"] == all_kept["update"]
    step = workload_of(settings, replace(EXPECTED, kept_share=0.5), 8)
    assert (step.num_sampled, decoding_steps(PAPER, step)) == (1024, 3200 + 736)


def test_transformers_decodes_batch_by_batch(settings):
    step = workload_of(settings, EXPECTED, 8)
    plain = replace(PAPER, engine=replace(PAPER.engine, name="transformers"))
    assert decoding_steps(plain, step) == 2 * 1536


@pytest.mark.parametrize("wrong", [{"prompt_tokens": 0}, {"updated_share": 1.1}, {"kept_share": 0}])
def test_a_wrong_expectation_is_named(wrong):
    (name,) = wrong
    with pytest.raises(ConfigError, match=f"expected.{name} is"):
        Expected(**wrong)

"""What every engine must do, as functions of a `Bench`; `test_engine_contract.py` runs them on each engine."""

import contextlib
import copy
import logging
import os
import random
import re
import sys
from dataclasses import replace

import numpy
import pytest
import torch

from apo_lightning.errors import ConfigError, StaleWeightsError
from apo_lightning.rollout.weight_sync import check_logprob_gap, gap_tolerance, logprob_gap, named_weights, publish
from apo_lightning.types import GenerationRequest
from engine_bench import VOCAB, Bench, all_logprobs, perturbed, reference_logprobs

ATOL = 1e-3


def request(prompt=(1, 2, 3), seed=0, max_new_tokens=6, **options):
    return GenerationRequest(prompt_token_ids=tuple(prompt), seed=seed, max_new_tokens=max_new_tokens, **options)


def prompts_of_many_lengths(count):
    generator = torch.Generator().manual_seed(5)
    lengths = torch.randint(1, 40, (count,), generator=generator).tolist()
    return [tuple(torch.randint(3, VOCAB, (length,), generator=generator).tolist()) for length in lengths]


def gap(bench, requests, completions, model=None):
    ours = [
        reference_logprobs(model or bench.model, r, c.token_ids) for r, c in zip(requests, completions, strict=True)
    ]
    return logprob_gap(torch.tensor([p for c in completions for p in c.logprobs]), torch.cat(ours))


def results_keep_order_and_lengths(bench: Bench):
    requests = [request(p, seed=i, max_new_tokens=1 + i % 5) for i, p in enumerate(prompts_of_many_lengths(20))]
    completions = bench.engine.generate(requests)
    assert [len(c.token_ids) for c in completions] == [r.max_new_tokens for r in requests]
    assert all(len(c.logprobs) == len(c.token_ids) for c in completions)
    assert {c.finish_reason for c in completions} == {"length"}
    assert gap(bench, requests, completions) < ATOL  # each completion is its own prompt's
    assert bench.engine.generate([]) == []


def the_stop_token_ends_a_completion_and_belongs_to_it(bench: Bench):
    stops = tuple(range(10, 40))
    requests = [request(p, seed=i, max_new_tokens=8) for i, p in enumerate(prompts_of_many_lengths(24))]
    endless = bench.engine.generate(requests)
    assert {c.finish_reason for c in endless} == {"length"}  # no stop token but the request's own
    for free, ended in zip(
        endless, bench.engine.generate([replace(r, stop_token_ids=stops) for r in requests]), strict=True
    ):
        first = next((i for i, token in enumerate(free.token_ids) if token in stops), None)
        assert ended.finish_reason == ("length" if first is None else "stop")
        assert ended.token_ids == free.token_ids[: None if first is None else first + 1]
    assert sum(any(t in stops for t in c.token_ids) for c in endless) > 5  # the case occurs


def more_prompt_tokens_than_one_forward_takes_are_served(bench: Bench):
    prompts = [tuple(3 + (i * 7 + j * j) % 120 for j in range(100)) for i in range(30)]
    requests = [request(prompt, seed=i, max_new_tokens=2) for i, prompt in enumerate(prompts)]
    assert gap(bench, requests, bench.engine.generate(requests)) < ATOL


def sequences_that_do_not_fit_together_are_counted_and_come_out_the_same(bench: Bench):
    # 64 that grow to 128 tokens, in a cache of 6,400 where the engine has one; half of them fit.
    requests = [request(range(3, 33), seed=i, max_new_tokens=98) for i in range(64)]
    with own_warnings() as warnings:
        crowded = bench.engine.generate(requests)
    num_preempted = bench.engine.num_preempted
    assert (num_preempted > 0) is (bench.engine.name == "vllm")
    assert [text.split()[0] for text in warnings if "kv_cache_gib" in text] == [str(num_preempted)] * bool(
        num_preempted
    )
    bench.engine.generate([])
    assert bench.engine.num_preempted == 0
    roomy = [*bench.engine.generate(requests[:32]), *bench.engine.generate(requests[32:])]
    assert bench.engine.num_preempted == 0
    assert [c.token_ids for c in crowded] == [c.token_ids for c in roomy]
    eos = bench.model.config.eos_token_id  # no stop token of the requests: it ends none of them
    assert sum(eos in c.token_ids[:-1] for c in crowded) > 5
    assert {len(c.token_ids) for c in crowded} == {98}
    for one, other in zip(crowded, roomy, strict=True):
        torch.testing.assert_close(torch.tensor(one.logprobs), torch.tensor(other.logprobs), atol=ATOL, rtol=0)


def logprobs_are_those_of_the_tempered_softmax(bench: Bench):
    temperatures = (0.7, 1.0, 1.6)
    prompts = prompts_of_many_lengths(8) * 3  # completions of one prompt share its prefill
    requests = [
        request(prompt, seed=i, temperature=temperatures[i % 3], max_new_tokens=1 + i % 7)
        for i, prompt in enumerate(prompts)
    ]
    for asked, completion in zip(requests, bench.engine.generate(requests), strict=True):
        expected = reference_logprobs(bench.model, asked, completion.token_ids)
        torch.testing.assert_close(torch.tensor(completion.logprobs), expected, atol=ATOL, rtol=0)
        top = all_logprobs(bench.model, asked, completion.token_ids).amax(1)
        torch.testing.assert_close(torch.tensor(completion.top_logprobs), top, atol=ATOL, rtol=0)


def greedy_takes_the_most_likely_token(bench: Bench):
    requests = [request(p, temperature=0.0, seed=i) for i, p in enumerate(prompts_of_many_lengths(8))]
    # beside a sampled request, since engines treat batches of both specially
    completions = bench.engine.generate([*requests, request(seed=9)])[:-1]
    for asked, completion in zip(requests, completions, strict=True):
        prefix = list(asked.prompt_token_ids)
        for token in completion.token_ids:
            with torch.no_grad():
                assert token == bench.model(torch.tensor([prefix])).logits[0, -1].argmax().item()
            prefix.append(token)
    assert gap(bench, [replace(r, temperature=1.0) for r in requests], completions) < ATOL


def the_nucleus_is_the_fewest_tokens_that_hold_top_p(bench: Bench):
    prompt, top_p, temperature = (1, 5, 9), 0.7, 1.3
    with torch.no_grad():
        logits = bench.model(torch.tensor([prompt])).logits[0, -1].double()
    probabilities, ids = (logits / temperature).softmax(-1).sort(descending=True)
    size = next(n for n in range(1, VOCAB) if probabilities[:n].sum() >= top_p)
    allowed = dict(
        zip(ids[:size].tolist(), (probabilities[:size] / probabilities[:size].sum()).log().tolist(), strict=True)
    )
    requests = [request(prompt, seed=i, max_new_tokens=1, top_p=top_p, temperature=temperature) for i in range(400)]
    completions = bench.engine.generate([*requests, request(prompt, seed=9)])  # beside one from all tokens
    assert {c.token_ids[0] for c in completions[:-1]} <= set(allowed)
    assert len({c.token_ids[0] for c in completions[:-1]}) > size // 2
    for completion in completions[:-1]:
        assert abs(completion.logprobs[0] - allowed[completion.token_ids[0]]) < ATOL
    assert gap(bench, [request(prompt)], completions[-1:]) < ATOL


def a_call_leaves_no_trace_in_the_next(bench: Bench):
    prompt = tuple(3 + (i * 5) % 90 for i in range(70))
    asked = [request(prompt, seed=i) for i in range(6)]
    first = bench.engine.generate(asked)
    bench.engine.generate([request((*prompt[:40], 3, 4, 5), seed=1)])
    assert bench.engine.generate(asked) == first  # log-probs to the last bit


def a_seed_gives_the_same_tokens_in_any_batch(bench: Bench):
    requests = [request(p, seed=1000 + i) for i, p in enumerate(prompts_of_many_lengths(30))]
    tokens = [c.token_ids for c in bench.engine.generate(requests)]
    assert [c.token_ids for c in bench.engine.generate(requests)] == tokens
    assert [c.token_ids for c in bench.engine.generate(requests[::-1])][::-1] == tokens
    assert [c.token_ids for r in requests[:6] for c in bench.engine.generate([r])] == tokens[:6]
    assert [c.token_ids for half in (requests[:9], requests[9:]) for c in bench.engine.generate(half)] == tokens


def completions_are_told_as_they_finish(bench: Bench):
    lengths = (5, 1, 3, 2, 4, 6)
    requests = [request(seed=i, max_new_tokens=length) for i, length in enumerate(lengths)]
    told = []
    completions = bench.engine.generate(requests, lambda *finished: told.append(finished))
    assert [index for index, _ in told] == sorted(range(6), key=lambda index: lengths[index])
    assert all(completions[index] is completion for index, completion in told)
    assert completions == bench.engine.generate(requests)
    many = [request(p, seed=i, max_new_tokens=1 + i % 5) for i, p in enumerate(prompts_of_many_lengths(40))]
    told.clear()
    completions = bench.engine.generate(many, lambda *finished: told.append(finished))
    assert dict(told) == dict(enumerate(completions))
    assert len(told) == len(many)


def an_error_of_the_listener_ends_the_call_and_leaves_nothing_running(bench: Bench):
    requests = [request(seed=i, max_new_tokens=1 + i % 4) for i in range(20)]
    before = bench.engine.generate(requests)
    told = []

    def listener(index, completion):
        told.append(index)
        if len(told) == 3:
            raise OSError("no more, please")

    with pytest.raises(OSError, match="no more, please"):
        bench.engine.generate(requests, listener)
    assert len(told) == 3
    assert bench.engine.generate(requests) == before


def seeds_are_independent(bench: Bench):
    seeds = [0, 1, 2, 2**63 - 1, 2**40 + 5]  # of different lower halves: vLLM's CPU sampler reads no more
    tokens = [c.token_ids for c in bench.engine.generate([request(seed=s, max_new_tokens=8) for s in seeds])]
    assert len(set(tokens)) == len(seeds)


def first_tokens_follow_the_softmax(bench: Bench):
    draws = 2000
    prompt = (1, 5, 9)
    requests = [request(prompt, seed=77 * i + 3, max_new_tokens=1) for i in range(draws)]
    counts = torch.zeros(VOCAB)
    for completion in bench.engine.generate(requests):
        counts[completion.token_ids[0]] += 1
    with torch.no_grad():
        expected = bench.model(torch.tensor([prompt])).logits[0, -1].double().softmax(-1) * draws
    rare = expected < 5
    observed = torch.cat([counts[~rare], counts[rare].sum()[None]])
    expected = torch.cat([expected[~rare], expected[rare].sum()[None]])
    kept = expected > 0
    chi_square = ((observed - expected)[kept] ** 2 / expected[kept]).sum().item()
    freedom = int(kept.sum()) - 1
    assert freedom > 20
    # mean `freedom`, standard deviation √(2·freedom): five of them are a chance of one in a million
    assert chi_square < freedom + 5 * (2 * freedom) ** 0.5


def a_sync_moves_every_parameter(bench: Bench):
    requests = [request(p, seed=i) for i, p in enumerate(prompts_of_many_lengths(4))]
    before = bench.engine.generate(requests)
    names = [name for name, _ in bench.model.named_parameters()]
    for version, name in enumerate(names, start=2):
        other = perturbed(bench.model, [name])
        publish(other, bench.engine, version)
        completions = bench.engine.generate(requests)
        assert gap(bench, requests, completions, other) < ATOL, name
        assert gap(bench, requests, completions) > 3 * gap(bench, requests, before) + 1e-5, name
        assert {c.policy_version for c in completions} == {version}
    publish(bench.model, bench.engine, version=99)
    after = bench.engine.generate(requests)
    assert [c.token_ids for c in after] == [c.token_ids for c in before]
    assert gap(bench, requests, after) < ATOL


def a_sync_copies(bench: Bench):
    other = perturbed(bench.model, ["model.norm.weight"])
    publish(other, bench.engine, version=2)
    asked = request(seed=4)
    before = bench.engine.generate([asked])
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    assert bench.engine.generate([asked]) == before


def the_prefix_cache_forgets_old_weights(bench: Bench):
    prompt = tuple(3 + i % 90 for i in range(100))
    requests = [request(prompt, seed=i) for i in range(4)]
    bench.engine.generate(requests)
    other = perturbed(bench.model, ["model.layers.0.self_attn.v_proj.weight"])
    publish(other, bench.engine, version=2)
    assert gap(bench, requests, bench.engine.generate(requests), other) < ATOL


def an_incomplete_sync_is_an_error_and_stops_generation(bench: Bench):
    weights = dict(named_weights(bench.model, torch.float32))
    for name in ("model.layers.1.mlp.up_proj.weight", "lm_head.weight", "model.norm.weight"):
        with pytest.raises(StaleWeightsError, match=rf"1 missing \({name}\)"):
            bench.engine.sync_weights(((n, w) for n, w in weights.items() if n != name), 2)
        with pytest.raises(StaleWeightsError, match="half-finished"):
            bench.engine.generate([request()])
    bench.fresh()
    assert bench.gap() < ATOL


def unknown_double_and_misshapen_names_are_errors(bench: Bench):
    weights = list(named_weights(bench.model, torch.float32))
    bad = [("model.ghost.weight", torch.zeros(1)), weights[3]]
    with pytest.raises(StaleWeightsError, match=r"1 unknown \(model.ghost.weight\); 1 given twice"):
        bench.engine.sync_weights(iter(weights + bad), 2)
    misshapen = [(n, w[:-1] if n == "model.norm.weight" else w) for n, w in weights]
    with pytest.raises(StaleWeightsError, match=r"1 of another shape \(model.norm.weight\)"):
        bench.engine.sync_weights(iter(misshapen), 2)
    bench.fresh()
    assert bench.gap() < ATOL


def an_error_of_the_source_leaves_the_engine_repairable(bench: Bench):
    def broken():
        yield from list(named_weights(bench.model, torch.float32))[:5]
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        bench.engine.sync_weights(broken(), 2)
    with pytest.raises(StaleWeightsError, match="half-finished"):
        bench.engine.generate([request()])
    bench.fresh()
    assert bench.gap() < ATOL


def old_and_exchanged_weights_are_caught_by_the_gap(bench: Bench):
    """The stream is complete, so that nothing but the log-probs can show the fault."""
    head = ("model.embed_tokens.weight", "lm_head.weight")[not bench.tied :]
    norm = "model.layers.{}.input_layernorm.weight"
    other = perturbed(bench.model, [head[0], norm.format(0)])
    sound = dict(named_weights(other, torch.float32))
    old_head = sound | dict.fromkeys(head, bench.model.lm_head.weight)
    exchanged = sound | {norm.format(i): sound[norm.format(1 - i)] for i in (0, 1)}
    requests = [request(p, seed=i) for i, p in enumerate(prompts_of_many_lengths(4))]
    for version, faulty in enumerate((old_head, exchanged), start=2):
        bench.engine.sync_weights(iter(faulty.items()), version)
        found = gap(bench, requests, bench.engine.generate(requests), other)
        with pytest.raises(StaleWeightsError, match=f"policy version {version}"):
            check_logprob_gap(found, gap_tolerance(0.0, 24), version)


@contextlib.contextmanager
def every_sync_through(engine, faulty):
    """Syncs load what `faulty` makes of the stream."""
    load = engine._load
    engine._load = lambda stream: load(faulty(stream))
    yield
    engine._load = load


def an_engine_that_keeps_its_first_weights_is_found_by_version_three(bench: Bench):
    first = [(name, weight.clone()) for name, weight in named_weights(bench.model, bench.engine.dtype)]

    def two_steps(rate):
        policy = copy.deepcopy(bench.model)
        optimizer = torch.optim.AdamW(policy.parameters(), lr=rate)
        for version in (2, 3):
            ids = torch.randint(3, VOCAB, (4, 16), generator=torch.Generator().manual_seed(version))
            policy(ids, labels=ids).loss.backward()
            optimizer.step()
            publish(policy, bench.engine, version)

    for rate in (1e-6, 1e-5):
        bench.fresh()
        two_steps(rate)
        bench.fresh()
        with (
            every_sync_through(bench.engine, lambda stream: [*stream] and iter(first)),
            pytest.raises(StaleWeightsError, match=r"policy version [23], .* not as they were sent"),
        ):
            two_steps(rate)


def one_changed_weight_is_found_in_every_tensor(bench: Bench):
    assert bench.engine.unread == set()
    # A tied embedding is overwritten by the head, which comes last.
    for changed in (name for name in bench.engine.shapes if "embed" not in name):

        def faulty(stream, changed=changed):
            for name, weight in stream:
                if name == changed:
                    weight = weight.clone()
                    weight.view(-1)[-7] *= 1.0079  # the smallest step of bfloat16, or two
                yield name, weight

        bench.engine.unread = None  # as at the first sync, which compares all tensors
        with every_sync_through(bench.engine, faulty), pytest.raises(StaleWeightsError, match=re.escape(changed)):
            publish(bench.model, bench.engine, version=2)


def a_nan_of_the_policy_is_no_stale_weight(bench: Bench):
    broken = copy.deepcopy(bench.model)
    with torch.no_grad():
        for parameter in broken.parameters():
            parameter.view(-1)[5] = float("nan")
    bench.engine.unread = None
    publish(broken, bench.engine, version=2)
    assert bench.engine.unread == set()


def a_sleeping_engine_refuses_and_wakes_without_weights(bench: Bench):
    bench.engine.wake()  # awake already: nothing happens
    bench.engine.generate([request()])
    bench.engine.sleep()
    bench.engine.sleep()
    with pytest.raises(RuntimeError, match="asleep"):
        bench.engine.generate([request()])
    with pytest.raises(RuntimeError, match="asleep"):
        publish(bench.model, bench.engine, version=2)
    bench.engine.wake()
    with pytest.raises(StaleWeightsError, match="call sync_weights first"):
        bench.engine.generate([request()])
    bench.fresh()
    assert bench.gap() < ATOL


def impossible_requests_are_refused_before_any_work(bench: Bench):
    for impossible, message in [
        (request((1,) * 120, max_new_tokens=9), r"120 \+ max_new_tokens of 9 = 129 tokens, but max_model_len is 128"),
        (request(()), "no tokens"),
        (request(max_new_tokens=0), "max_new_tokens is 0"),
        (request(temperature=-1.0), "temperature is -1.0"),
        (request(temperature=0.001), "temperature is 0.001"),
        (request(seed=2**63), "sample seed"),
        (request(top_p=0.0), "top_p is 0.0"),
        (request((1, VOCAB)), f"prompt token {VOCAB} is outside"),
    ]:
        with pytest.raises(ConfigError, match=message):
            bench.engine.generate([request(), impossible])
    [longest] = bench.engine.generate([request((1,) * 119, max_new_tokens=9)])
    assert len(longest.token_ids) == 9


def the_process_is_left_as_it_was(bench: Bench):
    assert bench.changed_by_setup == []
    with torch.enable_grad():
        before = process_state()
        bench.fresh()
        bench.engine.generate([request()])
        assert changes(before, process_state()) == []


def process_state():
    return {
        # beartype draws from it to choose the items it checks; it is never loaded beside vLLM here
        "python": None if "beartype" in sys.modules else random.getstate(),
        "numpy": str(numpy.random.get_state()),
        "torch": torch.get_rng_state().tolist(),
        "environment": dict(os.environ),
        "threads": torch.get_num_threads(),
        "set_num_threads": torch.set_num_threads,
        "matmul precision": torch.get_float32_matmul_precision(),
        "dtype": torch.get_default_dtype(),
        "grad": torch.is_grad_enabled(),
    }


def changes(before, after):
    return [key for key in before if before[key] != after[key]]


@contextlib.contextmanager
def own_warnings():
    found = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: found.append(record.getMessage())
    logger = logging.getLogger("apo_lightning")
    logger.addHandler(handler)
    yield found
    logger.removeHandler(handler)


@contextlib.contextmanager
def recording_changes(found):
    before = process_state()
    yield
    found.extend(changes(before, process_state()))


CONTRACTS = [name for name, of in list(globals().items()) if getattr(of, "__annotations__", {}).get("bench") is Bench]

"""vLLM in the trainer's process: start, publish, generate, sleep, wake, and again; a second engine."""

import functools
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate

from apo_lightning.errors import ConfigError
from apo_lightning.model.packing import PackedSequences
from apo_lightning.model.policy import Policy
from apo_lightning.model.tokenizer import character_tokenizer
from apo_lightning.rollout.engine import RolloutEngine
from apo_lightning.rollout.weight_sync import logprob_gap, named_weights, publish, start_engine
from apo_lightning.types import Completion, GenerationRequest
from benchmarks import CONFIGS
from benchmarks.gpu.rows import MISSED, OK, Row, judged, not_run, one_line
from benchmarks.shared.models import LLAMA3B, SMOLLM2, TINY, config_of, random_model
from benchmarks.shared.timing import synchronize

GIB = 2**30
LARGEST_GAP = 0.03
"""[nats a token]"""
LEAST_FREED = 0.9
"""Of weights and cache, by sleeping."""
CACHE_SHARE = 0.5
"""Of the memory that is free beside the policy; what all sequences can fill is enough."""


@dataclass(frozen=True)
class Sizes:
    """What is sampled, from which model."""

    config: dict[str, Any]
    dtype: torch.dtype
    prompts: int
    group_size: int
    prompt_tokens: int
    new_tokens: int
    gap_tokens: int
    """Of a micro-batch of the trainer that the gap is measured on."""

    @property
    def max_model_len(self) -> int:
        return self.prompt_tokens + self.new_tokens

    @property
    def kv_token_bytes(self) -> int:
        layers, heads, size = (self.config[key] for key in ("num_hidden_layers", "num_key_value_heads", "head_dim"))
        return 2 * layers * heads * size * self.dtype.itemsize


FULL = Sizes(LLAMA3B, torch.bfloat16, 32, 16, 128, 1024, 16384)
SMALL_GPU = Sizes(SMOLLM2, torch.bfloat16, 8, 8, 32, 64, 8192)
SMALL_CPU = Sizes(TINY, torch.float32, 4, 4, 16, 16, 1024)


def make_policy(sizes: Sizes, device: torch.device) -> Policy:
    return Policy(random_model(config_of(sizes.config), device).eval(), character_tokenizer(), sizes.dtype)


def make_engine(sizes: Sizes, device: torch.device, *, eager: bool, sequences: int) -> tuple[RolloutEngine, int]:
    """As a run's configuration makes it, and the bytes of its cache."""
    wanted = sizes.kv_token_bytes * sizes.max_model_len * sequences
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else GIB
    cache = max(GIB // 8, min(wanted, int(CACHE_SHARE * free)))
    overrides = ["engine=vllm", f"kv_cache_gib={cache / GIB}", f"engine.enforce_eager={str(eager).lower()}"]
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        cfg = compose("train", overrides=[*overrides, f"engine.max_num_seqs={sequences}"])
    return instantiate(cfg.engine), cache


def make_requests(sizes: Sizes, num_prompts: int, new_tokens: int, first_seed: int = 0) -> list[GenerationRequest]:
    """Prompt-major; nothing stops a completion before its last token."""
    generator = torch.Generator().manual_seed(first_seed)
    vocab = sizes.config["vocab_size"]
    prompts = torch.randint(vocab, (num_prompts, sizes.prompt_tokens), generator=generator).tolist()
    return [
        GenerationRequest(prompt_token_ids=tuple(prompt), seed=first_seed + index, max_new_tokens=new_tokens)
        for index, prompt in enumerate(prompt for prompt in prompts for _ in range(sizes.group_size))
    ]


@torch.no_grad()
def gap_to(policy: Policy, requests: Sequence[GenerationRequest], found: Sequence[Completion], budget: int) -> float:
    """Mean |engine − trainer| over the tokens of the completions of the first prompt [nats]."""
    prompt = requests[0].prompt_token_ids
    own = [found[i] for i, request in enumerate(requests) if request.prompt_token_ids == prompt]
    packed = PackedSequences(prompts=[prompt], completions=[c.token_ids for c in own], owners=[0] * len(own))
    engine = torch.tensor([logprob for completion in own for logprob in completion.logprobs])
    trainer = torch.full_like(engine, torch.nan)
    for microbatch in packed.microbatches(range(len(own)), budget, policy.head_weight.device):
        trainer[microbatch.token_index.cpu()] = policy(microbatch).logprobs.float().cpu()
    return logprob_gap(engine, trainer)


def seconds_of(action: Callable[[], object], device: torch.device) -> float:
    synchronize(device)
    begun = time.perf_counter()
    action()
    synchronize(device)
    return time.perf_counter() - begun


def life(name: str, sizes: Sizes, kind: str, *, eager: bool, sequences: int) -> Iterator[Row]:
    """Each row needs the one before; where one fails there are no more."""
    device = torch.device(kind)
    policy = make_policy(sizes, device)
    engine, cache = make_engine(sizes, device, eager=eager, sequences=sequences)
    engine.check(device)
    begin = functools.partial(start_engine, engine, policy, max_model_len=sizes.max_model_len, device=device, seed=0)
    took = seconds_of(begin, device)
    yield Row(check=f"{name}: start", result=f"{took:.1f} s, cache {cache / GIB:.1f} GiB", figures={"seconds": took})
    yield publish_row(f"{name}: publish", policy, engine, 1)
    requests = make_requests(sizes, sizes.prompts, sizes.new_tokens)
    yield from generate_rows(f"{name}: generate", policy, engine, requests, sizes)
    yield sleep_row(f"{name}: sleep", policy, engine, cache, device)
    took = seconds_of(engine.wake, device)
    yield Row(check=f"{name}: wake", result=f"{took:.2f} s", figures={"seconds": took})
    yield publish_row(f"{name}: publish again", policy, engine, 2)
    requests = make_requests(sizes, 2, max(8, sizes.new_tokens // 8), first_seed=10**6)
    yield from generate_rows(f"{name}: generate again", policy, engine, requests, sizes)
    engine.close()


def weight_bytes(policy: Policy, dtype: torch.dtype) -> int:
    """Of the engine's copy; a tied head is sent twice and held once."""
    return sum(parameter.numel() for parameter in policy.model.parameters()) * dtype.itemsize


def publish_row(check: str, policy: Policy, engine: RolloutEngine, version: int) -> Row:
    device = policy.head_weight.device
    took = seconds_of(lambda: publish(policy.model, engine, version), device)
    sent = sum(weight.nbytes for _, weight in named_weights(policy.model, engine.dtype))
    said = f"{took:.2f} s, {sent / took / 1e9:.3g} GB/s"
    return Row(check=check, result=said, figures={"seconds": took, "sent_bytes": sent})


def generate_rows(
    check: str, policy: Policy, engine: RolloutEngine, requests: Sequence[GenerationRequest], sizes: Sizes
) -> Iterator[Row]:
    """Tokens a second, and how far the engine is from the policy."""
    found: list[Completion] = []
    took = seconds_of(lambda: found.extend(engine.generate(requests)), policy.head_weight.device)
    tokens = sum(len(completion.token_ids) for completion in found)
    wanted = sum(request.max_new_tokens for request in requests)
    said = f"{tokens / took:,.0f} tokens/s ({len(found)} completions, {tokens:,} tokens)"
    verdict = OK if tokens == wanted else MISSED
    figures = {"seconds": took, "tokens": tokens}
    yield Row(check=check, result=said, target=f"{wanted:,} tokens", verdict=verdict, figures=figures)
    gap = gap_to(policy, requests, found, sizes.gap_tokens)
    yield judged(f"{check}: log-prob gap [nats]", gap, f"{gap:.2g}", at_most=LARGEST_GAP)


def sleep_row(check: str, policy: Policy, engine: RolloutEngine, cache: int, device: torch.device) -> Row:
    """The share of weights and cache that sleeping gives back."""
    if device.type != "cuda":
        engine.sleep()
        return not_run(f"{check}: memory", "an engine on the CPU keeps it")
    before = torch.cuda.mem_get_info(device)[0]
    took = seconds_of(engine.sleep, device)
    freed, held = torch.cuda.mem_get_info(device)[0] - before, cache + weight_bytes(policy, engine.dtype)
    said = f"{freed / held:.0%} ({freed / GIB:.1f} of {held / GIB:.1f} GiB) in {took:.2f} s"
    return judged(f"{check}: memory given back", freed / held, said, at_least=LEAST_FREED, seconds=took, freed=freed)


def second_engine(kind: str) -> Iterator[Row]:
    """Behind one that was closed, as in a sweep, and beside one that sleeps: it samples, or says why it cannot."""
    device, sizes = torch.device(kind), SMALL_GPU if kind == "cuda" else SMALL_CPU
    policy = make_policy(sizes, device)

    def live() -> None:
        begun(policy, sizes, device).close()

    live()
    yield answer("a second engine behind a closed one", live)
    first = begun(policy, sizes, device)
    first.sleep()
    yield answer("a second engine beside a sleeping one", live)
    yield answer("the first engine behind that", lambda: sample_again(first, policy, sizes))


def begun(policy: Policy, sizes: Sizes, device: torch.device) -> RolloutEngine:
    """An engine that has sampled."""
    engine, _ = make_engine(sizes, device, eager=True, sequences=8)
    start_engine(engine, policy, max_model_len=sizes.max_model_len, device=device, seed=0)
    publish(policy.model, engine, 1)
    engine.generate(make_requests(sizes, 1, 8))
    return engine


def sample_again(engine: RolloutEngine, policy: Policy, sizes: Sizes) -> None:
    engine.wake()
    publish(policy.model, engine, 2)
    engine.generate(make_requests(sizes, 1, 8))
    engine.close()


def answer(check: str, action: Callable[[], None]) -> Row:
    """A line for the user is an answer; any other error is none."""
    row = Row(check=check, result="samples", target="samples, or a ConfigError")
    try:
        action()
    except ConfigError as error:
        return replace(row, result=one_line(f"refused: {error}"))
    except Exception as error:
        traceback.print_exc()
        return replace(row, result=one_line(f"{type(error).__name__}: {error}"), verdict=MISSED)
    return row


def whole_life(how: str, sequences: int, kind: str) -> Iterator[Row]:
    yield from life(f"{how}, {sequences} sequences", FULL, kind, eager=how == "eager", sequences=sequences)


SECTIONS: dict[str, Callable[[str], Iterator[Row]]] = {
    f"{how}, {sequences}": functools.partial(whole_life, how, sequences)
    for how in ("eager", "graphs")
    for sequences in (256, 512)
}
SECTIONS["small"] = functools.partial(life, "tiny model, 8 sequences", SMALL_CPU, eager=True, sequences=8)
SECTIONS["a second engine"] = second_engine

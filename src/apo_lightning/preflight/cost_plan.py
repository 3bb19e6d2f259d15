"""How long a step takes: operations and bytes, counted from sizes, divided by the rates of a device.

Each item is one amount divided by one rate, derived in the function that yields it. Nothing is fitted to runs;
`benchmarks/preflight/cost.py` compares the plan with real ones. Not counted: verification, which overlaps the sampling,
diagnostics, validation passes, checkpoints, start-up, and what only CPUs do: allocating memory from the system, and
repacking weights for vLLM.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from apo_lightning.logprobs.head import TILE_ROWS, TILE_ROWS_CPU
from apo_lightning.model.flops import ModelSize, Work, training_flops
from apo_lightning.preflight.elementwise import between_bytes, engine_between_bytes
from apo_lightning.preflight.memory_plan import engine_weight_bytes, held_logits, kv_token_bytes
from apo_lightning.preflight.memory_shapes import FLOAT32, ModelShape, RunShape
from apo_lightning.preflight.rates import Rates
from apo_lightning.preflight.workload import Workload

LOGIT_PASSES = {"forward": 4, "backward": 3}
"""Passes over float32 logits: written, read for their maximum, exponentials written, read for their sums; the backward
reads them, writes their gradient and reads it."""
SAMPLING_PASSES = 6
"""Passes over the engine's float32 logits: temperature, log-softmax and sampling each read and write them."""
ADAM_BYTES = 40
"""Traffic of one optimizer step per trained parameter: weight, gradient and two moments are read, all but the gradient
written (28); the gradient is read for its norm and scaled (12)."""
ATTENTION_BACKWARD = 2.5
"""Cost of attention's backward, in forwards: it recomputes the scores, and each of the two products has two
gradients."""
"""The least that is read from memory at once [bytes]."""
SYNC_VISITS = 4
"""A sync visits each layer of vLLM in Python as a forward does: to prepare, load, process and check it."""

Count = tuple[str, str, float]
"""Name of an item, the rate that bounds it (as in `CostItem.bound`), and its amount: FLOPs, bytes or forwards."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CostItem:
    """One line of the plan."""

    phase: str
    """As in `time/…` of metrics.csv."""
    name: str
    seconds: float
    bound: str
    """The rate that the amount is divided by: products, attention, memory, collectives, engine or launches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CostPlan:
    """The time of one step on each rank, by item."""

    items: tuple[CostItem, ...]
    rates: Rates
    work: Workload

    @property
    def seconds(self) -> float:
        """Time of one step [s]."""
        return sum(item.seconds for item in self.items)

    def phases(self) -> dict[str, float]:
        """Seconds by phase, in the order of a step; phases that do not run are left out."""
        names = dict.fromkeys(item.phase for item in self.items)
        return {name: sum(item.seconds for item in self.items if item.phase == name) for name in names}

    def largest(self, count: int) -> list[CostItem]:
        """The items that take longest."""
        return sorted(self.items, key=lambda item: -item.seconds)[:count]


def plan_cost(model: ModelShape, run: RunShape, work: Workload, rates: Rates) -> CostPlan:
    """The plan of one rank, for its workload in one step and the rates of its device."""
    engine_seconds = rates.graph_step_seconds if run.engine.has_graphs else rates.engine_step_seconds
    rescored = work.work(work.old_logprobs) + work.work(work.subset)
    values = replace(work.work(work.values), num_rows=0)  # of the vocabulary's head
    updated = work.work(work.updated) + work.work(work.auxiliary)
    counts = {
        "generate": _sum(count for part in work.sampling for count in _generation(model, run, part, rates)),
        "values": _forward(model, run, values, rates),
        "reference": _forward(model, run, work.work(work.reference), rates),
        "old_logprobs": _forward(model, run, rescored, rates),
        "update": (*_update(model, run, work, updated, rates), *_critic(model, run, work, rates)),
        "sync": _sync(model, run),
    }
    speed = {
        "products": rates.matmul_flops_per_second,
        "attention": rates.attention_flops_per_second,
        "memory": rates.memory_bytes_per_second,
        "collectives": rates.gather_bytes_per_second,
        "engine": 1 / engine_seconds if engine_seconds else float("inf"),
        "launches": 1 / rates.engine_step_seconds if rates.engine_step_seconds else float("inf"),
    }
    items = (
        CostItem(phase=phase, name=name, seconds=amount / speed[bound], bound=bound)
        for phase, of_phase in counts.items()
        for name, bound, amount in of_phase
    )
    return CostPlan(items=tuple(item for item in items if item.seconds > 0), rates=rates, work=work)


def _sum(counts: Iterable[Count]) -> Iterator[Count]:
    """Items of one name and rate, added up."""
    amounts: dict[tuple[str, str], float] = {}
    for name, bound, amount in counts:
        amounts[name, bound] = amounts.get((name, bound), 0) + amount
    yield from ((name, bound, amount) for (name, bound), amount in amounts.items())


def model_size_of(model: ModelShape) -> ModelSize:
    """The sizes that `training_flops` reads. Norms count as matrices; they are a ten-thousandth of a layer."""
    layers, is_adapted = model.num_layers * model.layer_parameters, model.adapters is not None
    return ModelSize(
        layer_weights=layers + model.adapter_parameters,
        head_weights=model.head_parameters,
        attention_width=model.num_layers * model.query_width,
        frozen_layer_weights=layers * is_adapted,
        head_is_frozen=is_adapted,
    )


def forward_flops(size: ModelSize, work: Work) -> int:
    """2·N·tokens + 2·V·D·rows: products with weights, a third of those of forward and backward together."""
    return 2 * size.layer_weights * work.num_tokens + 2 * size.head_weights * work.num_rows


def attention_flops(size: ModelSize, work: Work) -> int:
    """4·width·pairs: products of queries with keys, and of scores with values."""
    return 4 * size.attention_width * work.num_pairs


def decoding_steps(run: RunShape, work: Workload) -> tuple[float | int, float | int]:
    """Forwards of the engine in one round of sampling: with all slots occupied, and in the tail after that.

    There are n completions of mean length R, at most L, on s slots. vLLM refills a free slot at once: n·R/s forwards,
    and a tail of L − R. transformers starts the next batch when the current one has ended: L forwards per batch. An
    engine in slices has the completions of all its ranks.
    """
    ranks = run.engine.num_slices
    slots = min(run.engine.num_sequences, ranks * work.num_completions)
    if run.engine.name != "vllm":
        return -(-work.num_completions // slots) * work.longest_completion, 0
    return ranks * work.num_sampled_tokens / slots, work.longest_completion - work.completion_tokens


def _generation(model: ModelShape, run: RunShape, work: Workload, rates: Rates) -> Iterator[Count]:
    """Prompts, then one token per forward for every unfinished completion.

    A group shares whole blocks of its prompt; each completion runs the remaining tokens. A decoding forward multiplies
    each token with all weights while it reads them, and then attends while it reads keys and values: the slower of each
    pair counts. The tail is an upper bound, since the products of its tokens are already counted.

    Ranks that share an engine run the tokens of all of them, each with its slice of weights, keys and values: the same
    products, fewer bytes of weights a forward, and two sums over the ranks in each layer, in which a rank receives and
    sends 2·(n − 1)/n of the hidden states.
    """
    ranks = run.engine.num_slices
    size, (full, tail) = model_size_of(model), decoding_steps(run, work)
    block, length = run.engine.block_tokens, work.prompt_tokens
    shared = length if not block else block * ((length - 1) // block)
    run_tokens = work.num_prompts * (shared + work.group_size * (length - shared))
    prompts = Work(num_tokens=round(run_tokens), num_pairs=round(run_tokens * length / 2), num_rows=0)
    yield "prompts", "products", forward_flops(size, prompts)
    yield "attention over prompts", "attention", attention_flops(size, prompts)
    # The first token of a completion comes from its prompt.
    sampled, tokens = work.num_sampled_tokens, max(0, work.num_sampled_tokens - work.num_completions)
    context = work.prompt_tokens + work.completion_tokens / 2
    decoded = Work(num_tokens=round(tokens), num_pairs=round(tokens * context), num_rows=round(sampled))
    weights = engine_weight_bytes(model, run)
    flops = forward_flops(size, decoded)
    if flops / rates.matmul_flops_per_second > full * weights / rates.memory_bytes_per_second:
        yield "decoding: products", "products", flops
    else:
        yield "decoding: weights", "memory", full * weights
    yield "decoding: weights, in the tail", "memory", tail * weights
    flops, read = attention_flops(size, decoded), ranks * tokens * context * kv_token_bytes(model, run)
    if flops / rates.attention_flops_per_second > read / rates.memory_bytes_per_second:
        yield "decoding: attention", "attention", flops
    else:
        yield "decoding: keys and values", "memory", read
    yield "between products", "memory", engine_between_bytes(model, run) * (prompts.num_tokens + decoded.num_tokens)
    yield "sampling from logits", "memory", SAMPLING_PASSES * FLOAT32 * sampled * model.vocab_size
    hidden = run.compute_bytes * model.hidden_size * ranks * (prompts.num_tokens + decoded.num_tokens)
    yield "sums over slices", "collectives", 2 * model.num_layers * 2 * (1 - 1 / ranks) * hidden
    yield "launches and scheduling", "engine", full + tail


def _forward(model: ModelShape, run: RunShape, work: Work, rates: Rates) -> Iterator[Count]:
    """A pass without a gradient: products, kernels between them, and the logits of response tokens.

    FSDP2 gathers a layer during the products of the previous one; embedding and head are gathered once, and nothing
    overlaps that.
    """
    if not work.num_tokens:
        return
    size = model_size_of(model)
    flops = forward_flops(size, work)
    yield "products", "products", flops
    yield "attention", "attention", attention_flops(size, work)
    yield "between products", "memory", between_bytes(model, run, forwards=1, backwards=0) * work.num_tokens
    yield "logits", "memory", LOGIT_PASSES["forward"] * FLOAT32 * model.vocab_size * work.num_rows
    num_microbatches = _num_microbatches(run, work)
    yield "casts of weights", "memory", num_microbatches * _cast_bytes(model, run)
    layers = num_microbatches * run.compute_bytes * model.num_layers * model.layer_parameters * _remote_share(run)
    yield "collectives not hidden by products", "collectives", _not_hidden(layers, flops, rates)
    yield "embedding and head, gathered", "collectives", _root_bytes(model, run)


def _critic(model: ModelShape, run: RunShape, work: Workload, rates: Rates) -> Iterator[Count]:
    """The update of a separate critic: as the policy's, without the products of the vocabulary's head."""
    if work.has_separate_critic:
        total = replace(work.work(work.updated), num_rows=0)
        for name, bound, amount in _update(model, run, replace(work, has_full_kl=False), total, rates):
            yield f"critic: {name}", bound, amount


def _update(model: ModelShape, run: RunShape, work: Workload, total: Work, rates: Rates) -> Iterator[Count]:
    """Forward, backward and optimizer.

    Collectives of layers overlap the products of other layers, so only the time by which they take longer counts.
    Nothing overlaps those of embedding and head: one gather and one reduction per mini-batch.
    """
    if not total.num_tokens:
        return
    size, num_minibatches = model_size_of(model), work.num_minibatches
    recomputed = int(run.gradient_checkpointing)
    attention = attention_flops(size, total)
    flops = training_flops(size, total) - 3 * attention
    layers = recomputed * forward_flops(size, Work(num_tokens=total.num_tokens))
    yield "products", "products", flops
    yield "products of recomputed layers", "products", layers
    yield "further forwards of the head", "products", 2 * size.head_weights * total.num_rows * work.head_passes
    if work.has_full_kl:
        yield "products of the reference (full KL)", "products", forward_flops(size, total)
    forwards = 1 + recomputed + work.has_full_kl
    yield "attention", "attention", (forwards + ATTENTION_BACKWARD) * attention
    yield "between products", "memory", between_bytes(model, run, forwards=forwards, backwards=1) * total.num_tokens
    passes = sum(LOGIT_PASSES.values()) + LOGIT_PASSES["forward"] * work.head_passes
    yield "logits", "memory", passes * FLOAT32 * model.vocab_size * total.num_rows
    parts = num_minibatches * _num_microbatches(run, total, num_minibatches)
    yield "casts of weights", "memory", parts * (1 + recomputed) * _cast_bytes(model, run)
    # DDP reduces with the last micro-batch of a mini-batch, so only that one's products overlap.
    num_overlapped = num_minibatches if run.strategy == "ddp" else parts
    moved = num_overlapped * _moved_with_layers(model, run)
    not_hidden = _not_hidden(moved, (flops + layers) * num_overlapped // parts, rates)
    yield "collectives not hidden by products", "collectives", not_hidden
    root = num_minibatches * 2 * _root_bytes(model, run)
    yield "embedding and head, gathered and reduced", "collectives", root
    yield "optimizer", "memory", num_minibatches * ADAM_BYTES * -(-model.trained_parameters // run.num_shards)
    if model.adapters is None:
        yield "gradients of embedding and head", "memory", _root_gradient_bytes(model, run, total, parts)


def _root_gradient_bytes(model: ModelShape, run: RunShape, work: Work, num_microbatches: int) -> float | int:
    """Each micro-batch clears a whole gradient for the embedding, and adds it to the head's where they are tied.

    The head's gradient is written by the first chunk of tokens whose logits are held together, and read and written by
    every later one.
    """
    rows = min(max(1, held_logits(run) // model.vocab_size), TILE_ROWS if run.is_cuda else TILE_ROWS_CPU)
    chunks = max(num_microbatches, work.num_rows / rows)
    passes = 2 * chunks + (3 if model.is_tied else 0) * num_microbatches
    return passes * FLOAT32 * model.head_parameters


def _sync(model: ModelShape, run: RunShape) -> Iterator[Count]:
    """Weights are cast, gathered and copied into the engine.

    A tied head is sent under both of its names. transformers copies each weight once. vLLM fills every layer, then
    copies it to where its kernels read (from its code; not measured).
    """
    c, is_vllm = run.compute_bytes, run.engine.name == "vllm"
    sent = c * (model.num_parameters + model.head_parameters * model.is_tied)
    cast = 0 if c == FLOAT32 else (FLOAT32 + c) * model.num_parameters // run.num_shards
    yield "weights to the engine", "memory", cast + (4 if is_vllm else 2) * sent
    yield "gathered weights", "collectives", c * model.num_parameters * _remote_share(run)
    if is_vllm:
        yield "visits of layers", "launches", SYNC_VISITS


def _num_microbatches(run: RunShape, work: Work, num_minibatches: int = 1) -> int:
    """Micro-batches of each mini-batch."""
    return max(1, -(-work.num_tokens // (num_minibatches * run.microbatch_tokens)))


def _cast_bytes(model: ModelShape, run: RunShape) -> int:
    """Layer weights that autocast reads in float32 and writes in the compute dtype; FSDP2 gathers them already cast."""
    if run.compute_bytes == FLOAT32 or run.strategy == "fsdp":
        return 0
    return (FLOAT32 + run.compute_bytes) * model.num_layers * model.layer_parameters


def _remote_share(run: RunShape) -> float:
    """The share of gathered bytes that comes from other ranks; 0 where nothing is sharded."""
    return (1 - 1 / run.world_size) if run.strategy == "fsdp" else 0.0


def _root_bytes(model: ModelShape, run: RunShape) -> float:
    """Embedding, last norm and head, gathered in float32."""
    return FLOAT32 * model.root_parameters * _remote_share(run)


def _not_hidden(num_bytes: float, flops: int, rates: Rates) -> float:
    """The part of a collective that remains when the overlapping products have ended [bytes]."""
    return max(0.0, num_bytes - flops / rates.matmul_flops_per_second * rates.gather_bytes_per_second)


def _moved_with_layers(model: ModelShape, run: RunShape) -> float:
    """Bytes of one micro-batch: layers are gathered for forward and backward, gradients reduced in float32."""
    if run.strategy == "ddp":
        return 2 * FLOAT32 * model.trained_parameters * (1 - 1 / run.world_size)
    layers = model.num_layers * model.layer_parameters
    trained = layers if model.adapters is None else model.adapter_parameters
    return (2 * run.compute_bytes * layers + FLOAT32 * trained) * _remote_share(run)

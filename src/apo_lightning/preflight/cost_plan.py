"""How long a step will take: operations and bytes, counted from sizes, over the rates of a device.

Each item is one amount of one kind over one rate, derived in the function that returns it. Nothing is fitted to a run;
`benchmarks/cost.py` holds the plan against real ones. Not counted: judging, which runs beside the sampling,
diagnostics, held-out looks, checkpoints and start-up.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from apo_lightning.logprobs.head import TILE_ROWS, TILE_ROWS_CPU
from apo_lightning.model.flops import ModelSize, Work, training_flops
from apo_lightning.preflight.elementwise import between_bytes, engine_between_bytes
from apo_lightning.preflight.memory_plan import held_logits, kv_token_bytes
from apo_lightning.preflight.memory_shapes import FLOAT32, ModelShape, RunShape
from apo_lightning.preflight.rates import Rates
from apo_lightning.preflight.workload import Workload
from apo_lightning.rollout.weight_sample import NUM_COLUMNS

LOGIT_PASSES = {"forward": 4, "backward": 3}
"""Over float32 logits: written, read for their maximum, exponentials written, read for their sums; the backward reads
them, writes their gradient and reads it."""
SAMPLING_PASSES = 6
"""Over the engine's float32 logits: temperature, log-softmax, the draw, each read and written."""
ADAM_BYTES = 40
"""A trained parameter, in one optimizer step: weight, gradient and two moments are read, all but the gradient written
(28); the gradient is read for its norm and scaled (12)."""
CACHE_LINE = 64
"""Bytes that are read where one is wanted."""
KEPT_BLOCK = 2**25
"""Larger blocks glibc gives back to the system when they are freed, and takes anew."""
ATTENTION_BACKWARD = 2.5
"""Forwards of attention that its backward costs: scores are computed again, and each of its two products has two."""
SYNC_VISITS = 4
"""A sync visits each layer of vLLM as a forward does, in Python: taken apart, loaded, put together, looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CostItem:
    """One line of the plan."""

    phase: str
    """As in `time/…` of metrics.csv."""
    name: str
    seconds: float
    bound: str
    """The rate that it takes its time from: products, attention, memory, new memory, packing, collectives, engine
    or launches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CostPlan:
    """The time of one step on each rank."""

    items: tuple[CostItem, ...]
    rates: Rates
    work: Workload

    @property
    def seconds(self) -> float:
        """Of one step, between the first prompt and the published weights."""
        return sum(item.seconds for item in self.items)

    def phases(self) -> dict[str, float]:
        """Seconds by phase, in the order of a step; phases that do not run are left out."""
        names = dict.fromkeys(item.phase for item in self.items)
        return {name: sum(item.seconds for item in self.items if item.phase == name) for name in names}

    def largest(self, count: int) -> list[CostItem]:
        """The items that take longest."""
        return sorted(self.items, key=lambda item: -item.seconds)[:count]


@dataclass(frozen=True, slots=True)
class _Count:
    """An amount before it meets a rate: FLOPs, bytes or forwards."""

    phase: str
    name: str
    bound: str
    amount: float | int


def plan_cost(model: ModelShape, run: RunShape, work: Workload, rates: Rates) -> CostPlan:
    """The plan of one rank.

    Args:
        model: sizes of the model.
        run: sizes of the run.
        work: of one rank in one step.
        rates: of its device.
    """
    size = model_size_of(model)
    engine_seconds = rates.graph_step_seconds if run.engine.has_graphs else rates.engine_step_seconds
    counts = (
        *_generation(model, run, work, rates),
        *_forward("reference", size, model, run, work.work(work.reference), rates),
        *_forward("old_logprobs", size, model, run, work.work(work.later) + work.work(work.drawn), rates),
        *_update(size, model, run, work, rates),
        *_sync(model, run, rates),
    )
    speed = {
        "products": rates.matmul_flops_per_second,
        "attention": rates.attention_flops_per_second,
        "memory": rates.memory_bytes_per_second,
        "new memory": rates.fresh_bytes_per_second,
        "packing": min(rates.pack_bytes_per_second, rates.memory_bytes_per_second),
        "collectives": rates.gather_bytes_per_second,
        "engine": 1 / engine_seconds if engine_seconds else float("inf"),
        "launches": 1 / rates.engine_step_seconds if rates.engine_step_seconds else float("inf"),
    }
    items = (
        CostItem(phase=count.phase, name=count.name, seconds=count.amount / speed[count.bound], bound=count.bound)
        for count in counts
    )
    return CostPlan(items=tuple(item for item in items if item.seconds > 0), rates=rates, work=work)


def model_size_of(model: ModelShape) -> ModelSize:
    """The sizes that `training_flops` reads. A layer's norms count as matrices, which they are a ten-thousandth of."""
    adapters = model.adapters
    return ModelSize(
        layer_weights=model.num_layers * model.layer_parameters + (0 if adapters is None else adapters.num_parameters),
        head_weights=model.head_parameters,
        attention_width=model.num_layers * model.num_heads * model.head_dim,
        frozen_layer_weights=0 if adapters is None else model.num_layers * model.layer_parameters,
        head_is_frozen=adapters is not None,
    )


def forward_flops(size: ModelSize, work: Work) -> int:
    """2·N·tokens + 2·V·D·rows: products with weights, a third of what forward and backward take."""
    return 2 * size.layer_weights * work.num_tokens + 2 * size.head_weights * work.num_rows


def attention_flops(size: ModelSize, work: Work) -> int:
    """4·width·pairs: products of queries with keys, and of scores with values."""
    return 4 * size.attention_width * work.num_pairs


def decoding_steps(run: RunShape, work: Workload) -> tuple[float | int, float | int]:
    """Forwards of the engine in one step of training: with all places taken, and of the tail behind them.

    n completions of mean length R, at most L, on s places. vLLM gives a free place to the next one: the places are full
    for n·R/s forwards, but for a tail that is L − R long. transformers begins the next batch when the last completion
    of one has ended: L forwards for each.
    """
    places = min(run.engine.num_sequences, work.num_completions)
    if run.engine.name != "vllm":
        return -(-work.num_completions // places) * work.longest_completion, 0
    return work.num_sampled_tokens / places, work.longest_completion - work.completion_tokens


def _generation(model: ModelShape, run: RunShape, work: Workload, rates: Rates) -> Iterator[_Count]:
    """Prompts, then a token a forward for every completion that is still open.

    A group shares whole blocks of its prompt; each completion runs what is behind them. A decoding forward multiplies
    each token with all weights while it reads them, then attends while it reads keys and values: of each pair the
    slower counts. In the tail few tokens share the weights that are read: at most so long, since what its tokens
    multiply stands among the products already.
    """
    size, (full, tail) = model_size_of(model), decoding_steps(run, work)
    block, length = run.engine.block_tokens, work.prompt_tokens
    shared = length if not block else block * ((length - 1) // block)
    run_tokens = work.num_prompts * (shared + work.group_size * (length - shared))
    prompts = Work(num_tokens=round(run_tokens), num_pairs=round(run_tokens * length / 2), num_rows=0)
    yield _Count("generate", "prompts", "products", forward_flops(size, prompts))
    yield _Count("generate", "attention over prompts", "attention", attention_flops(size, prompts))
    # The first token of a completion comes from its prompt.
    sampled, tokens = work.num_sampled_tokens, max(0, work.num_sampled_tokens - work.num_completions)
    context = work.prompt_tokens + work.completion_tokens / 2
    decoded = Work(num_tokens=round(tokens), num_pairs=round(tokens * context), num_rows=round(sampled))
    weights = run.compute_bytes * model.num_parameters
    flops = forward_flops(size, decoded)
    if flops / rates.matmul_flops_per_second > full * weights / rates.memory_bytes_per_second:
        yield _Count("generate", "decoding: products", "products", flops)
    else:
        yield _Count("generate", "decoding: weights", "memory", full * weights)
    yield _Count("generate", "decoding: weights, in the tail", "memory", tail * weights)
    flops, read = attention_flops(size, decoded), tokens * context * kv_token_bytes(model, run)
    if flops / rates.attention_flops_per_second > read / rates.memory_bytes_per_second:
        yield _Count("generate", "decoding: attention", "attention", flops)
    else:
        yield _Count("generate", "decoding: keys and values", "memory", read)
    between = engine_between_bytes(model, run) * (prompts.num_tokens + decoded.num_tokens)
    yield _Count("generate", "between products", "memory", between)
    yield _Count("generate", "drawing tokens", "memory", SAMPLING_PASSES * FLOAT32 * sampled * model.vocab_size)
    yield _Count("generate", "launches and scheduling", "engine", full + tail)


def _forward(
    phase: str, size: ModelSize, model: ModelShape, run: RunShape, work: Work, rates: Rates
) -> Iterator[_Count]:
    """A pass without a gradient: products, what lies between them, and the logits of response tokens.

    FSDP2 gathers a layer beside the products of the one before; for embedding and head everything waits, once.
    """
    if not work.num_tokens:
        return
    flops = forward_flops(size, work)
    yield _Count(phase, "products", "products", flops)
    yield _Count(phase, "attention", "attention", attention_flops(size, work))
    between = between_bytes(model, run, forwards=1, backwards=0) * work.num_tokens
    logits = LOGIT_PASSES["forward"] * FLOAT32 * model.vocab_size * work.num_rows
    yield _Count(phase, "between products", "memory", between)
    yield _Count(phase, "logits", "memory", logits)
    num_microbatches = _num_microbatches(run, work)
    yield _Count(phase, "casts of weights", "memory", num_microbatches * _cast_bytes(model, run))
    layers = num_microbatches * run.compute_bytes * model.num_layers * model.layer_parameters * _others(run)
    yield _Count(phase, "collectives beyond what products hide", "collectives", _beyond(layers, flops, rates))
    yield _Count(phase, "embedding and head, gathered", "collectives", _root_bytes(model, run))


def _update(size: ModelSize, model: ModelShape, run: RunShape, work: Workload, rates: Rates) -> Iterator[_Count]:
    """Forward, backward and optimizer.

    With checkpointing the layers' forward runs twice. On a CPU the gradients' memory is the system's between two steps,
    which clears every page. Collectives run beside the products of other layers: what counts is by how much they take
    longer, and the root's, for which everything waits: one gather and one reduction a mini-batch.
    """
    total = work.work(work.updated)
    if not total.num_tokens:
        return
    again = int(run.gradient_checkpointing)
    attention = attention_flops(size, total)
    flops = training_flops(size, total) - 3 * attention
    layers = forward_flops(size, Work(num_tokens=total.num_tokens))
    yield _Count("update", "products", "products", flops)
    yield _Count("update", "products of layers again (checkpointing)", "products", again * layers)
    if work.has_full_kl:
        yield _Count("update", "products of the reference (full KL)", "products", forward_flops(size, total))
    forwards = 1 + again + work.has_full_kl
    yield _Count("update", "attention", "attention", (forwards + ATTENTION_BACKWARD) * attention)
    between = between_bytes(model, run, forwards=forwards, backwards=1) * total.num_tokens
    yield _Count("update", "between products", "memory", between)
    logits = sum(LOGIT_PASSES.values()) * FLOAT32 * model.vocab_size * total.num_rows
    yield _Count("update", "logits", "memory", logits)
    parts = work.num_minibatches * _num_microbatches(run, total, work.num_minibatches)
    yield _Count("update", "casts of weights", "memory", parts * (1 + again) * _cast_bytes(model, run))
    # DDP reduces with the last micro-batch of a mini-batch, beside its products alone.
    num_beside = work.num_minibatches if run.strategy == "ddp" else parts
    moved = num_beside * _moved_beside_products(model, run)
    beyond = _beyond(moved, (flops + again * layers) * num_beside // parts, rates)
    yield _Count("update", "collectives beyond what products hide", "collectives", beyond)
    root = work.num_minibatches * 2 * _root_bytes(model, run)
    yield _Count("update", "embedding and head, gathered and reduced", "collectives", root)
    optimizer = ADAM_BYTES * -(-model.trained_parameters // run.num_shards)
    yield _Count("update", "optimizer", "memory", work.num_minibatches * optimizer)
    # Every optimizer step ends by giving them back, and on a CPU the backward's thread keeps nothing.
    gradients = FLOAT32 * -(-model.trained_parameters // run.num_shards)
    yield _Count("update", "gradients, taken anew", "new memory", work.num_minibatches * gradients)
    if model.adapters is None:
        yield from _root_gradient(model, run, total, parts, work.num_minibatches)


def _root_gradient(
    model: ModelShape, run: RunShape, work: Work, num_microbatches: int, num_minibatches: int
) -> Iterator[_Count]:
    """Each micro-batch clears a whole gradient for the embedding, and adds it to the head's where they are tied.

    The head's is written by the first chunk of tokens whose logits are held at once, and read and written by the next.
    """
    rows = min(max(1, held_logits(run) // model.vocab_size), TILE_ROWS if run.is_cuda else TILE_ROWS_CPU)
    chunks = max(num_microbatches, work.num_rows / rows)
    head = FLOAT32 * model.head_parameters
    passes = 2 * chunks + (3 if _is_tied(model) else 0) * num_microbatches
    yield _Count("update", "gradients of embedding and head", "memory", passes * head)
    anew = 2 * num_microbatches * head - num_minibatches * FLOAT32 * model.root_parameters
    yield _Count("update", "gradients of embedding and head, taken anew", "new memory", max(0, anew))


def _sync(model: ModelShape, run: RunShape, rates: Rates) -> Iterator[_Count]:
    """Weights are cast and gathered, copied into the engine, and some columns of each looked at.

    A tied head goes under both of its names. transformers copies each weight once. vLLM makes every layer anew and
    fills it, then copies it to where its kernels read; on a CPU it packs it instead, embedding and head beside what it
    keeps of them, and is asked by a product with rows of the identity what it has packed, which reads all of it. For
    GPUs this is read off vLLM's code and supposed.
    """
    c, vocabulary = run.compute_bytes, run.compute_bytes * model.head_parameters
    sent = c * model.num_parameters + vocabulary * _is_tied(model)
    is_vllm = run.engine.name == "vllm"
    is_packed = is_vllm and not run.is_cuda
    cast = 0 if c == FLOAT32 else (FLOAT32 + c) * model.num_parameters // run.num_shards
    copied = (4 if is_vllm and not is_packed else 2) * sent + 4 * vocabulary * is_packed
    yield _Count("sync", "weights to the engine", "memory", cast + copied)
    yield _Count("sync", "weights, packed", "packing", 2 * sent * is_packed)
    yield _Count("sync", "gathered weights", "collectives", c * model.num_parameters * _others(run))
    matrices = [(model.vocab_size, model.hidden_size)] * 2 + _layer_matrices(model) * model.num_layers
    columns = sum(rows * min(c * width, NUM_COLUMNS * CACHE_LINE) for rows, width in matrices)
    yield _Count("sync", "columns of what is sent, and held", "memory", columns * (1 if is_packed else 2))
    if is_packed:
        asked = sent - vocabulary
        flops = 2 * NUM_COLUMNS * asked // c
        if flops / rates.matmul_flops_per_second > asked / rates.memory_bytes_per_second:
            yield _Count("sync", "packed weights, asked for columns", "products", flops)
        else:
            yield _Count("sync", "packed weights, asked for columns", "memory", asked)
    if is_vllm:
        yield _Count("sync", "visits of layers", "launches", SYNC_VISITS)
        large = sum(c * rows * width for rows, width in matrices if c * rows * width > KEPT_BLOCK)
        yield _Count("sync", "layers made anew, and packed", "new memory", 2 * large)


def _is_tied(model: ModelShape) -> bool:
    """Whether embedding and head are one matrix."""
    return model.root_parameters < 2 * model.head_parameters


def _layer_matrices(model: ModelShape) -> list[tuple[int, int]]:
    """Rows and columns of a layer's matrices, as vLLM joins them: queries, keys and values; output; MLP."""
    width, inner = model.hidden_size, model.intermediate_size
    queries, keys = model.num_heads * model.head_dim, model.num_kv_heads * model.head_dim
    return [(queries + 2 * keys, width), (width, queries), (2 * inner, width), (width, inner)]


def _num_microbatches(run: RunShape, work: Work, num_minibatches: int = 1) -> int:
    """Micro-batches of each mini-batch."""
    return max(1, -(-work.num_tokens // (num_minibatches * run.microbatch_tokens)))


def _cast_bytes(model: ModelShape, run: RunShape) -> int:
    """Weights of the layers that autocast reads in float32 and writes in the compute dtype; FSDP2 gathers them cast."""
    if run.compute_bytes == FLOAT32 or run.strategy == "fsdp":
        return 0
    return (FLOAT32 + run.compute_bytes) * model.num_layers * model.layer_parameters


def _others(run: RunShape) -> float:
    """The share of what is gathered that comes from other ranks; 0 where nothing is sharded."""
    return (1 - 1 / run.world_size) if run.strategy == "fsdp" else 0.0


def _root_bytes(model: ModelShape, run: RunShape) -> float:
    """Embedding, last norm and head, gathered in float32."""
    return FLOAT32 * model.root_parameters * _others(run)


def _beyond(num_bytes: float, flops: int, rates: Rates) -> float:
    """What is left of a collective when the products beside it have ended [bytes]."""
    return max(0.0, num_bytes - flops / rates.matmul_flops_per_second * rates.gather_bytes_per_second)


def _moved_beside_products(model: ModelShape, run: RunShape) -> float:
    """Layers are gathered for the forward, again for the backward, and their gradients reduced in float32."""
    if run.strategy == "ddp":
        return 2 * FLOAT32 * model.trained_parameters * (1 - 1 / run.world_size)
    gathers = 1 if run.keeps_layers_gathered else 2
    layers = model.num_layers * model.layer_parameters
    trained = layers if model.adapters is None else model.adapters.num_parameters
    return (gathers * run.compute_bytes * layers + FLOAT32 * trained) * _others(run)

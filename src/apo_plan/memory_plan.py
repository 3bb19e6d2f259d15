"""How much memory one process of a run needs, computed from sizes alone: no weights, no device.

Every allocation is a product of sizes, derived in the docstring of its function. The constants below are measured or
assumed, and say which. `benchmarks/RESULTS.md` compares the plan with real runs.
"""

from dataclasses import dataclass, replace

from apo_lightning.logprobs.head import LOGITS_HELD, LOGITS_HELD_CPU, TILE_LOGITS, TILE_LOGITS_CPU
from apo_plan.shapes import FLOAT32, ModelShape, RunShape

MIB = 2**20
LIBRARIES_BYTES = 690 * MIB
"""Resident before any weight is loaded. Measured on the CPU builds of torch 2.13 and transformers 5.19; a third of it
are mapped library files, which ranks share."""
LIBRARIES_VLLM_BYTES = 200 * MIB
"""Added by importing and starting vLLM. Measured with and without it on `model=tiny`, whose weights are negligible."""
CUDA_CONTEXT_BYTES = 512 * MIB
"""Context and kernels of one process on a GPU; the known size of CUDA 12 contexts, not measured in this project."""
NCCL_BYTES = 512 * MIB
"""Channels and buffers of NCCL, where there are several ranks. Not measured either."""
PHASES = ("generate", "check", "update", "sync")
"""`check` is that of the engine against the policy in a validation pass, while the engine is awake."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """One row of the plan: its size in each phase [bytes], 0 where it is freed or not yet allocated."""

    name: str
    generate: int = 0
    check: int = 0
    update: int = 0
    sync: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """Memory of the run's first process: of its GPU if it has one, else of the host [bytes]."""

    allocations: tuple[Allocation, ...]
    loading: int
    """Host memory while weights are read, of the first process."""
    loading_others: int
    """The same of each other process."""
    host: int
    """Host memory, after loading, of a process that has a GPU; 0 where it has none."""

    def total(self, phase: str) -> int:
        """Memory at the worst moment of one of the `PHASES`."""
        return sum(getattr(item, phase) for item in self.allocations)

    @property
    def peak(self) -> int:
        """Memory in the worst phase of a step."""
        return max(map(self.total, PHASES))


def plan_memory(model: ModelShape, run: RunShape) -> MemoryPlan:
    """The plan of one process, from the second step on, when the optimizer has its moments.

    Upper bounds: micro-batches are full and completions have the longest allowed length. On a GPU a phase is as large
    as its worst moment, and the engine sleeps during the update, without weights and cache. On a CPU vLLM keeps weights
    and cache, and glibc keeps freed blocks below 32 MiB in one arena per thread, in fragments that do not fit the next
    phase: a process grows to the sum of its phases.
    """
    is_kept = not run.is_cuda
    trained = shard_bytes(model.trained_parameters, run) * run.num_trained_models
    gradients = trained * (2 if run.strategy == "ddp" else 1)  # DDP keeps them a second time, in its buckets
    engine_weights = engine_weight_bytes(model, run)
    allocations = (
        _allocation("libraries" if is_kept else "CUDA context, NCCL", process_bytes(run), stays=True),
        _allocation("weights", weight_bytes(model, run), stays=True),
        _allocation("optimizer moments", 2 * trained, stays=True),
        _allocation("reference weights", reference_bytes(model, run), stays=True),
        # A copy of the trained weights, where the policy is averaged with it; of adapters less.
        _allocation(
            "weights before training", shard_bytes(model.trained_parameters, run) * run.averages_base, stays=True
        ),
        replace(_allocation("gradients", gradients * is_kept, stays=True), update=gradients),
        replace(_allocation("engine weights", engine_weights, stays=is_kept), sync=engine_weights),
        _allocation("keys and values", kv_cache_bytes(model, run), stays=is_kept),
        _allocation("engine workspace", engine_workspace_bytes(model, run), stays=is_kept),
        Allocation(name="engine check: one micro-batch", check=check_bytes(model, run)),
        *update_allocations(model, run),
        Allocation(name="tensors sent to the engine", sync=sync_bytes(model, run)),
    )
    return MemoryPlan(
        allocations=tuple(item for item in allocations if any(getattr(item, phase) for phase in PHASES)),
        loading=loading_bytes(model, run, is_first=True),
        loading_others=loading_bytes(model, run, is_first=False),
        host=library_bytes(run) if run.is_cuda else 0,
    )


def _allocation(name: str, size: int, *, stays: bool) -> Allocation:
    later = size * stays
    return Allocation(name=name, generate=size, check=size, update=later, sync=later)


def shard_bytes(num_parameters: int, run: RunShape) -> int:
    """4·N/shards: float32 numbers, divided by the processes that FSDP2 shards over."""
    return FLOAT32 * -(-num_parameters // run.num_shards)


def weight_bytes(model: ModelShape, run: RunShape) -> int:
    """Bytes of the weights and adapters of the policy and, where it is separate, of the critic.

    A value head has D + 1 weights, which are not counted.
    """
    one = shard_bytes(model.num_parameters, run) + shard_bytes(model.adapter_parameters, run)
    return run.num_trained_models * one


def reference_bytes(model: ModelShape, run: RunShape) -> int:
    """A copy, sharded as the policy is: layers in the compute dtype, embedding and head in float32.

    One that is averaged with the policy is in float32. With adapters there is none: the policy without them is the
    reference.
    """
    if not run.has_reference or model.adapters is not None:
        return 0
    layers = model.num_layers * model.layer_parameters
    layer_bytes = FLOAT32 if run.mixes_reference else run.compute_bytes
    return layer_bytes * -(-layers // run.num_shards) + shard_bytes(model.root_parameters, run)


def process_bytes(run: RunShape) -> int:
    """Bytes that a process takes before any tensor: libraries on a CPU, the context on a GPU."""
    return CUDA_CONTEXT_BYTES + NCCL_BYTES * (run.world_size > 1) if run.is_cuda else library_bytes(run)


def library_bytes(run: RunShape) -> int:
    """Host memory of a process without any weights."""
    return LIBRARIES_BYTES + LIBRARIES_VLLM_BYTES * (run.engine.name == "vllm")


def loading_bytes(model: ModelShape, run: RunShape, *, is_first: bool) -> int:
    """Host memory of a process while weights are read: policy and reference, in float32.

    Under FSDP2 only the first rank has all weights, 4·(N + A). The others receive one whole tensor at a time, V·D at
    most. Shards are allocated as well, on the host unless there are GPUs.
    """
    if run.strategy != "fsdp":
        copy = FLOAT32 * model.num_parameters if reference_bytes(model, run) else 0
        return LIBRARIES_BYTES + weight_bytes(model, run) + copy
    shards = weight_bytes(model, run) + reference_bytes(model, run)
    whole = model.num_parameters + model.adapter_parameters if is_first else model.head_parameters
    return LIBRARIES_BYTES + FLOAT32 * whole + (0 if run.is_cuda else shards)


def kv_cache_bytes(model: ModelShape, run: RunShape) -> int:
    """Keys and values of the engine: the given size, or what its share of the GPU leaves, or those of all sequences.

    The result is never less than one sequence takes: where even that does not fit, vLLM does not start.
    """
    engine, token = run.engine, kv_token_bytes(model, run)
    if engine.gpu_share is not None:
        others = engine_weight_bytes(model, run) + engine_workspace_bytes(model, run)
        return max(int(engine.gpu_share * run.gpu_bytes) - others, run.max_model_len * token)
    return engine.kv_cache_bytes or engine.num_sequences * run.max_model_len * token


def engine_weight_bytes(model: ModelShape, run: RunShape) -> int:
    """The engine's weights: every rank has all of them."""
    return run.compute_bytes * model.num_parameters


def kv_token_bytes(model: ModelShape, run: RunShape) -> int:
    """Keys and values of one token: 2·layers·kv_heads·head_dim numbers in the compute dtype."""
    return 2 * model.num_layers * model.key_width * run.compute_bytes


def engine_workspace_bytes(model: ModelShape, run: RunShape) -> int:
    """Peak of one forward of the engine and of its sampling.

    A forward keeps no graph; its peak, in the MLP, is twice the residual and the inputs and output of the MLP's two
    halves: c·(3·D + 3·F) per token. Sampling holds each sequence's logits in the compute dtype and twice in float32.
    """
    c, engine = run.compute_bytes, run.engine
    forward = engine.num_forward_tokens * c * 3 * (model.hidden_size + model.intermediate_size)
    return forward + engine.num_sequences * model.vocab_size * (c + 2 * FLOAT32)


def layer_activation_bytes(model: ModelShape, run: RunShape) -> int:
    """Bytes that one layer keeps for its backward, per position; c is the bytes of a computed number.

    Two norms each keep their input and the normalised input in float32: 16·D. Attention keeps queries, keys, values and
    output, and a float32 log-sum-exp per head. The MLP keeps gate, its activation, up and their product, 4·c·F. Inputs
    of the matrix products: in float32 two, shared by the products that read them, 8·D; under autocast each of the five
    casts its own, 5·c·D. With adapters all products read the two in float32, and frozen norms keep no normalised input.

    A compiled layer recomputes norms and activation in its backward. It keeps the incoming residual stream, both
    normalised inputs and the attention's contribution, (4 + 3·c)·D, and 3·c·F of the MLP. With adapters it is counted
    as eager, which is more.
    """
    c, d, is_full = run.compute_bytes, model.hidden_size, model.adapters is None
    attention = c * 2 * (model.query_width + model.key_width) + FLOAT32 * model.num_heads
    if run.compiles_layers and is_full:
        return (FLOAT32 + 3 * c) * d + attention + 3 * c * model.intermediate_size
    inputs = 5 * c * d if c < FLOAT32 and is_full else 2 * FLOAT32 * d
    norms = (4 if is_full else 2) * FLOAT32 * d
    return norms + inputs + attention + 4 * c * model.intermediate_size


def activation_bytes(model: ModelShape, run: RunShape) -> int:
    """Activations of one micro-batch when the backward begins.

    Those of every layer; with checkpointing the input of each layer, 4·D, and all activations of one layer. After the
    last layer there are three float32 copies of the hidden states: the norm's input, the normalised input (not if the
    norm is frozen) and the rows that the head reads.
    """
    layer, d = layer_activation_bytes(model, run), model.hidden_size
    layers = model.num_layers * FLOAT32 * d + layer if run.gradient_checkpointing else model.num_layers * layer
    copies = 3 if model.adapters is None else 2
    return run.microbatch_tokens * (layers + copies * FLOAT32 * d)


def cast_weight_bytes(model: ModelShape, run: RunShape, *, backward: bool) -> int:
    """The compute-dtype copies of layer weights that autocast makes; 0 in float32.

    Autocast keeps all copies until the forward ends, and without checkpointing the graph keeps them until the backward
    has passed. With checkpointing, the backward has those of one layer. FSDP2 gathers layers in the compute dtype,
    which leaves nothing to cast; adapted layers in float32, whose matrices are merged one at a time, which holds
    W + B·A, B·A and the operand of the product.
    """
    c, adapters = run.compute_bytes, model.adapters
    if run.strategy == "fsdp" and adapters is None:
        return 0
    num_layers = 1 if run.gradient_checkpointing and backward else model.num_layers
    cast = 0 if c == FLOAT32 else c * num_layers
    if adapters is None:
        return cast * model.layer_parameters
    return cast * (model.layer_parameters - adapters.layer_parameters) + (2 * FLOAT32 + c) * adapters.largest_matrix


def gathered_bytes(model: ModelShape, run: RunShape) -> int:
    """Bytes that FSDP2 has gathered at one time: embedding and head in float32, the current layer and the next.

    Layers are in the compute dtype, or with adapters in float32.
    """
    if run.num_shards == 1:
        return 0
    layer = (run.compute_bytes if model.adapters is None else FLOAT32) * model.layer_parameters
    return FLOAT32 * model.root_parameters + 2 * layer


def tile_bytes(run: RunShape) -> int:
    """Float32 logits that the head computes at once, and their exponentials."""
    return 2 * FLOAT32 * (TILE_LOGITS if run.is_cuda else TILE_LOGITS_CPU)


def cast_head_bytes(model: ModelShape, run: RunShape) -> int:
    """The head in the compute dtype, made once per micro-batch: c·V·D; 0 in float32."""
    return run.compute_bytes * model.head_parameters if run.compute_bytes < FLOAT32 else 0


def update_allocations(model: ModelShape, run: RunShape) -> tuple[Allocation, ...]:
    """Memory of a mini-batch besides gradients and moments: on a GPU the worst of three moments, on a CPU their union.

    1. The forward has ended: activations, and all weights that autocast has cast. Under FSDP2 also the unsharded
       gradient of embedding and head that earlier micro-batches have left, here and in 2.
    2. The head: activations, cast weights, logits, the cast head, ∂L/∂h, and in float32 ∂L/∂W of the head (V·D), if it
       is trained. Under FSDP2 also the gradient of the current layer before it is reduced, and in float32 as it is
       summed.
    3. The backward ends: one layer's activations, and the new gradients of embedding and head next to those they are
       added to, under FSDP2 twice. The optimizer's step is fused and allocates nothing.

    A separate critic has activations, cast and gathered weights of its own until the one backward of both.
    """
    num_models = run.num_trained_models
    is_full, gathered_size = model.adapters is None, gathered_bytes(model, run)
    root = FLOAT32 * model.root_parameters * is_full
    tokens, trained_head = run.microbatch_tokens, model.head_parameters * is_full
    gradients = FLOAT32 * (trained_head + tokens * model.hidden_size)
    # Between computing logits and computing their gradient.
    held = LOGITS_HELD if run.is_cuda else LOGITS_HELD_CPU * FLOAT32 // run.compute_bytes
    logits = tile_bytes(run) + FLOAT32 * min(held, tokens * model.vocab_size)
    head_size = logits + cast_head_bytes(model, run) + gradients
    last_size = tokens * layer_activation_bytes(model, run) + root * (2 if gathered_size else 1)
    layer_size = (run.compute_bytes + FLOAT32) * model.layer_parameters * is_full * bool(gathered_size)

    cast, cast_in_backward = (
        Allocation(
            name="weights cast by autocast", update=num_models * cast_weight_bytes(model, run, backward=backward)
        )
        for backward in (False, True)
    )
    activations = Allocation(name="activations", update=num_models * activation_bytes(model, run))
    gathered = Allocation(name="gathered by FSDP2", check=gathered_size, update=num_models * gathered_size)
    head = Allocation(name="head: logits, its gradient", update=head_size)
    layer = Allocation(name="one layer's gradient, unreduced", update=layer_size)
    left = Allocation(name="embedding and head: unsharded gradient", update=num_models * root * bool(gathered_size))
    last = Allocation(name="end of backward: new gradients", update=last_size)
    if not run.is_cuda:
        return activations, cast, head, gathered, layer, last
    forward_ends = activations, cast, gathered, left
    at_head = activations, cast_in_backward, head, gathered, layer, left
    backward_ends = last, gathered
    return max(forward_ends, at_head, backward_ends, key=lambda moment: sum(item.update for item in moment))


def check_bytes(model: ModelShape, run: RunShape) -> int:
    """One micro-batch without a gradient, which checks the engine in a validation pass; without gathered weights.

    One layer's activations, three copies after the last layer, all weights that autocast casts, logits and the head in
    the compute dtype.
    """
    activations = run.microbatch_tokens * (layer_activation_bytes(model, run) + 3 * FLOAT32 * model.hidden_size)
    cast = cast_weight_bytes(model, run, backward=False) + cast_head_bytes(model, run)
    return activations + cast + tile_bytes(run)


def sync_bytes(model: ModelShape, run: RunShape) -> int:
    """Embedding or head, in the engine's dtype; under FSDP2 also its gathered copy; or a layer, if it is larger.

    Experts are renamed layer by layer.
    """
    head = model.head_parameters * (2 if run.strategy == "fsdp" else 1)
    return run.compute_bytes * max(head, model.layer_parameters)

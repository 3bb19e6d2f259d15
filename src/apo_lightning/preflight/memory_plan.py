"""How much memory one process of a run will need, from sizes alone: no weights, no device, a second.

Every allocation is a product of sizes of the model and the run, derived in the docstring of the function that returns
it. What is not is measured, and a constant below says on what. `benchmarks/preflight/memory.py` holds the plan against
real runs.
"""

from dataclasses import dataclass, replace

from apo_lightning.logprobs.head import LOGITS_HELD, LOGITS_HELD_CPU, TILE_LOGITS, TILE_LOGITS_CPU
from apo_lightning.preflight.memory_shapes import FLOAT32, ModelShape, RunShape
from apo_lightning.rollout import kv_cache

MIB = 2**20
LIBRARIES_BYTES = 690 * MIB
"""Resident before any weight is loaded: Python, torch, transformers, Lightning, datasets, prompts as tokens. Measured
on the CPU builds of torch 2.13 and transformers 5.19; a third of it are mapped library files, which ranks share."""
LIBRARIES_VLLM_BYTES = 200 * MIB
"""What importing and starting vLLM adds. Measured: `model=tiny`, whose weights are nothing, with and without it."""
CUDA_CONTEXT_BYTES = 512 * MIB
"""Context and kernels of one process on a GPU, before any tensor. From the sizes that CUDA 12 contexts are known to
have; not measured in this project."""
NCCL_BYTES = 512 * MIB
"""Channels and buffers of NCCL, where there are several ranks. As above."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """One row of the plan [bytes]: how much of it there is in each phase. 0: given back, or not there yet."""

    name: str
    generate: int = 0
    check: int = 0
    update: int = 0
    sync: int = 0
    is_first_only: bool = False
    """True where only the run's first process takes this memory."""

    @property
    def is_any(self) -> bool:
        """True where it takes memory in some phase."""
        return any((self.generate, self.check, self.update, self.sync))


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """Memory of the run's first process: of its GPU where it has one, else of the machine [bytes]."""

    allocations: tuple[Allocation, ...]
    loading: int
    """Machine memory of the first process while weights are read."""
    loading_others: int
    """Machine memory of each other process while weights are read."""
    beside_gpu: int
    """Machine memory, after loading, of a process that has a GPU; 0 where it has none."""

    @property
    def generate(self) -> int:
        """Memory while completions are sampled."""
        return sum(item.generate for item in self.allocations)

    @property
    def check(self) -> int:
        """Memory while the engine is checked against the policy in a validation pass, before it sleeps."""
        return sum(item.check for item in self.allocations)

    @property
    def update(self) -> int:
        """Memory at the worst moment of forward, backward and optimizer step."""
        return sum(item.update for item in self.allocations)

    @property
    def sync(self) -> int:
        """Memory while weights go to the engine."""
        return sum(item.sync for item in self.allocations)

    @property
    def peak(self) -> int:
        """Memory in the worst phase of a step."""
        return max(self.generate, self.check, self.update, self.sync)

    @property
    def peak_others(self) -> int:
        """Memory in the worst phase of a step, of each process but the first."""
        return self.peak - sum(item.update for item in self.allocations if item.is_first_only)


def plan_memory(model: ModelShape, run: RunShape) -> MemoryPlan:
    """The plan of one process, from the second step on, when the optimizer has its moments.

    Upper bounds: a micro-batch as full as allowed, completions as long as allowed.

    On a GPU what is freed can be used for anything, so a phase is as high as its worst moment; and the engine is asleep
    during the update, without weights and cache. A validation pass checks it while it is awake with both.

    On a CPU nothing is given back: vLLM keeps both, and glibc keeps freed blocks below 32 MiB, in an arena a thread and
    in pieces that the next phase does not fit into. A process therefore grows to the sum of what its phases need.
    """
    is_kept = not run.is_cuda
    on_device = not run.offloads
    trained = shard_bytes(model.trained_parameters, run) * on_device
    gradients = trained * (2 if run.strategy == "ddp" else 1)
    engine_weights = engine_weight_bytes(model, run)
    allocations = (
        _allocation("libraries" if is_kept else "CUDA context, NCCL", process_bytes(run), stays=True),
        _allocation("left over from loading", left_from_loading_bytes(model, run), stays=True, is_first_only=True),
        _allocation("weights", weight_bytes(model, run) * on_device, stays=True),
        _allocation("optimizer moments", moment_bytes(model, run), stays=True),
        _allocation("reference weights", reference_bytes(model, run) * on_device, stays=True),
        replace(_allocation("gradients", gradients * is_kept, stays=True), update=gradients),
        replace(_allocation("engine weights", engine_weights, stays=is_kept), sync=engine_weights),
        _allocation("keys and values", kv_cache_bytes(model, run), stays=is_kept),
        _allocation("engine workspace", engine_workspace_bytes(model, run), stays=is_kept),
        Allocation(name="engine check: one micro-batch", check=check_bytes(model, run)),
        *update_allocations(model, run),
        Allocation(name="whole tensors on their way", sync=sync_bytes(model, run)),
    )
    return MemoryPlan(
        allocations=tuple(item for item in allocations if item.is_any),
        loading=loading_bytes(model, run, is_first=True),
        loading_others=loading_bytes(model, run, is_first=False),
        beside_gpu=beside_gpu_bytes(model, run),
    )


def shard_bytes(num_parameters: int, run: RunShape) -> int:
    """One float32 number a parameter, or this process's part of them where FSDP2 divides it: 4·N/shards.

    Of what is trained the gradient is as large, the two moments of Adam twice as large. DDP keeps gradients a second
    time, in its buckets.
    """
    return FLOAT32 * -(-num_parameters // run.num_shards)


def weight_bytes(model: ModelShape, run: RunShape) -> int:
    """Bytes of the policy's weights, and of its adapters beside them."""
    adapters = 0 if model.adapters is None else shard_bytes(model.adapters.num_parameters, run)
    return shard_bytes(model.num_parameters, run) + adapters


def has_reference_copy(model: ModelShape, run: RunShape) -> bool:
    """False with adapters: the policy without them is the reference."""
    return run.has_reference and model.adapters is None


def reference_bytes(model: ModelShape, run: RunShape) -> int:
    """A frozen copy, or this process's part of it: the layers in the compute dtype, embedding and head in float32."""
    if not has_reference_copy(model, run):
        return 0
    layers = model.num_layers * model.layer_parameters
    return run.compute_bytes * -(-layers // run.num_shards) + shard_bytes(model.root_parameters, run)


def process_bytes(run: RunShape) -> int:
    """Bytes that a process takes before any tensor: libraries on a CPU, the context on a GPU."""
    if run.is_cuda:
        return CUDA_CONTEXT_BYTES + (NCCL_BYTES if run.world_size > 1 else 0)
    return LIBRARIES_BYTES + (LIBRARIES_VLLM_BYTES if run.engine.name == "vllm" else 0)


def loading_bytes(model: ModelShape, run: RunShape, *, is_first: bool) -> int:
    """Machine memory of a process while weights are read: they and the reference's copy stand there, in float32.

    Under FSDP2 the first rank alone has all weights, adapters among them, 4·(N + A); the others have them on the `meta`
    device, and receive one whole tensor at a time, V·D at most. The shards that are filled from it, policy's and
    reference's, lie there too where they are not on a GPU; the reference's are in the compute dtype from the beginning.
    """
    if run.strategy != "fsdp":
        copy = has_reference_copy(model, run) * shard_bytes(model.num_parameters, run)
        return LIBRARIES_BYTES + weight_bytes(model, run) + copy
    shards = weight_bytes(model, run) + reference_bytes(model, run)
    whole = whole_parameters(model) if is_first else model.head_parameters
    return LIBRARIES_BYTES + FLOAT32 * whole + (0 if run.is_cuda and not run.offloads else shards)


def whole_parameters(model: ModelShape) -> int:
    """Number of parameters of the model and its adapters."""
    return model.num_parameters + (0 if model.adapters is None else model.adapters.num_parameters)


def beside_gpu_bytes(model: ModelShape, run: RunShape) -> int:
    """Machine memory beside a GPU: libraries, and with offloading weights, gradients, moments and reference."""
    if not run.is_cuda:
        return 0
    libraries = LIBRARIES_BYTES + (LIBRARIES_VLLM_BYTES if run.engine.name == "vllm" else 0)
    shards = weight_bytes(model, run) + 3 * shard_bytes(model.trained_parameters, run) + reference_bytes(model, run)
    return libraries + shards * run.offloads


def left_from_loading_bytes(model: ModelShape, run: RunShape) -> int:
    """Memory that glibc keeps of the first rank's whole copy, which was freed when it was sharded; on a CPU only."""
    return 0 if run.is_cuda or run.strategy != "fsdp" else FLOAT32 * whole_parameters(model)


def moment_bytes(model: ModelShape, run: RunShape) -> int:
    """The two moments of Adam on the device, 8·N/shards of what is trained: there from the first optimizer step on."""
    return 2 * shard_bytes(model.trained_parameters, run) * (not run.offloads)


def trainer_bytes(model: ModelShape, run: RunShape) -> int:
    """What training claims on a GPU after the engine has started, while it is awake.

    The moments, and the passes of the engine check in a validation. Syncs take less than the check, and gradients are
    never there beside an engine with a cache.
    """
    return moment_bytes(model, run) + check_bytes(model, run) + gathered_bytes(model, run)


def engine_weight_bytes(model: ModelShape, run: RunShape) -> int:
    """The engine's own weights, whole in every process, in the compute dtype."""
    return run.compute_bytes * model.num_parameters


def kv_cache_bytes(model: ModelShape, run: RunShape) -> int:
    """Keys and values of the engine: the size that is given, what is left of a GPU, or those of all that runs at once.

    When vLLM starts, the context, the weights and the reference have taken of a GPU what they need. Never less than
    one sequence takes: where not even that is left, the plan is higher than the GPU, and the engine does not start.
    """
    engine = run.engine
    if engine.fills_gpu:
        there = process_bytes(run) + (weight_bytes(model, run) + reference_bytes(model, run)) * (not run.offloads)
        left = kv_cache.left_for_kv_cache(
            free=run.gpu_bytes - there,
            total=run.gpu_bytes,
            engine=engine_weight_bytes(model, run) + engine_workspace_bytes(model, run),
            trainer=trainer_bytes(model, run),
        )
        return max(left, run.max_model_len * kv_token_bytes(model, run))
    return engine.kv_cache_bytes or engine.num_sequences * run.max_model_len * kv_token_bytes(model, run)


def kv_token_bytes(model: ModelShape, run: RunShape) -> int:
    """Keys and values of one token, in the compute dtype."""
    return kv_cache.kv_token_bytes(
        num_layers=model.num_layers,
        num_kv_heads=model.num_kv_heads,
        head_dim=model.head_dim,
        dtype_bytes=run.compute_bytes,
    )


def layer_activation_bytes(model: ModelShape, run: RunShape) -> int:
    """Bytes that the backward of one layer keeps for each position.

    Two norms each keep their input and the normalised input in float32: 16·D. With c bytes a computed number, and
    q = heads·head_dim, k = kv_heads·head_dim: attention keeps queries, keys, values and its output, c·(2q + 2k), and
    a float32 log-sum-exp a head; the MLP keeps gate, its activation, up and their product, 4·c·F. The inputs of the
    matrix products: in float32 two, shared by the products that read them, 8·D; under autocast every one of the five
    casts its own, 5·c·D. With adapters all read the two in float32, and frozen norms keep no normalised input.

    A compiled layer's backward computes norms and activation again: it keeps the residual stream that comes in, both
    normalised inputs and what attention adds, (4 + 3·c)·D, and 3·c·F of the MLP. With adapters it is counted as eager,
    which is more.

    Verified tensor by tensor with `torch.autograd.graph.saved_tensors_hooks`.
    """
    c, d = run.compute_bytes, model.hidden_size
    queries, keys = model.num_heads * model.head_dim, model.num_kv_heads * model.head_dim
    attention = c * 2 * (queries + keys) + FLOAT32 * model.num_heads
    if run.compiles_layers and model.adapters is None:
        return (FLOAT32 + 3 * c) * d + attention + 3 * c * model.intermediate_size
    inputs = 5 * c * d if c < FLOAT32 and model.adapters is None else 2 * FLOAT32 * d
    norms = 4 * FLOAT32 * d if model.adapters is None else 2 * FLOAT32 * d
    return norms + inputs + attention + 4 * c * model.intermediate_size


def activation_bytes(model: ModelShape, run: RunShape) -> int:
    """Activations of one micro-batch when the backward begins.

    Every layer's; with checkpointing each layer's input, 4·D, and all of the one that is being recomputed. Behind the
    last layer three float32 copies of the hidden states: the norm's input, what it has normalised (not where it is
    frozen) and the rows that are read.
    """
    layer, d = layer_activation_bytes(model, run), model.hidden_size
    layers = model.num_layers * FLOAT32 * d + layer if run.gradient_checkpointing else model.num_layers * layer
    copies = 3 if model.adapters is None else 2
    return run.microbatch_tokens * (layers + copies * FLOAT32 * d)


def cast_weight_bytes(model: ModelShape, run: RunShape, *, backward: bool) -> int:
    """Weights of the layers in the compute dtype, which autocast makes of the float32 ones; nothing in float32.

    Autocast keeps all it has made until the forward ends, and without checkpointing the graph keeps them until the
    backward has passed. With it, the backward has those of one layer. FSDP2 gathers layers in the compute dtype, which
    leaves autocast nothing to cast. Adapted ones it gathers in float32: their matrices are merged, one at a time and
    again in the backward: W + B·A, B·A and what is multiplied.
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
    """Bytes that FSDP2 gathers at a time: embedding and head all along, the layer at work, and the next one.

    Embedding and head in float32, layers in the compute dtype, or with adapters in float32. Where layers are not
    resharded after the forward, all of them.
    """
    if run.strategy != "fsdp" or run.world_size == 1:
        return 0
    layer = (run.compute_bytes if model.adapters is None else FLOAT32) * model.layer_parameters
    return FLOAT32 * model.root_parameters + layer * (model.num_layers if run.keeps_layers_gathered else 2)


def reduced_bytes(model: ModelShape, run: RunShape) -> int:
    """A layer's gradient on its way to its shards: as the backward leaves it, and in float32 as FSDP2 adds it up."""
    if run.strategy != "fsdp" or run.world_size == 1 or model.adapters is not None:
        return 0
    return (run.compute_bytes + FLOAT32) * model.layer_parameters


def head_logits_bytes(model: ModelShape, run: RunShape) -> int:
    """Logits of one tile and their exponentials, and those that are held until their gradient is taken; float32."""
    tile = TILE_LOGITS if run.is_cuda else TILE_LOGITS_CPU
    return FLOAT32 * (2 * tile + min(held_logits(run), run.microbatch_tokens * model.vocab_size))


def held_logits(run: RunShape) -> int:
    """Logits that the head may hold between making them and taking their gradient."""
    return LOGITS_HELD if run.is_cuda else LOGITS_HELD_CPU * FLOAT32 // run.compute_bytes


def cast_head_bytes(model: ModelShape, run: RunShape) -> int:
    """The head in the compute dtype, made once a micro-batch: c·V·D; nothing in float32."""
    return run.compute_bytes * model.head_parameters if run.compute_bytes < FLOAT32 else 0


def update_allocations(model: ModelShape, run: RunShape) -> tuple[Allocation, ...]:
    """Memory of a mini-batch beside gradients and moments: on a GPU at the highest of three moments, on a CPU in all.

    - The forward is through: activations, and all that autocast has cast. Under FSDP2 the gradient of embedding and
      head that earlier micro-batches have left, whole, here and at the head.
    - The head: activations, what autocast has cast, logits, the cast head, ∂L/∂h, and in float32 ∂L/∂W of the
      head (V·D), which waits for the embedding's where the two are tied. Beside adapters the head is frozen. Under
      FSDP2 the gradient of the layer at work on its way to the shards.
    - The backward ends. The new gradients of embedding and head stand beside those they are added to, under FSDP2
      twice: whole beside whole, and with the last micro-batch as input of the reduction beside their sum. The
      optimizer's step is fused and takes nothing of its own.
    """
    activations = Allocation(name="activations", update=activation_bytes(model, run))
    gathered = Allocation(name="gathered by FSDP2", check=gathered_bytes(model, run), update=gathered_bytes(model, run))
    is_head_trained = model.adapters is None
    root = FLOAT32 * model.root_parameters * is_head_trained
    new_head = is_head_trained * model.head_parameters
    head = head_logits_bytes(model, run) + cast_head_bytes(model, run)
    head += FLOAT32 * (new_head + run.microbatch_tokens * model.hidden_size)
    ending = run.microbatch_tokens * layer_activation_bytes(model, run) + root * (2 if gathered.update else 1)
    reduced = Allocation(name="a layer's gradient on its way", update=reduced_bytes(model, run))
    left = Allocation(name="gradient of embedding and head, whole", update=root * bool(gathered.update))
    if not run.is_cuda:
        cast = cast_weight_bytes(model, run, backward=False)
        return activations, _cast(cast), _head(head), gathered, reduced, _ending(ending)
    forward = activations, _cast(cast_weight_bytes(model, run, backward=False)), gathered, left
    backward = activations, _cast(cast_weight_bytes(model, run, backward=True)), _head(head), gathered, reduced, left
    ends = _ending(ending), gathered
    return max(forward, backward, ends, key=lambda moment: sum(item.update for item in moment))


def _cast(size: int) -> Allocation:
    return Allocation(name="weights cast by autocast", update=size)


def _head(size: int) -> Allocation:
    return Allocation(name="head: some logits, its gradient", update=size)


def _ending(size: int) -> Allocation:
    return Allocation(name="end of backward: new gradients", update=size)


def check_bytes(model: ModelShape, run: RunShape) -> int:
    """One micro-batch without a gradient, as a validation pass runs it to check the engine; beside what is gathered.

    Of a layer at most what its backward would keep, and behind the last one as many copies; all that autocast casts;
    two tiles of logits and the head in the compute dtype.
    """
    d, tile = model.hidden_size, TILE_LOGITS if run.is_cuda else TILE_LOGITS_CPU
    activations = run.microbatch_tokens * (layer_activation_bytes(model, run) + 3 * FLOAT32 * d)
    cast = cast_weight_bytes(model, run, backward=False) + cast_head_bytes(model, run)
    return activations + cast + FLOAT32 * 2 * tile


def engine_workspace_bytes(model: ModelShape, run: RunShape) -> int:
    """One forward of the engine and its sampling."""
    return kv_cache.workspace_bytes(
        hidden_size=model.hidden_size,
        intermediate_size=model.intermediate_size,
        vocab_size=model.vocab_size,
        dtype_bytes=run.compute_bytes,
        num_forward_tokens=run.engine.num_forward_tokens,
        num_sequences=run.engine.num_sequences,
    )


def sync_bytes(model: ModelShape, run: RunShape) -> int:
    """The largest tensor, embedding or head, in the engine's dtype; under FSDP2 once more while it is gathered."""
    return run.compute_bytes * model.head_parameters * (2 if run.strategy == "fsdp" else 1)


def _allocation(name: str, size: int, *, stays: bool, is_first_only: bool = False) -> Allocation:
    later = size * stays
    return Allocation(name=name, generate=size, check=size, update=later, sync=later, is_first_only=is_first_only)

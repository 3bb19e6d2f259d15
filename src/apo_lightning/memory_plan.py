"""How much memory one process of a run will need, from sizes alone: no weights, no device, a second.

Every part is a product of sizes of the model and the run, derived in the docstring of the function that returns it.
What is not is measured, and a constant below says on what. `benchmarks/memory.py` holds the plan against real runs.
"""

from dataclasses import dataclass

import torch
from transformers import AutoModelForCausalLM, PretrainedConfig

from apo_lightning.errors import ConfigError
from apo_lightning.logprobs.head import TILE, TILE_CPU

MIB = 2**20
GIB = 2**30
FLOAT32 = 4
"""Bytes of a master weight, of its gradient and of each of its two Adam moments."""

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
class ModelShape:
    """The sizes of a causal language model that memory depends on. Parameters are counted, not measured."""

    num_parameters: int
    """All, a tied head once."""
    layer_parameters: int
    """Of one decoder layer."""
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int

    @property
    def root_parameters(self) -> int:
        """What is in no layer: embedding, final norm, and the head where it is not tied."""
        return self.num_parameters - self.num_layers * self.layer_parameters

    @property
    def head_parameters(self) -> int:
        """V·D, tied or not."""
        return self.vocab_size * self.hidden_size


def shape_of(config: PretrainedConfig) -> ModelShape:
    """Count a model's parameters on the `meta` device, where they have shapes and no memory.

    Raises:
        ConfigError: the model's layers are not `base_model.layers`, which sharding needs as well.
    """
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    text = config.get_text_config()
    layers = getattr(model.base_model, "layers", None)
    if not layers:
        raise ConfigError(f"a {config.model_type} model keeps its layers where this trainer does not look for them")
    return ModelShape(
        num_parameters=sum(parameter.numel() for parameter in model.parameters()),
        layer_parameters=sum(parameter.numel() for parameter in layers[0].parameters()),
        num_layers=len(layers),
        hidden_size=text.hidden_size,
        intermediate_size=text.intermediate_size,
        num_heads=text.num_attention_heads,
        num_kv_heads=getattr(text, "num_key_value_heads", None) or text.num_attention_heads,
        head_dim=getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads,
        vocab_size=text.vocab_size,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSize:
    """What of an engine's settings takes memory."""

    name: str
    num_sequences: int
    """Decoded at once by one rank."""
    num_forward_tokens: int
    """The most tokens of one forward."""
    kv_cache_bytes: int
    """Reserved at the start; 0: grows with the sequences."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunShape:
    """What a run does with a model, as far as memory depends on it."""

    world_size: int
    strategy: str
    """`single`, `ddp` (everything in every process) or `fsdp` (weights, gradients and optimizer state divided)."""
    is_cuda: bool
    compute_bytes: int
    """Of a number in the dtype of matrix products: 2 or 4. The engine's weights have it too."""
    has_reference: bool
    gradient_checkpointing: bool
    microbatch_tokens: int
    """Positions of one forward of the update: the budget, or all that a mini-batch can have."""
    max_model_len: int
    """The longest prompt and completion [tokens]."""
    engine: EngineSize

    @property
    def num_shards(self) -> int:
        """Processes that divide what FSDP2 divides."""
        return self.world_size if self.strategy == "fsdp" else 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One row of the plan [bytes]: how much of it there is in each phase. 0: given back, or not there yet."""

    name: str
    generate: int = 0
    update: int = 0
    sync: int = 0

    @property
    def is_any(self) -> bool:
        """True where it takes memory in some phase."""
        return self.generate > 0 or self.update > 0 or self.sync > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """Memory of one process: of its GPU where it has one, else of the machine [bytes]."""

    parts: tuple[Part, ...]
    loading: int
    """While weights are read, in the machine's memory in any case."""

    @property
    def generate(self) -> int:
        """While completions are sampled."""
        return sum(part.generate for part in self.parts)

    @property
    def update(self) -> int:
        """At the worst moment of forward, backward and optimizer step."""
        return sum(part.update for part in self.parts)

    @property
    def sync(self) -> int:
        """While weights go to the engine."""
        return sum(part.sync for part in self.parts)

    @property
    def peak(self) -> int:
        """The worst phase of a step."""
        return max(self.generate, self.update, self.sync)


def plan_memory(model: ModelShape, run: RunShape) -> MemoryPlan:
    """The plan of one process, from the second step on, when the optimizer has its moments.

    Upper bounds: a micro-batch as full as allowed, completions as long as allowed.

    On a GPU what is freed can be used for anything, so a phase is as high as its worst moment; and the engine is asleep
    during the update, without weights and cache. On a CPU nothing is given back: vLLM keeps both, and glibc keeps freed
    blocks below 32 MiB, in an arena a thread and in pieces that the next phase does not fit into. A process therefore
    grows to the sum of what its phases need.
    """
    is_kept = not run.is_cuda
    resident = shard_bytes(model, run)
    gradients = resident * (2 if run.strategy == "ddp" else 1)
    engine_weights = run.compute_bytes * model.num_parameters
    workspace = engine_workspace_bytes(model, run)
    parts = (
        _part("libraries" if is_kept else "CUDA context, NCCL", process_bytes(run), stays=True),
        _part("left over from loading", left_from_loading_bytes(model, run), stays=True),
        _part("weights", resident, stays=True),
        _part("optimizer moments", 2 * resident, stays=True),
        _part("reference weights", resident * run.has_reference, stays=True),
        Part(name="gradients", generate=gradients * is_kept, update=gradients, sync=gradients * is_kept),
        Part(name="engine weights", generate=engine_weights, update=engine_weights * is_kept, sync=engine_weights),
        _part("keys and values", kv_cache_bytes(model, run), stays=is_kept),
        _part("engine workspace", workspace, stays=is_kept),
        *update_parts(model, run),
        Part(name="whole tensors on their way", sync=sync_bytes(model, run)),
    )
    return MemoryPlan(parts=tuple(part for part in parts if part.is_any), loading=loading_bytes(model, run))


def shard_bytes(model: ModelShape, run: RunShape) -> int:
    """One float32 copy of the weights, or this process's part of it where FSDP2 divides it: 4·N/shards.

    The gradient is as large, the two moments of Adam twice as large. DDP keeps gradients a second time, in its buckets.
    """
    return FLOAT32 * -(-model.num_parameters // run.num_shards)


def process_bytes(run: RunShape) -> int:
    """Before any tensor: libraries on a CPU, the context on a GPU."""
    if run.is_cuda:
        return CUDA_CONTEXT_BYTES + (NCCL_BYTES if run.world_size > 1 else 0)
    return LIBRARIES_BYTES + (LIBRARIES_VLLM_BYTES if run.engine.name == "vllm" else 0)


def loading_bytes(model: ModelShape, run: RunShape) -> int:
    """Machine memory of the first process while weights are read: they and the reference's copy stand there.

    Under FSDP2 the first rank alone has all weights, and hands them out to the shards of policy and reference.
    """
    copies = (1 + run.has_reference) * shard_bytes(model, run)
    whole = FLOAT32 * model.num_parameters if run.strategy == "fsdp" else 0
    return LIBRARIES_BYTES + whole + copies


def left_from_loading_bytes(model: ModelShape, run: RunShape) -> int:
    """What the first rank has freed of the whole copy that it had loaded to shard, and glibc keeps; on a CPU only."""
    return 0 if run.is_cuda or run.strategy != "fsdp" else FLOAT32 * model.num_parameters


def kv_cache_bytes(model: ModelShape, run: RunShape) -> int:
    """Keys and values of the engine: all that vLLM reserves, else those of as many sequences as run at once."""
    engine = run.engine
    return engine.kv_cache_bytes or engine.num_sequences * run.max_model_len * kv_token_bytes(model, run)


def kv_token_bytes(model: ModelShape, run: RunShape) -> int:
    """Keys and values of one token: 2·layers·kv_heads·head_dim numbers in the compute dtype."""
    return 2 * model.num_layers * model.num_kv_heads * model.head_dim * run.compute_bytes


def layer_activation_bytes(model: ModelShape, run: RunShape) -> int:
    """What the backward of one layer needs of each position [bytes].

    Two norms each keep their input and the normalised input in float32: 16·D. With c bytes a computed number, and
    q = heads·head_dim, k = kv_heads·head_dim: attention keeps queries, keys, values and its output, c·(2q + 2k), and
    a float32 log-sum-exp a head; the MLP keeps gate, its activation, up and their product, 4·c·F. The inputs of the
    matrix products: in float32 two, shared by the products that read them, 8·D; under autocast every one of the five
    casts its own, 5·c·D. Verified tensor by tensor with `torch.autograd.graph.saved_tensors_hooks`.
    """
    c, d = run.compute_bytes, model.hidden_size
    inputs = 2 * FLOAT32 * d if c == FLOAT32 else 5 * c * d
    queries, keys = model.num_heads * model.head_dim, model.num_kv_heads * model.head_dim
    attention = c * 2 * (queries + keys) + FLOAT32 * model.num_heads
    return 4 * FLOAT32 * d + inputs + attention + 4 * c * model.intermediate_size


def activation_bytes(model: ModelShape, run: RunShape) -> int:
    """Activations of one micro-batch when the backward begins.

    Every layer's; with checkpointing each layer's input, 4·D, and all of the one that is being recomputed. Behind the
    last layer three float32 copies of the hidden states: the norm's input, its output and the rows that are read.
    """
    layer, d = layer_activation_bytes(model, run), model.hidden_size
    layers = model.num_layers * FLOAT32 * d + layer if run.gradient_checkpointing else model.num_layers * layer
    return run.microbatch_tokens * (layers + 3 * FLOAT32 * d)


def cast_weight_bytes(model: ModelShape, run: RunShape, *, backward: bool) -> int:
    """Weights of the layers in the compute dtype, which autocast makes of the float32 ones; nothing in float32.

    Autocast keeps all it has made until the forward ends, whole on every rank under FSDP2 too, and without
    checkpointing the graph keeps them until the backward has passed. With it, the backward has those of one layer.
    """
    if run.compute_bytes == FLOAT32:
        return 0
    num_layers = 1 if run.gradient_checkpointing and backward else model.num_layers
    return run.compute_bytes * num_layers * model.layer_parameters


def gathered_bytes(model: ModelShape, run: RunShape) -> int:
    """What FSDP2 has gathered at a time: embedding and head all along, the layer at work, and the next one."""
    if run.strategy != "fsdp" or run.world_size == 1:
        return 0
    return FLOAT32 * (model.root_parameters + 2 * model.layer_parameters)


def head_tile_bytes(run: RunShape) -> int:
    """Logits of one tile, their exponentials and the gradient, float32."""
    rows, columns = TILE if run.is_cuda else TILE_CPU
    return 3 * FLOAT32 * rows * columns


def update_parts(model: ModelShape, run: RunShape) -> tuple[Part, ...]:
    """What a mini-batch takes beside gradients and moments: on a GPU at the highest of three moments, on a CPU in all.

    - The forward is through: activations, and all that autocast has cast.
    - The backward begins: activations, what autocast has cast, a tile of logits, ∂L/∂h, and in float32 ∂L/∂W of the
      head (V·D), which waits for the embedding's where the two are tied.
    - The backward ends, and the optimizer steps. The new gradients of embedding and head stand beside those they are
      added to, under FSDP2 once more as input of the reduction. On a GPU the optimizer works on all parameters at once
      and takes as much again as its shard of them.
    """
    activations = Part(name="activations", update=activation_bytes(model, run))
    gathered = Part(name="gathered by FSDP2", update=gathered_bytes(model, run))
    head = head_tile_bytes(run) + FLOAT32 * (model.head_parameters + run.microbatch_tokens * model.hidden_size)
    copies = 2 if gathered.update else 1
    ending = run.microbatch_tokens * layer_activation_bytes(model, run) + copies * FLOAT32 * model.root_parameters
    if not run.is_cuda:
        cast = cast_weight_bytes(model, run, backward=False)
        return activations, _cast(cast), _head(head), gathered, _ending(ending)
    forward = activations, _cast(cast_weight_bytes(model, run, backward=False)), gathered
    backward = activations, _cast(cast_weight_bytes(model, run, backward=True)), _head(head), gathered
    ends = _ending(ending), gathered
    optimizer = (Part(name="working copies of the optimizer", update=shard_bytes(model, run)),)
    return max(forward, backward, ends, optimizer, key=lambda parts: sum(part.update for part in parts))


def _cast(size: int) -> Part:
    return Part(name="weights cast by autocast", update=size)


def _head(size: int) -> Part:
    return Part(name="head: a tile of logits, its gradient", update=size)


def _ending(size: int) -> Part:
    return Part(name="end of backward: new gradients", update=size)


def engine_workspace_bytes(model: ModelShape, run: RunShape) -> int:
    """One forward of the engine and its sampling.

    A forward has no graph: at its widest it holds the residual twice, the input and output of the MLP's two halves,
    c·(3·D + 3·F) a token. Sampling holds the logits of every sequence in the compute dtype and in float32.
    """
    c, engine = run.compute_bytes, run.engine
    forward = engine.num_forward_tokens * c * 3 * (model.hidden_size + model.intermediate_size)
    return forward + engine.num_sequences * model.vocab_size * (c + 2 * FLOAT32)


def sync_bytes(model: ModelShape, run: RunShape) -> int:
    """The largest tensor, embedding or head, in the engine's dtype; under FSDP2 once more while it is gathered."""
    return run.compute_bytes * model.head_parameters * (2 if run.strategy == "fsdp" else 1)


def _part(name: str, size: int, *, stays: bool) -> Part:
    return Part(name=name, generate=size, update=size * stays, sync=size * stays)

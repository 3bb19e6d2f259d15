"""What lies between the matrix products of a layer: bytes that kernels read and write, one after another or fused."""

from dataclasses import dataclass, replace

from apo_lightning.preflight.memory_shapes import FLOAT32, ModelShape, RunShape


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Bytes that one layer reads and writes for one position, beside its products and its attention."""

    hidden: int
    """For each of the D numbers of the residual stream: norms, additions, casts of what products read."""
    mlp: int
    """For each of the F numbers of the MLP: the activation and its product with the other half."""
    heads: int
    """For each of the numbers of queries and keys: rotation, and casts to what attention reads."""

    def of(self, model: ModelShape) -> int:
        """For the sizes of a model."""
        rotated = (model.num_heads + model.num_kv_heads) * model.head_dim
        return self.hidden * model.hidden_size + self.mlp * model.intermediate_size + self.heads * rotated


EAGER = {
    FLOAT32: (Traffic(hidden=80, mlp=20, heads=40), Traffic(hidden=260, mlp=36, heads=64)),
    2: (Traffic(hidden=106, mlp=10, heads=36), Traffic(hidden=302, mlp=18, heads=58)),
}
"""(forward, backward) of a layer of transformers, by the bytes of a computed number: in float32 and under autocast.

A norm of float32 numbers, to take one, squares them (2 passes), averages (1), divides (2) and multiplies by its weight
(2); an addition has 3: two of each are 20 passes of 4 bytes. Held kernel by kernel against a real layer by
`tests/preflight/test_elementwise.py`."""
COMPILED = {
    False: {
        FLOAT32: (Traffic(hidden=36, mlp=12, heads=20), Traffic(hidden=72, mlp=20, heads=8)),
        2: (Traffic(hidden=40, mlp=6, heads=18), Traffic(hidden=60, mlp=10, heads=12)),
    },
    True: {
        FLOAT32: (Traffic(hidden=36, mlp=12, heads=8), Traffic(hidden=47, mlp=20, heads=12)),
        2: (Traffic(hidden=40, mlp=6, heads=12), Traffic(hidden=42, mlp=10, heads=14)),
    },
}
"""The same with `model.compile_layers`, as torch's compiler counts the kernels that it writes on a CPU and, True, on a
GPU; by `benchmarks/preflight/compiled_traffic.py`, within 1 %. On a GPU the backward's `heads` have the output's
gradient, which flex attention reads in two kernels, the second time."""
NORMS_APART = {FLOAT32: 20, 2: 18}
"""What the backward's `hidden` has more on a GPU in micro-batches of fewer positions than twice D, or than 4,096: the
gradients of a norm's input and of its weight are two kernels there."""
ENGINE_PASSES = {True: (8, 3, 2), False: (20, 5, 2)}
"""(hidden, mlp, heads) of vLLM's forward, in passes over numbers of the engine's dtype; True: on a GPU, where addition
and norm are one kernel, and activation and product another. On a CPU neither is."""
ATTENTION_PASSES = {"forward": 2, "backward": 4}
"""Over queries, keys, values and output: read or written by one kernel; its backward has the gradient of each beside
it."""


def between_bytes(model: ModelShape, run: RunShape, *, forwards: int, backwards: int) -> int:
    """Bytes of one position in all layers of the trainer.

    Args:
        model: sizes of the model.
        run: sizes of the run.
        forwards: how often it goes through the layers.
        backwards: how often a gradient comes back.
    """
    forward, backward = _compiled(model, run) if run.compiles_layers else EAGER[run.compute_bytes]
    kernels = forwards * forward.of(model) + backwards * backward.of(model)
    attention = forwards * ATTENTION_PASSES["forward"] + backwards * ATTENTION_PASSES["backward"]
    return model.num_layers * (kernels + attention * _attended_bytes(model, run))


def _compiled(model: ModelShape, run: RunShape) -> tuple[Traffic, Traffic]:
    """(forward, backward) of what torch's compiler writes for the run's device and micro-batches."""
    forward, backward = COMPILED[run.is_cuda][run.compute_bytes]
    if run.is_cuda and run.microbatch_tokens < max(2 * model.hidden_size, 4096):
        backward = replace(backward, hidden=backward.hidden + NORMS_APART[run.compute_bytes])
    return forward, backward


def engine_between_bytes(model: ModelShape, run: RunShape) -> int:
    """Bytes of one position in a forward of the engine, beside the keys and values of what went before."""
    hidden, mlp, heads = (run.compute_bytes * passes for passes in ENGINE_PASSES[run.is_cuda])
    kernels = Traffic(hidden=hidden, mlp=mlp, heads=heads).of(model)
    return model.num_layers * (kernels + ATTENTION_PASSES["forward"] * _attended_bytes(model, run))


def _attended_bytes(model: ModelShape, run: RunShape) -> int:
    """Queries and keys, or as many of output and values."""
    return run.compute_bytes * (model.num_heads + model.num_kv_heads) * model.head_dim

"""Traffic between the matrix products of a layer: bytes that kernels read and write, eager or compiled."""

from dataclasses import dataclass, replace

from apo_lightning.preflight.memory_shapes import FLOAT32, ModelShape, RunShape


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Bytes that one layer reads and writes per position, without its products and its attention."""

    hidden: int
    """Bytes for each of the D numbers of the residual stream: norms, additions, casts for products."""
    mlp: int
    """Bytes for each of the F numbers of the MLP: the activation and its product with the other half."""
    heads: int
    """Bytes for each number of queries and keys: rotation, and casts for attention."""

    def of(self, model: ModelShape) -> int:
        """Bytes per position and layer of a model."""
        rotated = model.query_width + model.key_width
        return self.hidden * model.hidden_size + self.mlp * model.intermediate_size + self.heads * rotated


EAGER = {
    FLOAT32: (Traffic(hidden=80, mlp=20, heads=40), Traffic(hidden=260, mlp=36, heads=64)),
    2: (Traffic(hidden=106, mlp=10, heads=36), Traffic(hidden=302, mlp=18, heads=58)),
}
"""(forward, backward) of a transformers layer, by the bytes of a computed number: float32, or bfloat16 under autocast.

For example, a norm of float32 numbers squares them (2 passes), averages (1), divides (2) and multiplies by its weight
(2); an addition has 3. Two of each make 20 passes of 4 bytes. A test compares this with a real layer's kernels."""
COMPILED = {
    FLOAT32: (Traffic(hidden=36, mlp=12, heads=8), Traffic(hidden=47, mlp=20, heads=12)),
    2: (Traffic(hidden=40, mlp=6, heads=12), Traffic(hidden=42, mlp=10, heads=14)),
}
"""The same with `model.compile_layers` on a GPU, as torch's compiler counts its kernels;
`benchmarks/preflight/compiled_traffic.py` agrees within 1 %. The backward's `heads` includes a second read of the
output's gradient, which flex attention reads in two kernels."""
NORMS_APART = {FLOAT32: 20, 2: 18}
"""Added to the backward's `hidden` for micro-batches of fewer positions than 2·D or 4,096: the gradients of a
norm's input and of its weight are then two kernels."""
ENGINE_PASSES = (8, 3, 2)
"""(hidden, mlp, heads) of vLLM's forward on a GPU, in passes over numbers of the engine's dtype. Addition and norm are
one kernel, and activation and product another."""
ATTENTION_PASSES = {"forward": 2, "backward": 4}
"""Passes over queries, keys, values and output, in one kernel; the backward also has the gradient of each."""


def between_bytes(model: ModelShape, run: RunShape, *, forwards: int, backwards: int) -> int:
    """Bytes per position in all layers of the trainer, for some forward and backward passes."""
    forward, backward = _compiled(model, run) if run.compiles_layers else EAGER[run.compute_bytes]
    kernels = forwards * forward.of(model) + backwards * backward.of(model)
    attention = forwards * ATTENTION_PASSES["forward"] + backwards * ATTENTION_PASSES["backward"]
    return model.num_layers * (kernels + attention * _attended_bytes(model, run))


def _compiled(model: ModelShape, run: RunShape) -> tuple[Traffic, Traffic]:
    forward, backward = COMPILED[run.compute_bytes]
    if run.microbatch_tokens < max(2 * model.hidden_size, 4096):
        backward = replace(backward, hidden=backward.hidden + NORMS_APART[run.compute_bytes])
    return forward, backward


def engine_between_bytes(model: ModelShape, run: RunShape) -> int:
    """Bytes per position in a forward of the engine, without the cached keys and values."""
    hidden, mlp, heads = (run.compute_bytes * passes for passes in ENGINE_PASSES)
    kernels = Traffic(hidden=hidden, mlp=mlp, heads=heads).of(model)
    return model.num_layers * (kernels + ATTENTION_PASSES["forward"] * _attended_bytes(model, run))


def _attended_bytes(model: ModelShape, run: RunShape) -> int:
    """Bytes of queries and keys, or of output and values, which are as many."""
    return run.compute_bytes * (model.query_width + model.key_width)

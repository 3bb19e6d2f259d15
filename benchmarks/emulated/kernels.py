"""What a GPU would be given, for `make gpu` where there is none: kernels compiled for it, and run by an interpreter.

Bytes are those that a kernel must move, whatever lies in caches. Durations are not to be had in this way.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from benchmarks.emulated import cardless
from benchmarks.gpu.rows import Row, attempt, judged

TILE = (4096, 8192)
PICKS = 9
SHARED_BYTES = cardless.CARD["shared_memory_per_block_optin"]
HEADS, HEAD_SIZES = ((24, 8), (28, 4)), (64, 128)
FEW_HEADS, FEW_SIZE = ((4, 2), (6, 2)), 16
"""Of queries and of keys: as many as an interpreter bears; three queries a key are the case of Llama-3.2-3B."""
LENGTHS = ((100, (73, 7)), (29, (60,)))
LARGEST_ERROR = 1e-5
SLACK = 0.15
"""Bytes for what is moved beside the logits: some numbers a token."""
MOST_BYTES = {
    "weights kept": 8,
    "no weights kept": 4,
    "gradient": 6,
    "gradient, entropy too": 6,
    "divergence": 8,
    "gradient of the divergence": 10,
}
"""A logit: read once in float32, written once, in bfloat16 where it is a gradient."""


def tile_kernels(tokens: int, width: int, dtype: Any) -> Mapping[str, tuple[Callable[..., Any], Sequence[Any]]]:
    """Every kernel of the head's tiles, and arguments for it; gradients come in this dtype."""
    import torch

    from apo_lightning.logprobs import divergence, softmax

    def plain(kernel: Any) -> Callable[..., Any]:
        return kernel.__wrapped__

    torch.manual_seed(0)
    logits, ref_logits, weights = torch.randn(tokens, width), torch.randn(tokens, width), torch.rand(tokens, width)
    largest, total, dot, distance = (
        torch.randn(tokens),
        torch.rand(tokens) + 1,
        torch.randn(tokens),
        torch.randn(tokens),
    )
    picked, places = torch.randn(tokens, PICKS), torch.randint(-width, 2 * width, (tokens, PICKS))
    at_ids = (places % 7).to(dtype)  # equal places have equal gradients
    state, columns = (largest, total, dot, picked), [x.unsqueeze(1) for x in (largest, total, dot, distance)]

    def update(keeps: bool) -> Callable[..., Any]:
        return lambda logits, *state: plain(softmax._update)(logits, *state, keeps)

    def kl_gradient(logits: Any, *state: Any) -> Any:
        return plain(divergence._kl_gradient)(logits, *state, dtype=dtype)

    def gradient(weights: Any, shift: Any, constant: Any, places: Any, at_ids: Any) -> Any:
        return plain(softmax._from_exp_logits)(weights, shift, constant, None, places, at_ids)

    shift, constant, slope = columns[:3]
    return {
        "weights kept": (update(True), (logits, *state, places)),
        "no weights kept": (update(False), (logits, *state, places)),
        "gradient": (gradient, (weights, shift, constant, places, at_ids)),
        "gradient, entropy too": (
            plain(softmax._from_exp_logits),
            (weights, shift, constant, slope, places, at_ids),
        ),
        "divergence": (plain(divergence._update_kl_sum), (weights, logits, largest, largest + 1, distance)),
        "gradient of the divergence": (kl_gradient, (logits, ref_logits, *columns)),
    }


def tile_rows() -> Iterator[Row]:
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    tokens, width = TILE
    for name, (function, args) in tile_kernels(tokens, width, torch.bfloat16).items():
        with FakeTensorMode(allow_non_fake_inputs=True):
            given = [cardless.on_card(arg) for arg in args]
            moved = cardless.bytes_moved(function, *given) / (tokens * width)
            kernels = cardless.kernels_of(function, *given)
        binaries = [cardless.binary_of(kernel) for kernel in kernels]
        largest = max(binaries, key=lambda binary: binary.registers)
        said = f"{moved:.2f}; {len(kernels)} kernel{'s' if len(kernels) > 1 else ''}, {of_a_thread(largest)}"
        yield judged(f"tile, {name}: bytes a logit", moved, said, at_most=MOST_BYTES[name] + SLACK)


def of_a_thread(binary: cardless.Binary) -> str:
    return f"{binary.registers} registers, {binary.spilled_bytes} bytes spilled"


def attention_rows() -> Iterator[Row]:
    """Forward and backward of the largest kernels: whether a block's memory is there at all."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    for heads, kv_heads in HEADS:
        for size in HEAD_SIZES:
            *inputs, mask = make_inputs(heads, kv_heads, size, torch.bfloat16)
            with FakeTensorMode(allow_non_fake_inputs=True):
                args = [*(cardless.on_card(tensor) for tensor in inputs), cardless.on_card(mask), size**-0.5]
                kernels = cardless.kernels_of(attend, *args, dynamic=None)
            large = [cardless.binary_of(kernel) for kernel in kernels if kernel.name.startswith("triton_tem")]
            ways = zip(("forward", "backward"), large, strict=True)
            said = "; ".join(f"{way} {one.shared_bytes / 2**10:.0f}, {of_a_thread(one)}" for way, one in ways)
            largest = max(one.shared_bytes for one in large)
            name = f"attention, {heads} heads of {size}, bfloat16: KiB of a block"
            yield judged(name, largest / 2**10, said, at_most=SHARED_BYTES / 2**10)


def attend(query: Any, key: Any, value: Any, mask: Any, scale: float) -> Any:
    """As the model on a GPU, in one graph."""
    from torch.nn.attention.flex_attention import flex_attention

    from apo_lightning.model import attention

    attention.compiled_flex = lambda: flex_attention
    return attention.attend_registered(None, query, key, value, None, scaling=scale, layout=mask)[0]


def make_inputs(heads: int, kv_heads: int, size: int, dtype: Any) -> list[Any]:
    """Query, key and value of some groups, and their mask."""
    import torch

    from apo_lightning.model.attention import block_mask

    groups = make_groups()
    generator = torch.Generator().manual_seed(0)
    shapes = ((1, n, groups[-1].completions.stop, size) for n in (heads, kv_heads, kv_heads))
    tensors = (torch.randn(shape, generator=generator, dtype=dtype).requires_grad_() for shape in shapes)
    return [*tensors, block_mask(groups, torch.device("cpu"))]


def make_groups() -> tuple[Any, ...]:
    from apo_lightning.model.packing import Group

    groups, start = [], 0
    for prompt, completions in LENGTHS:
        groups.append(Group(start=start, prompt_length=prompt, completion_lengths=completions))
        start = groups[-1].completions.stop
    return tuple(groups)


def compiled_rows(device: str) -> Iterator[Row]:
    cardless.pretend()
    yield from attempt("tiles of the head", tile_rows())
    yield from attempt("attention", attention_rows())


# ---------------------------------------------------------------------- run on the CPU


def interpreted_rows(device: str) -> Iterator[Row]:
    os.environ["TRITON_INTERPRET"] = "1"
    cardless.pretend()
    yield from attempt("tiles of the head, interpreted", interpreted_tile_rows())
    yield from attempt("attention, interpreted", interpreted_attention_rows())


def interpreted_tile_rows() -> Iterator[Row]:
    import torch

    from benchmarks.emulated.interpreted import memory_of_the_cpu, through_kernels
    from benchmarks.performance.head import relative_error

    for name, (function, args) in tile_kernels(40, 200, torch.float32).items():
        with memory_of_the_cpu():
            found = through_kernels(function, args)
        exact = function(*args)
        pairs = zip(found, [exact] if isinstance(exact, torch.Tensor) else exact, strict=True)
        worst = max(relative_error(one.float(), two.float()) for one, two in pairs if two.numel())
        yield judged(f"tile, {name}, interpreted: largest error", worst, f"{worst:.1e}", at_most=LARGEST_ERROR)


def interpreted_attention_rows() -> Iterator[Row]:
    """Output and gradients of the very kernels of a GPU, against those of a CPU."""
    import torch

    from apo_lightning.model.attention import AttentionLayout
    from apo_lightning.model.attention import attend as attend_on_cpu
    from benchmarks.emulated.interpreted import memory_of_the_cpu, through_kernels
    from benchmarks.performance.head import relative_error

    for heads, kv_heads in FEW_HEADS:
        *inputs, mask = make_inputs(heads, kv_heads, FEW_SIZE, torch.float32)
        with memory_of_the_cpu():
            (found,) = through_kernels(attend, [*inputs, mask, FEW_SIZE**-0.5])
            upstream = torch.randn_like(found)
            gradients = torch.autograd.grad(found, inputs, upstream)
        layout = AttentionLayout.of(make_groups(), torch.device("cpu"))
        positions_first = (tensor[0].transpose(0, 1) for tensor in inputs)
        exact = attend_on_cpu(*positions_first, layout, scale=FEW_SIZE**-0.5)[None]
        expected = torch.autograd.grad(exact, inputs, upstream)
        errors = [relative_error(one, two) for one, two in zip((found, *gradients), (exact, *expected), strict=True)]
        name = f"attention, {heads} heads of {FEW_SIZE} and {kv_heads} of keys, interpreted: largest error"
        said = f"{max(errors):.1e} (output {errors[0]:.1e}, gradients {max(errors[1:]):.1e})"
        yield judged(name, max(errors), said, at_most=LARGEST_ERROR)


SECTIONS = {"compiled": compiled_rows, "interpreted": interpreted_rows}

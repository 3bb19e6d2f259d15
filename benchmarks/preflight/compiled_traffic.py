"""What compiled layers read and write between their products, as torch's compiler counts its kernels.

    python -m benchmarks.preflight.compiled_traffic [--device cuda] [--dtype bfloat16]

One layer at several sizes and numbers of positions, solved for the bytes a position of each number of the residual
stream, of the MLP and of the heads: the constants `COMPILED` and `NORMS_APART` of `preflight/elementwise.py`. Nothing
is run: tensors have no numbers, and there is no GPU (`emulated/cardless.py`). Some minutes; needs a C++ compiler and
Triton.
"""

import argparse
import contextlib
import warnings
from collections.abc import Iterator
from typing import Any
from unittest import mock

from benchmarks.emulated import cardless

Sizes = tuple[int, int, int, int, int]
SIZES: dict[str, tuple[Sizes, ...]] = {
    "cpu": ((256, 256, 8, 8, 32), (512, 256, 8, 8, 32), (256, 1024, 8, 8, 32), (256, 256, 16, 16, 32)),
    "cuda": ((2048, 8192, 32, 8, 64), (3072, 8192, 24, 8, 128), (2560, 9728, 32, 8, 128), (3584, 18944, 28, 4, 128)),
}
"""Width, inner width, heads of queries and of keys, and numbers of a head; on a GPU those of Llama-3.2-1B and -3B, of
Qwen3-4B and of Qwen2.5-7B."""
POSITIONS = {"cpu": (64, 128), "cuda": (8192, 16384)}
"""What is done once, such as casts of weights, is in both and falls out."""
FEW_POSITIONS = {"cuda": (1024, 2048)}
"""Less than twice the width, or less than 4,096: a norm's two sums, over its numbers and over positions, are then two
kernels of its backward."""


def between(sizes: Sizes, num_positions: int, dtype: str, device: str, *, with_gradient: bool) -> int:
    """Bytes of all compiled kernels but products and attention."""
    import torch
    from torch._inductor.scheduler import ExternKernelSchedulerNode
    from torch._subclasses.fake_tensor import FakeTensorMode

    width, *_, head_size = sizes
    layout = layout_of(num_positions, device)
    with FakeTensorMode(allow_non_fake_inputs=True), torch.device(device), as_in_a_run(dtype, device, with_gradient):
        layer, options = layer_of(sizes), {"attention_mask": None, "layout": cardless.on_card(layout)}
        hidden = torch.empty(1, num_positions, width, requires_grad=with_gradient)
        tables = torch.empty(2, 1, num_positions, head_size).unbind()
        kernels = cardless.traffic_of(
            lambda hidden, *tables: layer(hidden, position_embeddings=tables, **options), hidden, *tables
        )

    def is_counted_apart(node: Any) -> bool:
        return isinstance(node, ExternKernelSchedulerNode) or node.is_template()

    return sum(num_bytes for node, num_bytes in kernels if not is_counted_apart(node))


def layout_of(num_positions: int, device: str) -> Any:
    """One prompt with one completion, each a half; its tensors are on a CPU."""
    import torch

    from apo_lightning.model.attention import AttentionLayout, block_mask
    from apo_lightning.model.packing import Group

    half = num_positions // 2
    groups = (Group(start=0, prompt_length=half, completion_lengths=(half,)),)
    return (AttentionLayout.of if device == "cpu" else block_mask)(groups, torch.device("cpu"))


def layer_of(sizes: Sizes) -> Any:
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaDecoderLayer

    from apo_lightning.model.attention import SHARED_PROMPTS

    names = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim")
    config = LlamaConfig(**dict(zip(names, sizes, strict=True)))
    config._attn_implementation = SHARED_PROMPTS
    return LlamaDecoderLayer(config, 0)


@contextlib.contextmanager
def as_in_a_run(dtype: str, device: str, with_gradient: bool) -> Iterator[None]:
    """Attention in a graph of its own, as `compile_layers` has it, and products in this dtype."""
    import torch
    import torch.cuda.amp.common
    from torch.nn.attention.flex_attention import flex_attention
    from transformers import AttentionInterface

    from apo_lightning.model import attention

    AttentionInterface.register(attention.SHARED_PROMPTS, torch.compiler.disable(attention.attend_registered))
    flex = torch.compile(flex_attention, backend=cardless.compile_only, dynamic=False)
    with (
        mock.patch.object(attention, "compiled_flex", return_value=flex),
        mock.patch.object(torch.cuda.amp.common, "amp_definitely_not_available", return_value=False),
        torch.autocast(device, getattr(torch, dtype), enabled=dtype != "float32"),
        torch.set_grad_enabled(with_gradient),
    ):
        yield


def beside_attention(sizes: Sizes, dtype: str, device: str, *, with_gradient: bool) -> int:
    """Bytes of a position that no compiled layer moves, or that are counted with attention's.

    Rotation leaves queries and keys in float32, and they are cast between graphs. The backward of flex attention reads
    the output in a kernel of its own, in place of the large one.
    """
    *_, heads, kv_heads, head_size = sizes
    compute_bytes = 4 if dtype == "float32" else 2
    casts = 0 if dtype == "float32" else (1 + with_gradient) * (4 + compute_bytes) * (heads + kv_heads) * head_size
    return casts - (compute_bytes * heads * head_size if with_gradient and device == "cuda" else 0)


def per_position(sizes: Sizes, positions: tuple[int, int], dtype: str, device: str, *, with_gradient: bool) -> float:
    fewer, more = (between(sizes, n, dtype, device, with_gradient=with_gradient) for n in positions)
    compiled = (more - fewer) / (positions[1] - positions[0])
    return compiled + beside_attention(sizes, dtype, device, with_gradient=with_gradient)


def rows_of(dtype: str, device: str) -> Iterator[list[str]]:
    """Forward without a gradient, then what a backward and the forward before it move beyond that."""

    def found(positions: tuple[int, int], *, with_gradient: bool) -> list[float]:
        return [per_position(sizes, positions, dtype, device, with_gradient=with_gradient) for sizes in SIZES[device]]

    forward = found(POSITIONS[device], with_gradient=False)
    yield fit("forward", device, forward)
    backward = [("backward", POSITIONS[device])]
    if device in FEW_POSITIONS:
        backward.append(("backward, few positions", FEW_POSITIONS[device]))
    for name, positions in backward:
        both = found(positions, with_gradient=True)
        yield fit(name, device, [more - less for more, less in zip(both, forward, strict=True)])


def fit(name: str, device: str, found: list[float]) -> list[str]:
    """By least squares, over the sizes."""
    import torch

    rotated = [[width, inner, (heads + kv_heads) * size] for width, inner, heads, kv_heads, size in SIZES[device]]
    numbers, bytes_moved = (torch.tensor(values, dtype=torch.float64) for values in (rotated, found))
    coefficients = torch.linalg.lstsq(numbers, bytes_moved[:, None]).solution[:, 0]
    error = float((numbers @ coefficients / bytes_moved - 1).abs().max())
    return [name, *(f"{c:.1f}" for c in coefficients.tolist()), f"{error:.1%}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=list(SIZES), default="cpu", help="cuda: a GPU, and none is needed")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32", help="bfloat16: autocast")
    args = parser.parse_args()
    cardless.pretend()
    from benchmarks.shared.timing import print_header, print_table

    warnings.filterwarnings("ignore", "dynamo_pgo")
    print_header(f"Bytes a position between the products of a compiled layer, {args.device}, {args.dtype}")
    rows = list(rows_of(args.dtype, args.device))
    print_table(["", "hidden", "mlp", "heads", "largest error of the fit"], rows)


if __name__ == "__main__":
    main()

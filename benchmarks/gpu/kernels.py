"""Flex attention and the tiles of the head: against the CPU in float32, and how often they are compiled.

Without a GPU attention takes the path of a GPU all the same, uncompiled, and the tiles are compiled for the CPU.
"""

import contextlib
import importlib
import random
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from apo_lightning.logprobs import head, softmax
from apo_lightning.model import attention
from apo_lightning.model.attention import SHARED_PROMPTS, attention_arguments, block_mask
from apo_lightning.model.packing import Group
from benchmarks.gpu.rows import Row, attempt, judged
from benchmarks.performance.head import Case, Inputs, make_inputs, ours, relative_error, run

CPU = torch.device("cpu")
HEADS = ((24, 8), (28, 4))
"""Of queries and of keys: Llama-3.2-3B's and Qwen2.5-7B's."""
HEAD_SIZES = (128, 64)
LENGTHS = {"cuda": ((300, (513, 0, 77, 256)), (129, (700,))), "cpu": ((20, (33, 0, 7)), (9, (40,)))}
"""Of prompts and of their completions."""
LARGEST_ERROR = {torch.float32: 1e-4, torch.bfloat16: 3e-2}
"""Of outputs and gradients, relative to the largest: sums in another order; three roundings to eight bits."""
NUM_LAYOUTS = 12
LONGEST = {"cuda": 600, "cpu": 60}
MOST_GRAPHS = 12
HEAD_CASE = {"cuda": Case(2048, 1024, 32768, 8), "cpu": Case(64, 48, 4096, 4)}
TOKENS = {"cuda": (16, 1000, 4096, 8200, 5000), "cpu": (16, 48, 200, 520, 328)}


def dtypes(device: torch.device) -> list[torch.dtype]:
    """Of the kernels on a GPU bfloat16 first, in which runs compute; the paths of a CPU are checked in float32."""
    return [torch.bfloat16, torch.float32] if device.type == "cuda" else [torch.float32]


def refuse_eager() -> None:
    """Forget what was compiled, and fail where torch would give up compiling: attention would then hold all scores."""
    torch._dynamo.reset()
    torch._dynamo.config.fail_on_recompile_limit_hit = True


# ---------------------------------------------------------------------- attention


@dataclass(frozen=True)
class Attended:
    """Inputs of one layer's attention as transformers hands them over, and the gradient that arrives."""

    groups: tuple[Group, ...]
    query: Tensor
    key: Tensor
    value: Tensor
    upstream: Tensor

    def run(self, device: torch.device, dtype: torch.dtype, arguments: dict[str, Any]) -> list[Tensor]:
        """Output, and the gradients of query, key and value."""
        inputs = [t.detach().to(device, dtype).requires_grad_() for t in (self.query, self.key, self.value)]
        mask, scaling = arguments.pop("attention_mask"), self.query.shape[-1] ** -0.5
        attend = ALL_ATTENTION_FUNCTIONS[SHARED_PROMPTS]
        output, _ = attend(nn.Identity().train(), *inputs, mask, scaling=scaling, **arguments)
        return [output.detach(), *torch.autograd.grad(output, inputs, self.upstream.to(device, dtype))]


def make_attended(lengths: Sequence[tuple[int, Sequence[int]]], heads: tuple[int, int], size: int) -> Attended:
    groups, start = [], 0
    for prompt, completions in lengths:
        groups.append(Group(start=start, prompt_length=prompt, completion_lengths=tuple(completions)))
        start += prompt + sum(completions)
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(1, n, start, size, generator=generator) for n in (heads[0], heads[1], heads[1]))
    return Attended(tuple(groups), query, key, value, torch.randn(1, start, heads[0], size, generator=generator))


def through_flex(attended: Attended, device: torch.device, dtype: torch.dtype) -> list[Tensor]:
    """As the model on a GPU; on a CPU by the same functions without their compiler."""
    if device.type == "cuda":
        return attended.run(device, dtype, attention_arguments(attended.groups, device))
    arguments = attention_arguments(attended.groups, device) | {"layout": block_mask(attended.groups, device)}
    with uncompiled_flex():
        return attended.run(device, dtype, arguments)


@contextlib.contextmanager
def uncompiled_flex() -> Iterator[None]:
    """Flex attention as it is written, backward included, which torch has for a CPU too and does not let through."""
    inside = importlib.import_module("torch.nn.attention.flex_attention")
    with (
        mock.patch.object(inside, "_validate_device"),
        mock.patch.object(attention, "compiled_flex", return_value=inside.flex_attention),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        yield


def attention_rows(kind: str) -> Iterator[Row]:
    device = torch.device(kind)
    for dtype in dtypes(device):
        for size in HEAD_SIZES:
            for heads in HEADS:
                attended = make_attended(LENGTHS[kind], heads, size)
                exact = attended.run(CPU, torch.float32, attention_arguments(attended.groups, CPU))
                refuse_eager()
                name = f"attention, {heads[0]} heads of {size}, {str(dtype).removeprefix('torch.')}"
                yield from attempt(name, attention_row(name, attended, exact, device, dtype))


def attention_row(
    name: str, attended: Attended, exact: Sequence[Tensor], device: torch.device, dtype: torch.dtype
) -> Iterator[Row]:
    found = through_flex(attended, device, dtype)
    output, *gradients = (relative_error(one.cpu(), two) for one, two in zip(found, exact, strict=True))
    worst = max(output, *gradients)
    said = f"{worst:.1e} (output {output:.1e}, gradients {max(gradients):.1e})"
    yield judged(f"{name}: largest error", worst, said, at_most=LARGEST_ERROR[dtype], output=output)


# ---------------------------------------------------------------------- compiled graphs


def graphs_so_far() -> int:
    return counters["stats"]["unique_graphs"]


def graph_rows(kind: str) -> Iterator[Row]:
    """Lengths change with every micro-batch, and each new graph costs seconds in the middle of a step."""
    refuse_eager()
    device, dtype = torch.device(kind), dtypes(torch.device(kind))[0]
    draw = random.Random(0)
    counts = [graphs_so_far()]
    for _ in range(NUM_LAYOUTS):
        completions = [draw.randrange(LONGEST[kind]) for _ in range(draw.randint(1, 6))]
        lengths = ((draw.randint(1, LONGEST[kind]), completions), (draw.randint(1, LONGEST[kind]), [7]))
        through_flex(make_attended(lengths, HEADS[0], HEAD_SIZES[0]), device, dtype)
        counts.append(graphs_so_far())
    yield graph_row(f"attention: graphs over {NUM_LAYOUTS} layouts", counts)


def graph_row(check: str, counts: Sequence[int]) -> Row:
    """How many were compiled; the later half of the lengths must bring none."""
    total, late = counts[-1] - counts[0], counts[-1] - counts[len(counts) // 2]
    row = judged(check, total, f"{total}, of which {late} in the later half", at_most=MOST_GRAPHS, counts=list(counts))
    return row if late == 0 else replace(row, verdict="MISSED", target=f"{row.target}, none in the later half")


# ---------------------------------------------------------------------- tiles of the head


@contextlib.contextmanager
def compiled_tiles(device: torch.device) -> Iterator[None]:
    """The element-wise kernels as on a GPU, where they are so by themselves: compiled, from memory to memory."""
    with contextlib.ExitStack() as stack:
        if device.type != "cuda":
            stack.enter_context(mock.patch.object(head, "overwrites_tiles", return_value=False))
            for name, kernel in vars(softmax).copy().items():
                if hasattr(kernel, "__wrapped__"):
                    compiled = torch.compile(kernel.__wrapped__, dynamic=True)
                    stack.enter_context(mock.patch.object(softmax, name, compiled))
        yield


def on(inputs: Inputs, device: torch.device, dtype: torch.dtype) -> Inputs:
    """The same inputs elsewhere, float ones in this dtype."""
    moved = {name: value.detach().to(device) for name, value in vars(inputs).items()}
    moved |= {name: moved[name].to(dtype).requires_grad_() for name in ("hidden", "weight")}
    return Inputs(**moved)


def head_rows(kind: str) -> Iterator[Row]:
    device = torch.device(kind)
    for dtype in dtypes(device):
        name = f"head tiles, {str(dtype).removeprefix('torch.')}"
        yield from attempt(name, head_row(name, kind, dtype))
    yield from attempt("head tiles: graphs", head_graph_row(kind))


def head_row(name: str, kind: str, dtype: torch.dtype) -> Iterator[Row]:
    """The gradients of one loss: the device's kernels, and the CPU's own on the same numbers."""
    device, case = torch.device(kind), HEAD_CASE[kind]
    rounded = on(make_inputs(case), CPU, dtype)
    exact, _ = run(ours, on(rounded, CPU, torch.float32))
    with compiled_tiles(device):
        found, _ = run(ours, on(rounded, device, dtype))
    worst = max(relative_error(one.cpu(), two) for one, two in zip(found, exact, strict=True))
    yield judged(f"{name}: largest error of a gradient", worst, f"{worst:.1e}", at_most=LARGEST_ERROR[dtype])


def head_graph_row(kind: str) -> Iterator[Row]:
    refuse_eager()
    device, counts = torch.device(kind), [graphs_so_far()]
    with compiled_tiles(device):
        for tokens in TOKENS[kind]:
            run(ours, on(make_inputs(replace(HEAD_CASE[kind], tokens=tokens)), device, dtypes(device)[0]))
            counts.append(graphs_so_far())
    yield graph_row(f"head tiles: graphs over {len(TOKENS[kind])} lengths", counts)


SECTIONS = {"attention": attention_rows, "graphs": graph_rows, "head tiles": head_rows}

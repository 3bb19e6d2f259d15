"""Kernels for a GPU, run on a CPU as they are written: each operation of their blocks by Triton's interpreter.

Behind `cardless.pretend()`, with TRITON_INTERPRET=1. Slow: seconds for some hundred positions.
"""

import contextlib
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch._inductor.async_compile import AsyncCompile
from torch._inductor.compile_fx import compile_fx
from torch._subclasses.fake_tensor import FakeTensorMode

from benchmarks.emulated.cardless import imported, on_card

LARGEST_BLOCK = {"XBLOCK": 64, "YBLOCK": 16, "R0_BLOCK": 1024}


class _Heuristics:
    """Stands for torch's: what a kernel is decorated with, its own description, and the kernel as it is."""

    def __getattr__(self, kind: str) -> Callable[..., Any]:
        return lambda **described: lambda kernel: (kernel, described)


class _Libdevice:
    """NVIDIA's functions by those of Triton, which the interpreter knows."""

    def __getattr__(self, name: str) -> Any:
        return getattr(tl.math, name)


class Interpreted:
    """A kernel as the generated code launches it."""

    def __init__(self, name: str, source: str) -> None:
        kept = [line for line in source.splitlines() if "triton_helpers import libdevice" not in line]
        source = "\n".join(kept).replace(", triton_heuristics", "").replace("triton_helpers.set_driver_to_gpu()", "")
        there = {"triton_heuristics": _Heuristics(), "libdevice": _Libdevice(), "tl_math": tl.math}
        self._kernel, described = vars(imported(name, source, **there))[name]
        self._launch, self._signature = described["inductor_meta"], described["triton_meta"]["signature"]

    def run(self, *args: Any, stream: Any = None) -> None:
        if self._launch["grid_type"] == "FixedGrid":
            names = self._launch["extra_launcher_args"]
            args, sizes = args[: -len(names)], dict(zip(names, args[-len(names) :], strict=True))
            self._kernel[tuple(sizes[name] for name in self._launch["fixed_grid"])](*args)
            return
        named = [name for name, kind in self._signature.items() if kind != "constexpr"]
        values = dict(zip(named, args, strict=True))
        blocks = {
            name: min(LARGEST_BLOCK[name], triton.next_power_of_2(int(values[_length_of(name)])))
            for name, kind in self._signature.items()
            if kind == "constexpr" and name in LARGEST_BLOCK and _length_of(name) in values
        }
        axes = [axis for axis in ("XBLOCK", "YBLOCK") if axis in blocks]
        self._kernel[tuple(triton.cdiv(int(values[_length_of(axis)]), blocks[axis]) for axis in axes)](*args, **blocks)


def _length_of(block: str) -> str:
    return {"XBLOCK": "xnumel", "YBLOCK": "ynumel", "R0_BLOCK": "r0_numel"}[block]


@contextlib.contextmanager
def memory_of_the_cpu() -> Iterator[None]:
    """Where the generated code takes memory on the card it takes some here."""
    with (
        mock.patch.object(torch._C._dynamo.guards, "_empty_strided_cuda", _empty),
        mock.patch.object(torch.cuda, "_DeviceGuard", return_value=contextlib.nullcontext()),
        mock.patch.object(torch.cuda, "set_device"),
    ):
        yield


def _empty(shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype) -> Tensor:
    return torch.empty_strided(shape, strides, dtype=dtype)


def through_kernels(function: Callable[..., Any], args: Sequence[Any]) -> Sequence[Tensor]:
    """The function of tensors on the CPU by its kernels for a GPU, its gradient too. In `memory_of_the_cpu`."""
    compiled: list[tuple[Callable[..., Any], list[str]]] = []

    def compile_and_keep(graph: Any, inputs: Any) -> Callable[..., Any]:
        names = [node.meta["grapharg"].source.name for node in graph.graph.find_nodes(op="placeholder")]
        compiled.append((compile_fx(graph, inputs), names))
        return graph.forward

    torch.compiler.reset()
    AsyncCompile.triton = lambda self, name, source, device_str="cuda": Interpreted(name, source)
    with FakeTensorMode():
        torch.compile(function, backend=compile_and_keep, dynamic=False)(*(on_card(arg) for arg in args))
    ((run, names),) = compiled
    local = inspect.signature(function).bind(*args).arguments
    return run(*[eval(name, {"L": local}) for name in names])  # such as L['mask'].kv_indices

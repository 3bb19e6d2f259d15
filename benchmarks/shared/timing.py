"""The measuring method of all benchmarks: seconds, peak memory, and counts that noise cannot touch."""

import gc
import importlib.metadata
import os
import platform
import re
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

LARGEST_SPREAD = 1.3
"""A median above this multiple of the minimum says more about the machine than about the code."""
WITHHELD = "verdict withheld"

Action = Callable[[], Sequence[Tensor]]
"""Does the work once and returns what is meant to stay: the gradients. Every call starts from none."""


@dataclass(frozen=True)
class Timing:
    """Seconds of one variant, one value a round."""

    seconds: tuple[float, ...]

    @property
    def minimum(self) -> float:
        return min(self.seconds)

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def is_steady(self) -> bool:
        return self.median <= LARGEST_SPREAD * self.minimum

    def cells(self) -> list[str]:
        """Minimum and median, for a table."""
        return [f"{self.minimum:.3f}", f"{self.median:.3f}" + ("" if self.is_steady else " (unsteady)")]


def ratio(ours: Timing, theirs: Timing) -> str:
    """Minimum over minimum, unless one of the two is too noisy to judge."""
    return f"{ours.minimum / theirs.minimum:.2f}" if ours.is_steady and theirs.is_steady else WITHHELD


def verdict(value: float, bar: float, *, steady: bool = True) -> str:
    """Whether a measured value stays at or below its bar."""
    if not steady:
        return WITHHELD
    return f"{'holds' if value <= bar else 'MISSED'} (bar {bar:g})"


def pin_threads(num_threads: int) -> None:
    """In this process and in those that it starts."""
    os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = str(num_threads)
    torch.set_num_threads(num_threads)


def interleave(actions: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, Timing]:
    """Every action once to warm up, then A, B, C, A, B, C, …: a slow spell of the machine meets all of them."""
    seconds: dict[str, list[float]] = {name: [] for name in actions}
    for action in actions.values():
        action()
    for _ in range(rounds):
        for name, action in actions.items():
            gc.collect()
            start = time.perf_counter()
            action()
            seconds[name].append(time.perf_counter() - start)
    return {name: Timing(tuple(values)) for name, values in seconds.items()}


def synchronize(device: torch.device) -> None:
    """Wait for what was queued on a GPU; elsewhere everything is done when its call returns."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def waited_for(action: Callable[[], object], device: torch.device) -> Callable[[], None]:
    """The action with the wait for its end: a call to a GPU returns before anything is done."""

    def waited() -> None:
        action()
        synchronize(device)

    return waited


def extra_peak_bytes(build: Callable[..., Action], *arguments: Any) -> int:
    """Resident memory at its highest during the action, beyond what was there before and what it leaves behind.

    Args:
        build: a function of a module, called in a fresh process; what it allocates is not counted. It should run
            the action once at a tiny size, or libraries that load on first use are.
        arguments: its own; they must pickle.
    """
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as fresh:
        return fresh.submit(_extra_peak_bytes, torch.get_num_threads(), build, arguments).result()


def _extra_peak_bytes(num_threads: int, build: Callable[..., Action], arguments: tuple[Any, ...]) -> int:
    torch.set_num_threads(num_threads)
    action = build(*arguments)
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts again from the present size
    before = resident_bytes("VmRSS")
    left_behind = action()
    return resident_bytes("VmHWM") - before - sum(tensor.nbytes for tensor in left_behind)


def resident_bytes(field: str) -> int:
    """`VmRSS` (now) or `VmHWM` (the highest so far) of this process."""
    status = Path("/proc/self/status").read_text()
    found = re.search(rf"^{field}:\s+(\d+) kB", status, re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024


@dataclass(frozen=True)
class Counts:
    """What one run of an action costs on any machine."""

    flops: int
    """Of matrix products and attention; causal attention counts in full."""
    largest_tensor: int
    """Elements of the largest storage allocated, forward or backward, but for those shaped like a parameter."""


def count(action: Callable[[], object], parameters: Sequence[Tensor]) -> Counts:
    """Count one run of the action.

    Args:
        action: runs forward and backward.
        parameters: their gradients, and copies of them in another dtype, are not counted as tensors.
    """
    largest = _LargestStorage({parameter.shape for parameter in parameters})
    with FlopCounterMode(display=False, custom_mapping=_UNCOUNTED_BY_TORCH) as flops, largest:
        action()
    return Counts(flops=flops.get_total_flops(), largest_tensor=largest.elements)


class _LargestStorage(TorchDispatchMode):
    """Sees every operator of this thread; on a CPU the backward, too, runs in the thread that asked for it."""

    def __init__(self, ignored_shapes: set[torch.Size]) -> None:
        super().__init__()
        self.elements = 0
        self._ignored_shapes = ignored_shapes | {shape[::-1] for shape in ignored_shapes}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        given = {_storage(tensor) for tensor in tree_leaves((args, kwargs)) if isinstance(tensor, Tensor)}
        for tensor in tree_leaves(result):
            if (
                isinstance(tensor, Tensor)
                and _storage(tensor) not in given
                and tensor.shape not in self._ignored_shapes
            ):
                self.elements = max(self.elements, tensor.untyped_storage().nbytes() // tensor.element_size())
        return result


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _addmm_flops(total: Sequence[int], left: Sequence[int], right: Sequence[int], **_: Any) -> int:
    return 2 * left[0] * left[1] * right[1]


def _attention_flops(query: Sequence[int], key: Sequence[int], *_: Any, **__: Any) -> int:
    batch, heads, queries, width = query
    return 4 * batch * heads * queries * key[2] * width


def _attention_backward_flops(grad: Sequence[int], query: Sequence[int], key: Sequence[int], *_: Any, **__: Any) -> int:
    """Five products against two: the scores again, and the gradients of value, weights, query and key."""
    return _attention_flops(query, key) * 5 // 2


_UNCOUNTED_BY_TORCH = {
    torch.ops.aten.addmm_: _addmm_flops,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention_flops,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward_flops,
}


@contextmanager
def counted_positions(embeddings: nn.Module) -> Iterator[list[int]]:
    """Positions through the backbone, one number a forward: whatever enters it is embedded once."""
    positions: list[int] = []
    handle = embeddings.register_forward_pre_hook(lambda _, inputs: positions.append(inputs[0].numel()))
    try:
        yield positions
    finally:
        handle.remove()


def has_peer(package: str) -> bool:
    """False where it is not installed: said on a line of its own, and the table goes on without it."""
    try:
        importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        print(f"{package} is not installed, so its rows are left out: pip install '.[benchmarks]'\n")
        return False
    return True


def exponent(sizes: Sequence[float], costs: Sequence[float]) -> float:
    """The slope of log cost over log size: 1 where cost grows in proportion, 0 where it does not grow."""
    logarithms = [torch.tensor(values, dtype=torch.float64).log().tolist() for values in (sizes, costs)]
    return statistics.linear_regression(*logarithms).slope


def print_header(title: str, *packages: str) -> None:
    """What a reader must know to compare: date, processor, threads, and the versions of these packages."""
    cpuinfo = Path("/proc/cpuinfo")
    found = re.search(r"^model name\s*:\s*(.+)$", cpuinfo.read_text() if cpuinfo.exists() else "", re.MULTILINE)
    versions = [f"{name} {importlib.metadata.version(name)}" for name in ("torch", *packages)]
    print(f"## {title}\n")
    print(
        f"{time.strftime('%Y-%m-%d')}, {found[1] if found else platform.machine()}, "
        f"{torch.get_num_threads()} thread(s), {', '.join(versions)}\n"
    )


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """As Markdown; the first column is text, the others are figures."""
    print(f"| {' | '.join(columns)} |\n|:--|{'--:|' * (len(columns) - 1)}")
    for row in rows:
        print(f"| {' | '.join(row)} |")
    print(flush=True)


def megabytes(num_bytes: float) -> str:
    return f"{num_bytes / 1e6:,.0f}"

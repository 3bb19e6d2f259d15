"""How fast a device is at the few things that a step is made of, from a table or measured on the spot."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn.functional import scaled_dot_product_attention

from apo_lightning.errors import ConfigError

PRODUCT_SIZES = {"cpu": (1024, 1024, 1536), "cuda": (8192, 3584, 18944)}
"""Rows, inner size and columns of the product that is timed: a micro-batch by a matrix of an MLP."""
COPY_BYTES = {"cpu": 2**27, "cuda": 2**31}
"""Larger than any cache, so that it is the memory that is timed."""
REPEATS = 9
LEAST_SECONDS = 1.0
"""Of one rate: a shared processor is faster for a moment than it stays."""
ENGINE_STEP_SECONDS = 0.02
GRAPH_STEP_SECONDS = 0.004
"""One decoding forward of vLLM beside products and memory, kernel by kernel and as a graph. Supposed: an engine that is
not started cannot be timed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """What one device reaches on large pieces of work.

    Attributes:
        name: of the device.
        matmul_flops_per_second: products with matrices of weights in the compute dtype.
        attention_flops_per_second: forward of causal attention: the products of queries with keys, and of scores with
            values, where neither is masked; all else that it does shows in their rate.
        memory_bytes_per_second: bytes read and written.
        gather_bytes_per_second: bytes that arrive at, or leave, one rank in a collective.
        engine_step_seconds: one decoding forward of the engine, beside products and memory: launches, scheduler.
        graph_step_seconds: the same where the forward is a CUDA graph.
        alloc_bandwidth: bytes of memory that the system gives, when they are first written to; on a GPU torch
            keeps what it has been given once.
        repack_bandwidth: bytes read and written where a matrix is laid out anew, as oneDNN does on a CPU for its
            products.

    Raises:
        ConfigError: a rate that is not positive.
    """

    name: str
    matmul_flops_per_second: float | int
    attention_flops_per_second: float | int
    memory_bytes_per_second: float | int
    gather_bytes_per_second: float | int
    engine_step_seconds: float | int
    graph_step_seconds: float | int
    alloc_bandwidth: float | int = float("inf")
    repack_bandwidth: float | int = float("inf")

    def __post_init__(self) -> None:
        for name in (
            "matmul_flops_per_second",
            "attention_flops_per_second",
            "memory_bytes_per_second",
            "gather_bytes_per_second",
            "alloc_bandwidth",
            "repack_bandwidth",
        ):
            if not getattr(self, name) > 0:
                raise ConfigError(f"rates.{name} is {getattr(self, name)}: give a positive rate")
        for name in ("engine_step_seconds", "graph_step_seconds"):
            if not getattr(self, name) >= 0:
                raise ConfigError(f"rates.{name} is {getattr(self, name)}: give seconds, at least 0")

    def describe(self) -> str:
        """Three lines; in brackets a forward that is a CUDA graph.

        Example:
            >>> print(Rates(name="a card", matmul_flops_per_second=2.4e14, attention_flops_per_second=1.2e14,
            ...     memory_bytes_per_second=1.4e12, gather_bytes_per_second=1e11, engine_step_seconds=0.02,
            ...     graph_step_seconds=0.004).describe())
            rates (rates=…): a card
            products 240,000 GFLOP/s, attention 120,000 GFLOP/s, memory 1,400 GB/s, collectives 100 GB/s,
            a forward of the engine 20 ms (4 ms)
        """
        on_cpus = {"new memory": self.alloc_bandwidth, "packing": self.repack_bandwidth}
        finite = "".join(f"{name} {rate / 1e9:,.1f} GB/s, " for name, rate in on_cpus.items() if rate < float("inf"))
        return (
            f"rates (rates=…): {self.name}\nproducts {self.matmul_flops_per_second / 1e9:,.0f} GFLOP/s, "
            f"attention {self.attention_flops_per_second / 1e9:,.0f} GFLOP/s, "
            f"memory {self.memory_bytes_per_second / 1e9:,.0f} GB/s, {finite}"
            f"collectives {self.gather_bytes_per_second / 1e9:,.0f} GB/s,\n"
            f"a forward of the engine {self.engine_step_seconds * 1e3:.0f} ms ({self.graph_step_seconds * 1e3:.0f} ms)"
        )


def measured_rates(device: torch.device, dtype: torch.dtype, *, attended: tuple[int, int, int]) -> Rates:
    """Time one product, one attention, one copy, and on a CPU new memory and packing, on a device that is there.

    It takes some seconds.

    Collectives cannot be timed by one process. Between processes of one CPU they are copies; a GPU's are taken as a
    tenth of its memory rate, which is about what NVLink has.

    Args:
        device: in whose memory the numbers lie.
        dtype: of the products.
        attended: heads, tokens of a sequence, and size of a head: short sequences are far from what long ones reach.
    """
    memory = copy_rate(device)
    is_gpu = device.type == "cuda"
    name = torch.cuda.get_device_name(device) if is_gpu else f"this CPU with {torch.get_num_threads()} thread(s)"
    return Rates(
        name=f"{name}, {str(dtype).removeprefix('torch.')}, measured now",
        matmul_flops_per_second=product_rate(PRODUCT_SIZES[device.type], dtype, device),
        attention_flops_per_second=attention_rate(attended, dtype, device),
        memory_bytes_per_second=memory,
        gather_bytes_per_second=memory / (10 if is_gpu else 2),
        engine_step_seconds=ENGINE_STEP_SECONDS,
        graph_step_seconds=GRAPH_STEP_SECONDS,
        alloc_bandwidth=float("inf") if is_gpu else alloc_rate(),
        repack_bandwidth=float("inf") if is_gpu else repack_rate(dtype),
    )


def product_rate(sizes: tuple[int, int, int], dtype: torch.dtype, device: torch.device) -> float:
    """FLOP/s of one product, in float32 without TensorFloat-32 unless torch is set otherwise.

    Args:
        sizes: rows, inner size and columns.
        dtype: of factors and product.
        device: in whose memory they lie.
    """
    rows, inner, columns = sizes
    left, right = (torch.randn(shape, device=device).to(dtype) for shape in ((rows, inner), (columns, inner)))
    product = torch.empty(rows, columns, device=device, dtype=dtype)
    return 2 * rows * inner * columns / seconds_of(lambda: torch.mm(left, right.T, out=product), device)


def attention_rate(sizes: tuple[int, int, int], dtype: torch.dtype, device: torch.device) -> float:
    """FLOP/s of causal attention over as many sequences as make a micro-batch: 4 a number of a head and pair.

    Args:
        sizes: heads, tokens of a sequence, size of a head.
        dtype: of queries, keys and values; on a CPU they are multiplied in float32 at least, as the policy does.
        device: in whose memory they lie.
    """
    num_heads, length, head_dim = sizes
    if device.type == "cpu":
        dtype = torch.promote_types(dtype, torch.float32)
    shape = (max(1, PRODUCT_SIZES[device.type][0] // length), num_heads, length, head_dim)
    query, key, value = (torch.randn(shape, device=device).to(dtype) for _ in range(3))
    flops = 4 * head_dim * shape[0] * num_heads * length * (length + 1) // 2
    return flops / seconds_of(lambda: scaled_dot_product_attention(query, key, value, is_causal=True), device)


def copy_rate(device: torch.device) -> float:
    """Bytes/s of a copy in a device's memory, each byte read once and written once."""
    source = torch.zeros(COPY_BYTES[device.type] // 4, device=device)
    target = torch.zeros_like(source)
    return 2 * source.nbytes / seconds_of(lambda: target.copy_(source), device)


def alloc_rate() -> float:
    """Bytes/s of the machine's memory that are written to for the first time: the system clears each page first."""
    num_bytes = COPY_BYTES["cpu"]
    return num_bytes / seconds_of(lambda: torch.empty(num_bytes // 4).fill_(1.0), torch.device("cpu"))


def repack_rate(dtype: torch.dtype) -> float:
    """Bytes/s of a matrix that is laid out anew, each number read once and written once: of its transposition."""
    _, inner, columns = PRODUCT_SIZES["cpu"]
    matrix = torch.randn(columns, inner).to(dtype)
    target = torch.empty(inner, columns, dtype=dtype)
    return 2 * matrix.nbytes / seconds_of(lambda: target.copy_(matrix.T), torch.device("cpu"))


def seconds_of(action: Callable[[], object], device: torch.device) -> float:
    """The median of some repeats, after one that warms up: what a long run meets, beside whatever else runs there."""
    seconds = []
    while len(seconds) <= REPEATS or sum(seconds) < LEAST_SECONDS:
        _wait(device)
        start = time.perf_counter()
        action()
        _wait(device)
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[1:])


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)

"""How fast a device does the few kinds of work that a step consists of: given in `configs/rates`, or measured."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn.functional import scaled_dot_product_attention

from apo_lightning.errors import ConfigError

PRODUCT_SIZES = {"cpu": (1024, 1024, 1536), "cuda": (8192, 3584, 18944)}
"""Rows, inner size and columns of the timed product: a micro-batch by a matrix of an MLP."""
COPY_BYTES = {"cpu": 2**27, "cuda": 2**31}
"""Larger than any cache, so that the copy measures memory."""
REPEATS = 9
MIN_SECONDS = 1.0
"""Duration of one measurement [s]: a shared processor is briefly faster than it is on average."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """The rates that one device reaches on large pieces of work.

    Attributes:
        name: of the device.
        matmul_flops_per_second: products with weight matrices in the compute dtype.
        attention_flops_per_second: forward of causal attention. Only products of queries with keys and of scores with
            values count as FLOPs, without masked pairs; softmax and the rest lower this rate.
        memory_bytes_per_second: bytes read and written.
        gather_bytes_per_second: bytes that arrive at, or leave, one rank in a collective.
        engine_step_seconds: overhead of one decoding forward of vLLM besides products and memory: kernel launches and
            scheduler. Assumed by default: it cannot be timed without starting an engine.
        graph_step_seconds: the same with CUDA graphs; also assumed.
    """

    name: str
    matmul_flops_per_second: float | int
    attention_flops_per_second: float | int
    memory_bytes_per_second: float | int
    gather_bytes_per_second: float | int
    engine_step_seconds: float | int = 0.02
    graph_step_seconds: float | int = 0.004

    def __post_init__(self) -> None:
        for field in self.__slots__:
            value = getattr(self, field)
            if field.endswith("_per_second") and (value is None or not value > 0):
                raise ConfigError(f"rates.{field} is {value}: give a positive rate")
            if field.endswith("_step_seconds") and (value is None or not value >= 0):
                raise ConfigError(f"rates.{field} is {value}: give seconds, at least 0")

    def describe(self) -> str:
        """Three lines; the time in brackets is that of a forward with CUDA graphs."""
        return (
            f"rates (rates=…): {self.name}\nproducts {self.matmul_flops_per_second / 1e9:,.0f} GFLOP/s, "
            f"attention {self.attention_flops_per_second / 1e9:,.0f} GFLOP/s, "
            f"memory {self.memory_bytes_per_second / 1e9:,.0f} GB/s, "
            f"collectives {self.gather_bytes_per_second / 1e9:,.0f} GB/s,\n"
            f"a forward of the engine {self.engine_step_seconds * 1e3:.0f} ms ({self.graph_step_seconds * 1e3:.0f} ms)"
        )


def measured_rates(device: torch.device, dtype: torch.dtype, *, attended: tuple[int, int, int]) -> Rates:
    """Time one product, one attention and one copy; takes some seconds.

    One process cannot time collectives. Between processes of one CPU they are copies; on GPUs a tenth of the memory
    rate is assumed, which is about that of NVLink. `attended` are heads, tokens of a sequence, and size of a head:
    attention over short sequences is far slower.
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
    )


def product_rate(sizes: tuple[int, int, int], dtype: torch.dtype, device: torch.device) -> float:
    """FLOP/s of one product of `sizes` = (rows, inner size, columns); in float32 without TensorFloat-32 by default."""
    rows, inner, columns = sizes
    left, right = (torch.randn(shape, device=device).to(dtype) for shape in ((rows, inner), (columns, inner)))
    product = torch.empty(rows, columns, device=device, dtype=dtype)
    return 2 * rows * inner * columns / seconds_of(lambda: torch.mm(left, right.T, out=product), device)


def attention_rate(sizes: tuple[int, int, int], dtype: torch.dtype, device: torch.device) -> float:
    """FLOP/s of causal attention over a micro-batch of sequences: 4 per number of a head and unmasked pair.

    `sizes` are heads, tokens of a sequence and size of a head.
    """
    num_heads, length, head_dim = sizes
    if device.type == "cpu":
        dtype = torch.promote_types(dtype, torch.float32)  # as in the policy
    shape = (max(1, PRODUCT_SIZES[device.type][0] // length), num_heads, length, head_dim)
    query, key, value = (torch.randn(shape, device=device).to(dtype) for _ in range(3))
    flops = 4 * head_dim * shape[0] * num_heads * length * (length + 1) // 2
    return flops / seconds_of(lambda: scaled_dot_product_attention(query, key, value, is_causal=True), device)


def copy_rate(device: torch.device) -> float:
    """Bytes/s of a copy in a device's memory, each byte read once and written once."""
    source = torch.zeros(COPY_BYTES[device.type] // 4, device=device)
    target = torch.zeros_like(source)
    return 2 * source.nbytes / seconds_of(lambda: target.copy_(source), device)


def seconds_of(action: Callable[[], object], device: torch.device) -> float:
    """The median of repeats after one warm-up: the pace of a long run, with whatever else runs on the machine."""
    wait = torch.get_device_module(device).synchronize
    seconds = []
    while len(seconds) <= REPEATS or sum(seconds) < MIN_SECONDS:
        wait()
        start = time.perf_counter()
        action()
        wait()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[1:])

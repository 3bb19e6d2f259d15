"""How fast a device computes and moves memory: given in `configs/rates`, or measured."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch

from apo_lightning.common.ranges import Checked, Within
from apo_lightning.errors import ConfigError

PRODUCT_SIZES = {"cpu": (1024, 1024, 1536), "cuda": (8192, 3584, 18944)}
"""Rows, inner size and columns of the timed product: a micro-batch by a matrix of an MLP."""
COPY_BYTES = {"cpu": 2**27, "cuda": 2**31}
"""Larger than any cache, so that the copy measures memory."""
MODEL_SHARE = 0.67
"""Rate of a whole update ÷ that of a product alone. Measured on one H200 with compiled layers (66.8 %)."""
ENGINE_STEP_SECONDS = {"cpu": 0.02, "cuda": 0.004}
"""Assumed: it cannot be timed without starting an engine."""
REPEATS = 9
MIN_SECONDS = 1.0
"""Duration of one measurement [s]: a shared processor is briefly faster than it is on average."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates(Checked):
    """The rates that one device reaches.

    Attributes:
        name: of the device.
        model_flops_per_second: FLOPs of an update, as `training_flops` counts them, divided by its seconds.
        memory_bytes_per_second: bytes read and written.
        engine_step_seconds: overhead of one decoding forward of the engine: kernel launches and scheduler.
    """

    name: str
    model_flops_per_second: Annotated[float | int, Within("(0, inf]")]
    memory_bytes_per_second: Annotated[float | int, Within("(0, inf]")]
    engine_step_seconds: float | int

    section: ClassVar[str] = "rates."

    def describe(self) -> str:
        """Two lines."""
        return (
            f"rates (rates=…): {self.name}\na model {self.model_flops_per_second / 1e9:,.0f} GFLOP/s, memory "
            f"{self.memory_bytes_per_second / 1e9:,.0f} GB/s, a forward of the engine {self.engine_step_seconds:g} s"
        )


def measured_rates(device: torch.device, dtype: torch.dtype) -> Rates:
    """Time one product and one copy, which takes some seconds; an update is taken to reach `MODEL_SHARE` of a product.

    Raises:
        ConfigError: the device is not there.
    """
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            "no GPU is here whose rates could be measured, so the time of a step is left out: choose rates=a800, h100 "
            "or h200, or give rates of your own"
        )
    name = f"this CPU with {torch.get_num_threads()} thread(s)"
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
    return Rates(
        name=f"{name}, {str(dtype).removeprefix('torch.')}, measured now",
        model_flops_per_second=MODEL_SHARE * product_rate(PRODUCT_SIZES[device.type], dtype, device),
        memory_bytes_per_second=copy_rate(device),
        engine_step_seconds=ENGINE_STEP_SECONDS[device.type],
    )


def product_rate(sizes: tuple[int, int, int], dtype: torch.dtype, device: torch.device) -> float:
    """FLOP/s of one product of `sizes` = (rows, inner size, columns); in float32 without TensorFloat-32 by default."""
    rows, inner, columns = sizes
    left, right = (torch.randn(shape, device=device).to(dtype) for shape in ((rows, inner), (columns, inner)))
    product = torch.empty(rows, columns, device=device, dtype=dtype)
    return 2 * rows * inner * columns / seconds_of(lambda: torch.mm(left, right.T, out=product), device)


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

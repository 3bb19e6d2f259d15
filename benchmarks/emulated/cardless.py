"""What torch's compiler makes of a function for an NVIDIA GPU, on a machine that has none.

`pretend()` first, before torch is imported: it loads a card without memory or arithmetic (`cardless_*.cpp`). Functions
are then traced on tensors without numbers, and what Triton makes of them is real: its compiler and `ptxas` need no
card. For the process's whole life, so for `make gpu`'s sections alone. Seen to hold with torch 2.13 and Triton
3.9, and on the CUDA build of torch 2.11.
"""

import ctypes
import importlib.util
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import CellType, FunctionType, ModuleType, SimpleNamespace
from typing import Any

CAPABILITY = (9, 0)
CARD = {
    "name": "H200",
    "gcnArchName": "",
    "major": CAPABILITY[0],
    "minor": CAPABILITY[1],
    "multi_processor_count": 132,
    "total_memory": 141 * 2**30,
    "regs_per_multiprocessor": 65536,
    "max_threads_per_multi_processor": 2048,
    "max_threads_per_block": 1024,
    "warp_size": 32,
    "shared_memory_per_block": 48 * 2**10,
    "shared_memory_per_block_optin": 227 * 2**10,
    "shared_memory_per_multiprocessor": 228 * 2**10,
    "L2_cache_size": 60 * 2**20,
}
"""An H200, of which the compiler asks these."""
BYTES_OF_WORD = 4
"""torch's compiler counts in words of float32."""
_folder = tempfile.TemporaryDirectory()


@dataclass(frozen=True)
class Kernel:
    """A Triton kernel as torch's compiler wrote it."""

    name: str
    source: str


@dataclass(frozen=True)
class Binary:
    """What became of a kernel: of one thread its registers and what they have no room for, of a block its memory."""

    registers: int
    spilled_bytes: int
    shared_bytes: int


def pretend() -> None:
    """Let torch believe in a card, whose tensors have no numbers."""
    if "torch" in sys.modules:
        raise RuntimeError("torch is imported already, and has looked for cards")
    hooks, guard = compiled("cardless_hooks"), compiled("cardless_guard")
    ctypes.CDLL(hooks(), mode=ctypes.RTLD_GLOBAL)
    import torch  # noqa: F401

    ctypes.CDLL(guard(), mode=ctypes.RTLD_GLOBAL)
    _describe_card()
    _let_compilers_run()


def compiled(name: str) -> Callable[[], str]:
    """Begin to compile this C++ file beside the module; what is returned waits for the library."""
    found = importlib.util.find_spec("torch")
    assert found is not None
    torch_folder, library = Path(str(found.origin)).parent, Path(_folder.name) / f"{name}.so"
    compiler, libraries = os.environ.get("CXX") or shutil.which("c++") or "c++", torch_folder / "lib"
    options = ["-std=c++20", "-shared", "-fPIC", f"-I{torch_folder / 'include'}", f"-L{libraries}"]
    linked = [f"-Wl,-rpath,{libraries}", "-Wl,--no-as-needed", "-lc10", "-ltorch_cpu"]
    source = str(Path(__file__).with_name(f"{name}.cpp"))
    command = [compiler, *options, source, "-o", str(library), *linked]
    process = subprocess.Popen(command)

    def wait() -> str:
        if process.wait() != 0:
            raise subprocess.CalledProcessError(process.returncode, command)
        return str(library)

    return wait


def _describe_card() -> None:
    import torch
    from torch._dynamo import device_interface

    card = SimpleNamespace(**CARD)
    answers: dict[str, Any] = {
        "get_device_properties": card,
        "get_device_capability": CAPABILITY,
        "is_bf16_supported": True,
        "current_device": 0,
        "device_count": 1,
        "get_rng_state": torch.zeros(16, dtype=torch.uint8),
        "set_rng_state": None,
        "is_available": False,  # where it is True, patterns of attention are traced on tensors with numbers
    }
    interface = device_interface.CudaInterface
    for name, answer in answers.items():
        setattr(torch.cuda, name, _always(answer))
        setattr(interface, name, staticmethod(_always(answer)))
    interface.get_compute_capability = staticmethod(_always(10 * CAPABILITY[0] + CAPABILITY[1]))
    interface.is_available = interface.is_triton_capable = staticmethod(_always(True))
    interface.raise_if_triton_unavailable = staticmethod(_always(None))
    interface.Worker.get_device_properties = staticmethod(_always(card))
    interface.Worker.current_device = staticmethod(_always(0))
    torch._C._cuda_getCurrentRawStream = _always(0)


def _let_compilers_run() -> None:
    import torch._functorch.config
    import torch._inductor.config
    from torch._inductor.runtime import triton_helpers
    from triton.backends.compiler import GPUTarget
    from triton.runtime.driver import driver

    target = GPUTarget("cuda", 10 * CAPABILITY[0] + CAPABILITY[1], CARD["warp_size"])
    driver.set_active(SimpleNamespace(get_current_target=lambda: target, get_current_device=lambda: 0))
    triton_helpers.set_driver_to_gpu = lambda: None
    torch._inductor.config.compile_threads = 1
    torch._inductor.config.use_static_triton_launcher = False  # its kernels do not say what they need
    torch._inductor.config.force_disable_caches = True  # what is found in a cache is not seen
    torch._inductor.config.joint_graph_constant_folding = False  # computes constants on the card
    torch._functorch.config.force_non_lazy_backward_lowering = True


def _always(answer: Any) -> Callable[..., Any]:
    return lambda *args, **kwargs: answer


def kernels_of(function: Callable[..., Any], *args: Any, dynamic: bool | None = True) -> list[Kernel]:
    """The kernels of a function of tensors without numbers on the card, and of its gradient where it has one."""
    import torch
    from torch._inductor.async_compile import AsyncCompile

    found: list[Kernel] = []

    def note(_: Any, name: str, source: str, device_str: str = "cuda") -> None:
        found.append(Kernel(name, source))

    torch.compiler.reset()
    AsyncCompile.triton = note
    torch.compile(function, backend=compile_only, dynamic=dynamic)(*args)
    return found


def compile_only(graph: Any, inputs: Any) -> Callable[..., Any]:
    """A backend of `torch.compile` whose kernels are written; what runs in their place is the graph as it is."""
    from torch._inductor.compile_fx import compile_fx

    compile_fx(graph, inputs)
    return graph.forward


def bytes_moved(function: Callable[..., Any], *args: Any) -> int:
    """What the kernels of a function read and write, each tensor once a kernel."""
    return sum(num_bytes for _, num_bytes in traffic_of(function, *args))


def traffic_of(function: Callable[..., Any], *args: Any) -> list[tuple[Any, int]]:
    """The kernels of a function as scheduled, a library's among them, and what each reads and writes [bytes]."""
    import torch
    from torch._inductor import metrics

    torch._logging.set_logs(inductor_metrics=True)
    logging.getLogger("torch._inductor").handlers.clear()  # counted where this is said to be logged
    metrics.reset()
    kernels_of(function, *args, dynamic=False)  # bytes of symbolic lengths cannot be added up
    return [(node, BYTES_OF_WORD * words) for node, words in metrics.nodes_num_elem]


def binary_of(kernel: Kernel) -> Binary:
    """Compiled for the card: of the configurations that it would be tried in, the one that spills least."""
    import triton

    autotuner = vars(imported(kernel.name, kernel.source))[kernel.name]
    objdump = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    binaries = []
    for config in autotuner.configs:
        compiled = autotuner._precompile_config(config).kernel
        cubin = Path(_folder.name) / "kernel.cubin"
        cubin.write_bytes(compiled.asm["cubin"])
        said = subprocess.run([objdump, "-res-usage", cubin], capture_output=True, text=True, check=True).stdout
        usage = {name: int(number) for name, number in re.findall(r"(REG|STACK):(\d+)", said)}
        binaries.append(Binary(usage["REG"], usage["STACK"], compiled.metadata.shared))
    return min(binaries, key=lambda binary: binary.spilled_bytes)


def imported(name: str, source: str, **there: Any) -> ModuleType:
    """A module of this source, in a file: Triton reads its functions there."""
    path = Path(_folder.name) / f"{name}.py"
    path.write_text(source)
    found = importlib.util.spec_from_file_location(name, path)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    vars(module).update(there)
    found.loader.exec_module(module)
    return module


def on_card(value: Any) -> Any:
    """A tensor of the same shape without numbers, or an attention mask of such; whatever is neither, as it is.

    Inside of `FakeTensorMode`.
    """
    import torch
    from torch.nn.attention.flex_attention import BlockMask

    if isinstance(value, BlockMask):
        function = value.mask_mod
        cells = tuple(CellType(on_card(cell.cell_contents)) for cell in function.__closure__)
        tensors = {name: on_card(tensor) for name, tensor in vars(value).items() if isinstance(tensor, torch.Tensor)}
        mask_mod = FunctionType(function.__code__, function.__globals__, closure=cells)
        return BlockMask(seq_lengths=value.seq_lengths, BLOCK_SIZE=value.BLOCK_SIZE, mask_mod=mask_mod, **tensors)
    if not isinstance(value, torch.Tensor):
        return value
    like = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="cuda")
    return like.requires_grad_(value.requires_grad)

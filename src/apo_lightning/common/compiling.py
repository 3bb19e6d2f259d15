"""torch.compile for symbolic lengths that never falls back to eager without a word."""

import inspect
from collections.abc import Callable
from typing import Any

import torch

MOST_VARIANTS = 64
"""Most compiled graphs of a function in a process. Each number of heads, head size and dtype of flex attention needs 8,
torch's default limit; adapters that leave keys or values of the first layer without a gradient add 4."""


def compile_or_fail(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function for symbolic lengths; past `MOST_VARIANTS` graphs a call raises, where torch runs eager.

    From torch 2.13 on, graphs and limit are separate from torch's defaults, under which vLLM compiles in the same
    process. Before, there is one limit for all, which is raised here; vLLM needs 2.13.
    """
    separate: dict[str, Any] = {"recompile_limit": MOST_VARIANTS, "isolate_recompiles": True}
    if not separate.keys() <= inspect.signature(torch.compile).parameters.keys():
        separate = {}
        torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, MOST_VARIANTS)
    return torch.compile(function, dynamic=True, fullgraph=True, **separate)

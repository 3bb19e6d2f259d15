"""Access to vLLM's internals: patches, its log, its scheduler. `tests/test_private_doors.py` checks that they exist."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import MODEL_MAPPING, AutoModel, PretrainedConfig

_OTHERS = "its log-probs are others"
NOT_IN_VLLM = {
    **dict.fromkeys(("apertus", "ernie4_5_moe", "gpt_neox", "jetmoe", "lfm2", "persimmon", "solar_open"), _OTHERS),
    "aria_text": "it does not find the experts",
    "minimax_m2": "it cannot load weights twice",
}
"""Architectures that transformers runs and vLLM 0.32 does not, and what happens there (`docs/models.md`)."""
NOT_ON_CPU = dict.fromkeys(("laguna", "minimax_m3_vl_text"), "its router is for GPUs")
"""Those that vLLM's CPU build does not run."""


@contextmanager
def layers_left_out() -> Iterator[list[str]]:
    """Collect vLLM's warnings about layers that received no weights; vLLM raises no error.

    If vLLM changes the wording or the logger, only the log-prob gap detects such a layer.
    """
    messages: list[str] = []

    def note(record: logging.LogRecord) -> bool:
        if "Failed to load weights" in record.getMessage():
            messages.append(record.getMessage())
        return True

    logger = logging.getLogger("vllm.model_executor.model_loader.reload.layerwise")
    logger.addFilter(note)
    try:
        yield messages
    finally:
        logger.removeFilter(note)


def queued_requests(llm: Any) -> list[Any]:
    """The scheduler's records of waiting and running requests; each counts its preemptions until it ends.

    vLLM's statistics have the same count but would keep a record of every token.
    """
    return list(llm.llm_engine.engine_core.engine_core.scheduler.requests.values())


def layers_with_parameters(worker: Any) -> set[str]:
    """Class names of layers with parameters. Layers that have only buffers (rotary tables) get nothing in a sync."""
    return {
        type(layer).__name__ for layer in worker.get_model().modules() if any(True for _ in layer.parameters(False))
    }


def pack_experts_again(worker: Any) -> None:
    """Make the next sync pack experts for the CPU's kernels; vLLM packs those of the first load alone."""
    for layer in worker.get_model().modules():
        method: Any = getattr(layer, "quant_method", None)
        if hasattr(method, "moe_kernel"):
            method.moe_kernel = None


@contextmanager
def own_model_class(config: PretrainedConfig) -> Iterator[None]:
    """Make `AutoModel` build a subclass, for vLLM to change, of the class that the trainer's own model has.

    Where vLLM has no model of its own it runs that of transformers, whose class it gives another `__init__`, `__call__`
    and base for torch.compile: the trainer's forward would fail for a missing `do_not_compile`.
    """
    trainers: Any = MODEL_MAPPING[type(config)]
    own = type(trainers.__name__, (trainers,), {"__module__": trainers.__module__})
    AutoModel.register(type(config), own, exist_ok=True)
    try:
        yield
    finally:
        MODEL_MAPPING._extra_content.pop(type(config))


@contextmanager
def ranks_left_out() -> Iterator[None]:
    """Skip counting how many tokens are likelier than each sampled one, a result that nobody reads.

    The count is the only compiled function of the CPU sampler: a C++ build per process or, uncompiled, 4 % of the time.
    """
    from vllm.v1.sample import sampler

    count = sampler.batched_count_greater_than

    def no_ranks(logprobs: Tensor, sampled_logprobs: Tensor) -> Tensor:
        return torch.zeros(len(logprobs), dtype=torch.long, device=logprobs.device)

    sampler.batched_count_greater_than = no_ranks
    try:
        yield
    finally:
        sampler.batched_count_greater_than = count

"""What of vLLM is replaced for a while, or read from its log and its scheduler: held by `tests/test_private_doors.py`.

`vllm_weights` beside it reads the attributes of vLLM's layers.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor


@contextmanager
def layers_left_out() -> Iterator[list[str]]:
    """Collects the layers that got no weights, of which vLLM says nothing but a warning.

    Another wording, or another logger, and such a layer would pass unnoticed unless `held_parts` samples it.
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
    """The scheduler's records of what waits or runs; each counts its preemptions, and does so until it ends.

    vLLM's statistics have the same count, and would keep a record of every token for it.
    """
    return list(llm.llm_engine.engine_core.engine_core.scheduler.requests.values())


def layers_with_parameters(worker: Any) -> set[str]:
    """Class names of layers; one of buffers alone (rotary tables) is rightly left out of a sync."""
    return {
        type(layer).__name__ for layer in worker.get_model().modules() if any(True for _ in layer.parameters(False))
    }


@contextmanager
def gloo_between_slices() -> Iterator[None]:
    """Ranks of a CPU engine reduce over gloo, not over shared memory.

    vLLM would name that memory alike in all runs of a machine, so that two of them write into one another's sums. Where
    ranks differ over the name, it takes gloo. `VLLM_DIST_IDENT`, of which the name is made, it sets itself.
    """
    from vllm.distributed.device_communicators.cpu_communicator import _CPUSHMDistributed

    make_group_name = _CPUSHMDistributed.make_group_name
    _CPUSHMDistributed.make_group_name = staticmethod(lambda communicator: f"rank {communicator.rank}")
    try:
        yield
    finally:
        _CPUSHMDistributed.make_group_name = staticmethod(make_group_name)


@contextmanager
def ranks_left_out() -> Iterator[None]:
    """Does not count how many tokens are likelier than each sampled one, which nobody reads.

    The count is the one compiled function of the CPU sampler: a C++ build per process, or, run uncompiled, 4 % of the
    time.
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

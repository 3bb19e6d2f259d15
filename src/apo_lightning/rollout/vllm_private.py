"""vLLM in this process: what it must not change here, and access to its internals (patches, weights, scheduler).

`tests/test_private_doors.py` checks that they exist.
"""

import gc
import logging
import os
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed
from torch import Tensor
from transformers import MODEL_MAPPING, AutoModel, PretrainedConfig

from apo_lightning.common.random_states import random_states, restore_random_states
from apo_lightning.rollout.engine import columns_of

_DIFFER = "its log-probs there differ from those of transformers"
NOT_IN_VLLM = {
    **dict.fromkeys(("apertus", "ernie4_5_moe", "gpt_neox", "jetmoe", "lfm2", "persimmon", "solar_open"), _DIFFER),
    "aria_text": "it does not find the experts",
    "minimax_m2": "it cannot load weights twice",
}
"""Architectures that transformers runs and vLLM 0.32 does not, and what happens there (`docs/models.md`)."""
NOT_ON_CPU = dict.fromkeys(("laguna", "minimax_m3_vl_text"), "its router is for GPUs")
"""Those that vLLM's CPU build does not run."""


def queued_requests(llm: Any) -> list[Any]:
    """The scheduler's records of waiting and running requests; each counts its preemptions until it ends.

    vLLM's statistics have the same count but would keep a record of every token.
    """
    return list(llm.llm_engine.engine_core.engine_core.scheduler.requests.values())


def pack_experts_again(worker: Any) -> None:
    """Make the next sync pack experts for the CPU's kernels; vLLM packs those of the first load alone."""
    for layer in worker.get_model().modules():
        method: Any = getattr(layer, "quant_method", None)
        if hasattr(method, "moe_kernel"):
            method.moe_kernel = None


def held_columns(worker: Any, name: str, shape: torch.Size, columns: slice) -> Tensor | None:
    """Columns of a weight, by Hugging Face name, as vLLM computes with it; None if no layer holds it in this form.

    On the CPU a linear layer multiplies with a packed copy that cannot be read. Rows of the identity times this copy
    are its columns, to the bit: all other products are 0. An embedding has a copy too and does not use it.
    """
    path, _, kind = name.rpartition(".")
    parent, dot, own = path.rpartition(".")
    layers = dict(worker.get_model().named_modules())
    fused = getattr(layers[""], "packed_modules_mapping", {}) | {own: [own]}
    for whole, parts in fused.items():
        layer = layers.get(f"{parent}{dot}{whole}") if own in parts else None
        values, sizes = getattr(layer, kind, None), getattr(layer, "output_partition_sizes", ())
        if values is None or len(parts) not in (1, len(sizes)):
            continue
        if kind == "weight" and hasattr(layer, "cpu_linear") and hasattr(layer, "bias"):
            identity = torch.zeros(shape[-1], len(range(shape[-1])[columns]), dtype=values.dtype)
            identity[columns].fill_diagonal_(1.0)
            values = layer.quant_method.apply(layer, identity.T.contiguous()).T
        else:
            values = columns_of(values, columns)
        first = sum(sizes[: parts.index(own)])
        return values[first : first + shape[0]]
    return None


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


@contextmanager
def process_unchanged() -> Iterator[None]:
    """Restore random states, environment, torch's threads, precision and modes, and log records on exit.

    Otherwise a run with vLLM gets other dropout masks and data orders than one without and trains in another matmul
    precision, and a leaked LOCAL_RANK makes the next Lightning Trainer wait for ranks that nobody starts.
    """
    states, environment = random_states(), dict(os.environ)
    cuda_states = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []  # vLLM seeds every GPU
    set_num_threads, num_threads = torch.set_num_threads, torch.get_num_threads()
    precision, default_dtype = torch.get_float32_matmul_precision(), torch.get_default_dtype()
    grad_enabled, record_factory = torch.is_grad_enabled(), logging.getLogRecordFactory()
    try:
        yield
    finally:
        restore_random_states(states)
        if cuda_states:
            torch.cuda.set_rng_state_all(cuda_states)
        for name in os.environ.keys() - environment.keys():
            del os.environ[name]
        os.environ.update(environment)
        torch.set_num_threads = set_num_threads
        if torch.get_num_threads() != num_threads:
            torch.set_num_threads(num_threads)
        torch.set_float32_matmul_precision(precision)
        torch.set_default_dtype(default_dtype)
        torch.set_grad_enabled(grad_enabled)
        logging.setLogRecordFactory(record_factory)
        gc.unfreeze()


@contextmanager
def stderr_to_log(logger: logging.Logger) -> Iterator[None]:
    """Log at level DEBUG what the block, C++ libraries included, writes to standard error.

    If the block fails, its output goes to standard error.
    """
    sys.stderr.flush()
    stderr = os.dup(2)
    with tempfile.TemporaryFile() as file, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        os.dup2(file.fileno(), 2)
        try:
            yield
        except BaseException:
            file.seek(0)
            os.write(stderr, file.read())
            raise
        finally:
            sys.stderr.flush()
            os.dup2(stderr, 2)
            os.close(stderr)
        file.seek(0)
        for line in file.read().decode(errors="replace").splitlines():
            logger.debug("%s", line)


@contextmanager
def default_process_group_kept() -> Iterator[None]:
    """Ignore calls in the block that would destroy the default process group, which is the trainer's."""
    destroy = torch.distributed.destroy_process_group

    def destroy_subgroup(group: torch.distributed.ProcessGroup | None = None) -> None:
        if group is not None and group is not torch.distributed.group.WORLD:
            destroy(group)

    torch.distributed.destroy_process_group = destroy_subgroup
    try:
        yield
    finally:
        torch.distributed.destroy_process_group = destroy

"""Context managers that protect this process from the side effects of starting and running vLLM in it."""

import gc
import logging
import os
import random
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy
import torch
import torch.distributed


def random_states() -> dict[str, Any]:
    """The state of every random generator of this process, as plain data."""
    algorithm, keys, position, has_gauss, gauss = numpy.random.get_state()
    return {
        "python": random.getstate(),
        "numpy": (algorithm, torch.from_numpy(numpy.asarray(keys).copy()), position, has_gauss, gauss),
        "torch": torch.get_rng_state(),
        **({"cuda": torch.cuda.get_rng_state()} if torch.cuda.is_initialized() else {}),
    }


def restore_random_states(states: Mapping[str, Any]) -> None:
    """Restore every generator's state from `random_states`."""
    random.setstate(states["python"])
    algorithm, keys, position, has_gauss, gauss = states["numpy"]
    numpy.random.set_state((algorithm, keys.numpy(), position, has_gauss, gauss))
    torch.set_rng_state(states["torch"])
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])


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

"""A pass that does not fit into memory is run again with smaller micro-batches, once a run."""

import gc
import logging
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from apo_lightning.common.process_group import num_processes
from apo_lightning.distributed.root_params import can_repeat_sharded
from apo_lightning.errors import DoesNotFitError

Result = TypeVar("Result")

_logger = logging.getLogger(__name__)


class MemoryBudget:
    """`tokens_per_microbatch` of a run, halved the first time that a forward or backward runs out of memory.

    The size of a micro-batch changes no result, so the pass is simply run again. With several ranks the run ends
    instead: the other ranks wait inside a collective of the pass that failed, and cannot leave it.

    Args:
        tokens_per_microbatch: of the configuration.

    Example:
        >>> is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory.")), is_out_of_memory(RuntimeError("a bug"))
        (True, False)
    """

    def __init__(self, tokens_per_microbatch: int) -> None:
        self.tokens_per_microbatch = tokens_per_microbatch
        self.was_halved = False

    def retry(self, work: Callable[..., Result], *args: Any, **kwargs: Any) -> Result:
        """The result of `work(*args, **kwargs)`, which is called once more with half the budget if memory ran out.

        `work` reads the budget when it is called; traces of an unfinished call must not change the next one.

        Raises:
            DoesNotFitError: memory ran out, and the pass cannot be run again.
        """
        while True:
            try:
                return work(*args, **kwargs)
            except (RuntimeError, MemoryError) as error:
                self.halve(error)
            release_memory()

    def halve(self, error: Exception) -> None:
        """Halve the budget after an error of memory; any other error is raised again.

        Raises:
            DoesNotFitError: the budget was halved before, or the pass cannot be repeated.
        """
        if not is_out_of_memory(error):
            raise error
        num_ranks = num_processes()
        budget = self.tokens_per_microbatch
        smaller = max(1, budget // 2)
        why = ""
        if self.was_halved:
            why = "and it was halved before"
        elif num_ranks > 1:
            why = f"and {num_ranks} ranks cannot repeat a pass"
        elif torch.distributed.is_initialized() and not can_repeat_sharded():
            why = f"and FSDP2 of torch {torch.__version__} cannot repeat a pass (2.13 can)"
        if why:
            raise DoesNotFitError(
                f"out of memory with tokens_per_microbatch={budget}, {why}: start with "
                f"tokens_per_microbatch={smaller}, or with model.gradient_checkpointing=true"
            ) from error
        _logger.warning("out of memory with tokens_per_microbatch=%d, continuing with %d: %s", budget, smaller, error)
        self.tokens_per_microbatch = smaller
        self.was_halved = True


def release_memory() -> None:
    """Free the memory of a failed pass; outside of its `except`, whose traceback holds all that was allocated."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def is_out_of_memory(error: BaseException) -> bool:
    """True where an allocation failed, on a GPU or a CPU."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in str(error)

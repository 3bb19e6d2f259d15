"""Work that does not fit into memory: done again with smaller micro-batches, once a run."""

import gc
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import torch

from apo_lightning.common.process_group import num_processes
from apo_lightning.errors import DoesNotFitError
from apo_lightning.model.packing import Microbatch
from apo_lightning.update.settings import StepSettings
from apo_lightning.update.table import StepTable

Result = TypeVar("Result")

_logger = logging.getLogger(__name__)


class MemoryRetry:
    """Halves `tokens_per_microbatch` where a forward or backward ran out of memory, the first time it happens.

    A micro-batch is a matter of memory alone, so what is done again has the same result. With several ranks the run
    ends instead: the others are inside a collective of the pass that failed, which they cannot leave.

    Args:
        settings: of the run.

    Example:
        >>> is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory.")), is_out_of_memory(RuntimeError("a bug"))
        (True, False)
    """

    def __init__(self, settings: StepSettings) -> None:
        self.settings = settings
        self.was_halved = False

    def call(self, work: Callable[..., Result], *args: Any, **kwargs: Any) -> Result:
        """What `work(*args, settings=…, **kwargs)` returns, called once more with half the budget if memory ran out.

        Args:
            work: may be called twice; what the first call has left behind must not change what the second one does.
            args: of it.
            kwargs: of it.

        Raises:
            DoesNotFitError: it ran out of memory, and cannot be done again.
        """
        try:
            return work(*args, settings=self.settings, **kwargs)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            self._halve(error)
        # Out of the handler, whose traceback holds all that was allocated.
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        return self.call(work, *args, **kwargs)

    def _halve(self, error: Exception) -> None:
        num_ranks = num_processes()
        budget = self.settings.tokens_per_microbatch
        smaller = max(1, budget // 2)
        if num_ranks > 1 or self.was_halved:
            why = "and it was halved before" if self.was_halved else f"and {num_ranks} ranks cannot repeat a pass"
            raise DoesNotFitError(
                f"out of memory with tokens_per_microbatch={budget}, {why}: start with "
                f"tokens_per_microbatch={smaller}, or with model.gradient_checkpointing=true"
            ) from error
        _logger.warning("out of memory with tokens_per_microbatch=%d, going on with %d: %s", budget, smaller, error)
        self.settings = replace(self.settings, tokens_per_microbatch=smaller)
        self.was_halved = True


def is_out_of_memory(error: BaseException) -> bool:
    """True where an allocation failed, on a GPU or a CPU."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in str(error)


def within_budget(table: StepTable, microbatches: Sequence[Microbatch], tokens_per_microbatch: int) -> list[Microbatch]:
    """Micro-batches that were cut for a larger budget, cut again; the others as they are."""
    result = []
    for microbatch in microbatches:
        completions = table.sequence_ids[microbatch.token_index].unique().tolist()
        fits = len(microbatch.input_ids) <= tokens_per_microbatch or len(completions) == 1
        result += [microbatch] if fits else table.microbatches(completions, tokens_per_microbatch)
    return result

"""Ranks that share a tensor-parallel engine: they submit the union of their requests and each takes its own results."""

import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from apo_lightning.errors import ConfigError
from apo_lightning.rollout.engine import FinishedListener
from apo_lightning.types import Completion, GenerationRequest


@dataclass(frozen=True, slots=True)
class SharedRequests:
    """The distinct requests of all ranks of a tensor-parallel group, in the same order on every rank.

    Equal requests have equal completions, so ranks that make the same request share one.

    Attributes:
        everyone: the requests that the group's engine gets.
        mine: for each of this rank's requests, its index in `everyone`.

    Example:
        >>> one, two, three = (GenerationRequest(prompt_token_ids=(1,), seed=s, max_new_tokens=1) for s in (1, 2, 3))
        >>> SharedRequests.of([[one, two], [two, three]], rank=1).mine
        (1, 2)
    """

    everyone: tuple[GenerationRequest, ...]
    mine: tuple[int, ...]

    @classmethod
    def of(cls, parts: Sequence[Sequence[GenerationRequest]], rank: int) -> "SharedRequests":
        """Merge the ranks' requests, in the order of the group's ranks; `rank` is this process's rank in the group."""
        everyone = tuple(dict.fromkeys(request for part in parts for request in part))
        index = {request: i for i, request in enumerate(everyone)}
        return cls(everyone, tuple(index[request] for request in parts[rank]))

    @classmethod
    def gather(cls, requests: Sequence[GenerationRequest], group: Any) -> "SharedRequests":
        """Exchange the requests of the process group's ranks; collective."""
        parts: list[Any] = [None] * torch.distributed.get_world_size(group)
        torch.distributed.all_gather_object(parts, list(requests), group=group)
        return cls.of(parts, torch.distributed.get_rank(group))

    def listener(self, on_finished: FinishedListener | None, group: Any) -> FinishedListener:
        """A listener that calls `on_finished` for this rank's own requests, with their own indices; collective.

        An exception on one rank is raised on all ranks, at the same completion: a rank that left alone would block the
        others in their next forward.
        """

        def listen(shared: int, completion: Completion) -> None:
            raised = None
            try:
                for index, own in enumerate(self.mine):
                    if own == shared and on_finished is not None:
                        on_finished(index, completion)
            except Exception as error:
                raised = error
            raise_together(raised, group)

        return listen


def raise_together(error: Exception | None, group: Any) -> None:
    """Raise this rank's error, or else another rank's; return if no rank of the process group has one. Collective."""
    is_raised = torch.tensor(int(error is not None))
    torch.distributed.all_reduce(is_raised, torch.distributed.ReduceOp.MAX, group=group)
    if not is_raised:
        return
    errors: list[Any] = [None] * torch.distributed.get_world_size(group)
    torch.distributed.all_gather_object(errors, _sendable(error), group=group)
    raise error or next(other for other in errors if other is not None)


def _sendable(error: Exception | None) -> Exception | None:
    try:
        return pickle.loads(pickle.dumps(error))
    except Exception:  # some classes cannot be pickled or unpickled, with any exception
        return RuntimeError(f"{type(error).__name__}: {error}")


def check_tensor_parallel(tensor_parallel_size: int, world_size: int) -> None:
    """Raise `ConfigError` unless the run's processes divide into groups of this size."""
    if tensor_parallel_size < 1 or world_size % tensor_parallel_size:
        processes = f"the {world_size} processes of the run" if world_size > 1 else "the run's one process"
        raise ConfigError(
            f"engine tensor_parallel_size is {tensor_parallel_size}, which does not divide {processes}: give a "
            "divisor, or 1 for an engine in each process"
        )

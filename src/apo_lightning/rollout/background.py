"""Work on what arrives, beside the thread that it comes from."""

import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from types import TracebackType
from typing import Generic, TypeVar

Item = TypeVar("Item")


class BackgroundBatches(Generic[Item]):
    """A thread that calls `work` with all that has arrived since its last call, never with nothing.

    Leaving the block ends the thread: after `finish` nothing is left; otherwise, so after an error, what has not been
    begun is dropped.

    Args:
        work: called from the thread, one call at a time. What it raises is raised by the next `put`, or by `finish`.

    Example:
        >>> squares = []
        >>> with BackgroundBatches(lambda numbers: squares.extend(n * n for n in numbers)) as background:
        ...     for number in range(4):
        ...         background.put(number)
        ...     background.finish()
        >>> squares
        [0, 1, 4, 9]
    """

    def __init__(self, work: Callable[[Sequence[Item]], None]):
        self._work = work
        self._arrived: SimpleQueue[Item | None] = SimpleQueue()
        self._is_dropped = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="background batches", daemon=True)

    def put(self, item: Item) -> None:
        """Hand an item to the thread; returns at once."""
        self._raise_failure()
        self._arrived.put(item)

    def finish(self) -> None:
        """Wait until everything is done. Nothing may be put any more."""
        self._arrived.put(None)
        self._thread.join()
        self._raise_failure()

    def __enter__(self) -> "BackgroundBatches[Item]":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._is_dropped.set()
        self._arrived.put(None)
        self._thread.join()

    def _run(self) -> None:
        is_last = False
        while not is_last:
            items = [self._arrived.get()]
            while not self._arrived.empty():
                items.append(self._arrived.get())
            is_last = None in items or self._is_dropped.is_set()
            batch = [item for item in items if item is not None]
            if batch and not self._is_dropped.is_set():
                try:
                    self._work(batch)
                except BaseException as failure:  # it belongs to the thread that waits
                    self._failure = failure
                    return

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

"""One background thread that works through items in batches."""

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from typing import Generic, TypeVar

Item = TypeVar("Item")


class BackgroundBatches(Generic[Item]):
    """A thread that calls `work` with all items that have arrived since its last call, never with an empty batch.

    Leaving the block ends the thread and drops items that no call has started on.

    Args:
        work: called from the thread, one call at a time. The next `put`, or `finish`, raises its exception.

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
        self._arrived: SimpleQueue[Item] = SimpleQueue()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="background batches")
        self._calls: deque[Future[None]] = deque()

    def put(self, item: Item) -> None:
        """Hand an item to the thread; returns at once."""
        while self._calls and self._calls[0].done():
            self._calls.popleft().result()
        self._arrived.put(item)
        self._calls.append(self._thread.submit(self._work_on_arrived))

    def finish(self) -> None:
        """Wait until every item has been worked on."""
        for call in self._calls:
            call.result()

    def __enter__(self) -> "BackgroundBatches[Item]":
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown(cancel_futures=True)

    def _work_on_arrived(self) -> None:
        if items := [self._arrived.get() for _ in range(self._arrived.qsize())]:
            self._work(items)

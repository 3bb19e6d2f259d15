"""The connections of three ranks in one process: what each hears when one of them ends."""

import queue
import socket
import threading
import time

import pytest

from apo_lightning.distributed.rank_watchdog import RankWatchdog, connect


@pytest.fixture
def connections():
    """Of ranks 0, 1 and 2; a stranger tries the port first."""
    address: queue.Queue = queue.Queue()
    found: dict[int, dict[int, socket.socket]] = {}

    def from_first(value):
        if value is None:
            return address.get(timeout=300)
        stranger = socket.create_connection(value[0])
        stranger.sendall(b"GET / HTTP/1.1\r\n" * 4)
        for _ in range(2):
            address.put(value)
        return value

    def join(rank):
        found[rank] = connect(rank, 3, None, from_first)

    threads = [threading.Thread(target=join, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    yield found
    for of_rank in found.values():
        for connection in of_rank.values():
            connection.close()


def listen(connections, *ranks):
    """The ends of some ranks, and a queue of what each hears: (hearer, who failed, why)."""
    events: queue.Queue = queue.Queue()
    return {
        rank: RankWatchdog(rank, connections[rank], lambda who, why, rank=rank: events.put((rank, who, why)))
        for rank in ranks
    }, events


def everything(events: queue.Queue, num_events: int) -> set:
    """What is heard within a moment after the expected number of events."""
    expected = [events.get(timeout=300) for _ in range(num_events)]
    time.sleep(0.2)
    return {*expected, *(events.get_nowait() for _ in range(events.qsize()))}


def test_the_reason_of_a_failing_rank_reaches_all_others_through_the_first(connections):
    lines, events = listen(connections, 0, 1, 2)
    assert lines[1].fail("no luck: π ≠ 3")
    assert everything(events, 2) == {(0, 1, "no luck: π ≠ 3"), (2, 1, "no luck: π ≠ 3")}


def test_a_rank_that_fails_after_another_has_nothing_to_say(connections):
    lines, events = listen(connections, 0, 1, 2)
    lines[1].fail("first")
    everything(events, 2)
    assert not lines[2].fail("closed by peer")
    assert everything(events, 0) == set()


def test_a_rank_that_dies_silently_is_heard_of_by_all_others(connections):
    _, events = listen(connections, 0, 1)
    connections[2][0].close()  # what the operating system does for a killed process
    assert everything(events, 2) == {(0, 2, None), (1, 2, None)}


def test_the_end_of_the_first_rank_is_seen_by_each_of_the_others(connections):
    _, events = listen(connections, 1, 2)
    for connection in connections[0].values():
        connection.close()
    assert everything(events, 2) == {(1, 0, None), (2, 0, None)}


def test_taking_leave_is_no_failure_in_whatever_order(connections):
    lines, events = listen(connections, 0, 1, 2)
    for rank in (1, 0, 2):
        lines[rank].close()
        time.sleep(0.1)
    assert everything(events, 0) == set()

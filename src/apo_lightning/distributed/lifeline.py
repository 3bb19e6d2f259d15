"""Connections between the processes of a run, by which each learns at once that another has ended, and why.

The operating system closes the connections of a dead process, whatever killed it: no one is asked at intervals, and a
process that is merely busy is never taken for dead. A collective says neither: over NCCL it waits for hours.
"""

import contextlib
import json
import secrets
import socket
import threading
from collections.abc import Callable, Mapping
from typing import Any

_CONNECT_TIMEOUT_S = 60.0
_KEEPALIVE_S = {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
"""A machine that lost power closes nothing: its connections count as dead after 15 + 3·5 s."""

OnLoss = Callable[[int, str | None], None]
"""(rank that failed, its reason; None: it ended without a word)."""


def connect(rank: int, num_ranks: int, host: str | None, from_first: Callable[[Any], Any]) -> dict[int, socket.socket]:
    """The connections of this process, by rank: of the first to all others, of these to the first.

    Args:
        rank: this process.
        num_ranks: all of them call this.
        host: where the others find the first; None: all are on one machine, and no other can connect.
        from_first: broadcasts the first rank's value.

    Raises:
        OSError: the first does not hear from all within a minute.
    """
    if rank > 0:
        address, token = from_first(None)
        connection = socket.create_connection(address, timeout=_CONNECT_TIMEOUT_S)
        connection.sendall(_greeting(token, rank))
        return {0: _kept_alive(connection)}
    with socket.create_server(("127.0.0.1" if host is None else "", 0)) as server:
        server.settimeout(_CONNECT_TIMEOUT_S)
        token = secrets.token_hex(16)
        from_first(((host or "127.0.0.1", server.getsockname()[1]), token))
        connections: dict[int, socket.socket] = {}
        while len(connections) < num_ranks - 1:
            connection, _ = server.accept()
            connection.settimeout(_CONNECT_TIMEOUT_S)
            with contextlib.suppress(OSError):
                greeting = connection.recv(len(_greeting(token, 0)), socket.MSG_WAITALL)
                # Anyone can reach the port.
                if secrets.compare_digest(greeting[: len(token)], token.encode()):
                    connections[int(greeting[len(token) :])] = _kept_alive(connection)
                    continue
            connection.close()
    return connections


def _greeting(token: str, rank: int) -> bytes:
    """A greeting of the same length on all ranks: what follows it must stay in the socket."""
    return f"{token}{rank:08d}".encode()


def _kept_alive(connection: socket.socket) -> socket.socket:
    connection.settimeout(None)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE_S.items():
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return connection


class Lifeline:
    """This process's end of the connections. The first rank passes on what it hears.

    Args:
        rank: this process.
        connections: from `connect`.
        on_loss: called once, in a thread of its own, when another rank fails before this one has said anything.
    """

    def __init__(self, rank: int, connections: Mapping[int, socket.socket], on_loss: OnLoss) -> None:
        self.rank = rank
        self._connections = connections
        self._on_loss = on_loss
        self._lock = threading.Lock()
        self._is_over = False
        for peer, connection in connections.items():
            threading.Thread(target=self._listen, args=(peer, connection), daemon=True, name="lifeline").start()

    def fail(self, reason: str) -> bool:
        """Tell all others that this rank cannot go on; False: another had failed before."""
        is_first = self._finish()
        if is_first:
            self._send((self.rank, reason))
        return is_first

    def close(self) -> None:
        """Take leave: this rank is done."""
        if self._finish():
            self._send(None)
        for connection in self._connections.values():
            # `close` alone would leave the thread that reads it waiting.
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()

    def _finish(self) -> bool:
        """True for whoever comes first: what this rank does, or what it hears."""
        with self._lock:
            is_first, self._is_over = not self._is_over, True
        return is_first

    def _send(self, message: tuple[int, str | None] | None, but: int | None = None) -> None:
        line = json.dumps(message).encode() + b"\n"
        for peer, connection in self._connections.items():
            if peer != but:
                with contextlib.suppress(OSError):  # it is gone already
                    connection.sendall(line)

    def _listen(self, peer: int, connection: socket.socket) -> None:
        line = ""
        with contextlib.suppress(OSError), connection.makefile() as file:
            line = file.readline()
        message = json.loads(line) if line.endswith("\n") else (peer, None)
        if message is not None and self._finish():
            failed, reason = message
            self._send((failed, reason), but=peer)
            self._on_loss(failed, reason)

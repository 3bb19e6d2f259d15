"""Connections between the ranks of a run, by which each learns at once that another one has failed, and why.

The operating system closes the connections of a dead process, so nothing has to be polled, and a busy process never
counts as dead. A collective detects neither failure: NCCL waits until the process group's timeout.
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
"""A machine without power closes no connection: its connections count as dead after 15 + 3·5 s."""


def connect(rank: int, num_ranks: int, host: str | None, from_first: Callable[[Any], Any]) -> dict[int, socket.socket]:
    """Connect the first rank with all others; returns this process's connections by rank. Collective.

    Args:
        rank: of this process.
        num_ranks: number of ranks.
        host: address of the first rank; None: all ranks are on one machine, and no other machine can connect.
        from_first: broadcasts the first rank's value.

    Raises:
        OSError: a rank did not connect within a minute.
    """
    if rank > 0:
        address, token = from_first(None)
        connection = socket.create_connection(address, timeout=_CONNECT_TIMEOUT_S)
        connection.sendall(_greeting(token, rank))
        return {0: _with_keepalive(connection)}
    connections: dict[int, socket.socket] = {}
    with socket.create_server(("127.0.0.1" if host is None else "", 0)) as server:
        server.settimeout(_CONNECT_TIMEOUT_S)
        token = secrets.token_hex(16)
        from_first(((host or "127.0.0.1", server.getsockname()[1]), token))
        while len(connections) < num_ranks - 1:
            connection, _ = server.accept()
            connection.settimeout(_CONNECT_TIMEOUT_S)
            with contextlib.suppress(OSError):
                greeting = connection.recv(len(_greeting(token, 0)), socket.MSG_WAITALL)
                # Anyone can reach the port.
                if secrets.compare_digest(greeting[: len(token)], token.encode()):
                    connections[int(greeting[len(token) :])] = _with_keepalive(connection)
                    continue
            connection.close()
    return connections


def _greeting(token: str, rank: int) -> bytes:
    """A greeting of a fixed length, so that reading it leaves later messages in the socket."""
    return f"{token}{rank:08d}".encode()


def _with_keepalive(connection: socket.socket) -> socket.socket:
    connection.settimeout(None)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE_S.items():
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return connection


class RankWatchdog:
    """One rank's end of the connections. The first rank forwards messages to all others.

    `on_failure` is called at most once, in a background thread, if another rank fails before this one has reported:
    with that rank and its reason, None if it ended without a message.
    """

    def __init__(
        self, rank: int, connections: Mapping[int, socket.socket], on_failure: Callable[[int, str | None], None]
    ) -> None:
        self.rank = rank
        self._connections = connections
        self._on_failure = on_failure
        self._lock = threading.Lock()
        self._is_over = False
        for peer, connection in connections.items():
            threading.Thread(target=self._listen, args=(peer, connection), daemon=True, name="rank watchdog").start()

    def fail(self, reason: str) -> bool:
        """Report to all other ranks that this rank has failed; returns False if another one failed before."""
        is_first = self._finish()
        if is_first:
            self._send((self.rank, reason))
        return is_first

    def close(self) -> None:
        """Sign off: this rank has finished without failure."""
        if self._finish():
            self._send(None)
        for connection in self._connections.values():
            # `close` alone would not wake the thread that reads from it.
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()

    def _finish(self) -> bool:
        """Returns True to the first caller only: either this rank's own report, or another rank's message."""
        with self._lock:
            is_first, self._is_over = not self._is_over, True
        return is_first

    def _send(self, message: tuple[int, str | None] | None, but: int | None = None) -> None:
        line = json.dumps(message).encode() + b"\n"
        for peer, connection in self._connections.items():
            if peer != but:
                with contextlib.suppress(OSError):  # that rank has ended already
                    connection.sendall(line)

    def _listen(self, peer: int, connection: socket.socket) -> None:
        line = ""
        with contextlib.suppress(OSError), connection.makefile() as file:
            line = file.readline()
        message = json.loads(line) if line.endswith("\n") else (peer, None)
        if message is not None and self._finish():
            failed, reason = message
            self._send((failed, reason), but=peer)
            self._on_failure(failed, reason)

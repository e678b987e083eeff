"""Whether anybody still reads what a Python worker says.

A query that has enough rows closes the worker's connection. The worker would notice when it writes
for the second time after that; until then a LIMIT would go on calling a service.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import socket
import struct
import termios
from functools import lru_cache
from pathlib import Path

_DESCRIPTORS = Path("/proc/self/fd")
# linux/inet_diag.h, linux/sock_diag.h
_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_NLM_F_REQUEST = 1
_NETLINK = struct.Struct("=IHHII")
_REQUEST = struct.Struct("=BBBBI")
_ANY = 0xFFFFFFFF
_RECEIVED_AT = 72
_QUEUE = struct.Struct("=I")


class Reader:
    """The process at the other end of the worker's connections."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self._descriptors = _sockets()
        for descriptor in self._descriptors:
            self._poll.register(descriptor, select.POLLRDHUP | select.POLLHUP | select.POLLERR)
            _send_at_once(descriptor)

    def is_open(self) -> bool:
        """Tell whether all connections are open."""
        return not self._poll.poll(0)

    def unread_bytes(self) -> int | None:
        """Return what was written and not read yet, in bytes; None where the kernel does not say."""
        try:
            return max(map(_unread, self._descriptors), default=None)
        except (OSError, struct.error):
            return None


@lru_cache(maxsize=1)
def _reader(_process: int) -> Reader:
    return Reader()


def reader() -> Reader:
    """Return the reader of this worker; asked for before the worker has connections of its own.

    Should it have some all the same, their end slows calls down and does nothing else.
    """
    return _reader(os.getpid())


def _sockets() -> list[int]:
    """Return one descriptor of each socket."""
    found: dict[str, int] = {}
    for path in _DESCRIPTORS.iterdir() if _DESCRIPTORS.exists() else ():
        try:
            target = str(path.readlink())
        except FileNotFoundError:
            continue  # the descriptor of this very listing
        if target.startswith("socket:"):
            found.setdefault(target, int(path.name))
    return [*found.values()]


def _send_at_once(descriptor: int) -> None:
    # The kernel otherwise keeps small arrays until 32 KiB have come together, or for 40 ms.
    with (
        socket.socket(fileno=os.dup(descriptor)) as ours,
        contextlib.suppress(OSError),
    ):
        if ours.family is not socket.AF_UNIX:
            ours.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _unread(descriptor: int) -> int:
    with socket.socket(fileno=os.dup(descriptor)) as ours:
        if ours.family is socket.AF_UNIX:
            return int(_QUEUE.unpack(fcntl.ioctl(ours, termios.TIOCOUTQ, bytes(_QUEUE.size)))[0])
        return _received(ours)


def _received(ours: socket.socket) -> int:
    """Return what the peer's kernel, which is ours as well, holds for a connection's other end."""
    (host, port), (peer, peer_port) = ours.getsockname()[:2], ours.getpeername()[:2]
    other_end = (
        _REQUEST.pack(ours.family, socket.IPPROTO_TCP, 0, 0, _ANY)
        + struct.pack(">HH", peer_port, port)
        + socket.inet_pton(ours.family, peer).ljust(16, b"\0")
        + socket.inet_pton(ours.family, host).ljust(16, b"\0")
        + struct.pack("=III", 0, _ANY, _ANY)
    )
    head = _NETLINK.pack(_NETLINK.size + len(other_end), _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, 0, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as kernel:
        kernel.settimeout(1.0)
        kernel.send(head + other_end)
        said = kernel.recv(4096)
    if _NETLINK.unpack_from(said)[1] != _SOCK_DIAG_BY_FAMILY:
        raise OSError("the kernel does not know the other end")
    return int(_QUEUE.unpack_from(said, _RECEIVED_AT)[0])

"""Ports that nobody listens on, and that no outgoing connection takes before a server does.

Runs beside this one look for ports as well, and between our look and the server's start there is
time. So ports are taken by the hundred: whoever holds the first of them has the other 99.
"""

from __future__ import annotations

import os
import random
import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

# Below the range from which systems choose the ports of outgoing connections.
_FIRST, _LAST = 15_000, 32_000
_BLOCK = 100


def free_port() -> int:
    """A port that no other caller was given, in whichever process."""
    # A forked child must not go on with its parent's.
    return next(_of_process.setdefault(os.getpid(), _ports()))


def _ports() -> Iterator[int]:
    """Ports of blocks that this process holds as long as it lives."""
    held = []
    while True:
        first = random.SystemRandom().randrange(_FIRST, _LAST, _BLOCK)
        holder = socket.socket()
        if not _bound(holder, first):
            holder.close()
            continue
        held.append(holder)
        for port in range(first + 1, first + _BLOCK):
            with socket.socket() as probe:
                free = _bound(probe, port)
            if free:
                yield port


def _bound(probe: socket.socket, port: int) -> bool:
    try:
        probe.bind(("127.0.0.1", port))
    except OSError:
        return False
    return True


_of_process: dict[int, Iterator[int]] = {}

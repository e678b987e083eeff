"""Free ports for servers, which no outgoing connection can use.

Other test runs also choose ports, and a port could be taken before the server starts. Ports are
therefore reserved in blocks of 100: the process that listens on the first port of a block owns the
other 99.
"""

from __future__ import annotations

import os
import random
import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

# Below the range of ports for outgoing connections.
_FIRST, _LAST = 15_000, 32_000
_BLOCK = 100


def free_port() -> int:
    """Return a port that no other call returned, in any process."""
    # Per process, because a forked child must not use its parent's ports.
    return next(_of_process.setdefault(os.getpid(), _ports()))


def _ports() -> Iterator[int]:
    """Yield the ports of blocks that this process reserves until it exits."""
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

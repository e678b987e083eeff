"""Whether anybody still reads what a Python worker says.

A query that has enough rows closes the worker's connection. The worker would notice when it writes
for the second time after that; until then a LIMIT would go on calling a service.
"""

from __future__ import annotations

import os
import select
from functools import lru_cache
from pathlib import Path

_DESCRIPTORS = Path("/proc/self/fd")


class Reader:
    """The process at the other end of the worker's connections; call it to ask."""

    def __init__(self) -> None:
        self._poll = select.poll()
        for descriptor in _sockets():
            self._poll.register(descriptor, select.POLLRDHUP | select.POLLHUP | select.POLLERR)

    def __call__(self) -> bool:
        """Tell whether all connections are open."""
        return not self._poll.poll(0)


@lru_cache(maxsize=1)
def _reader(_process: int) -> Reader:
    return Reader()


def reader() -> Reader:
    """Return the reader of this worker; asked for before the worker has connections of its own.

    Should it have some all the same, their end slows calls down and does nothing else.
    """
    return _reader(os.getpid())


def _sockets() -> list[int]:
    found = []
    for path in _DESCRIPTORS.iterdir() if _DESCRIPTORS.exists() else ():
        try:
            if str(path.readlink()).startswith("socket:"):
                found.append(int(path.name))
        except FileNotFoundError:
            continue  # the descriptor of this very listing
    return found

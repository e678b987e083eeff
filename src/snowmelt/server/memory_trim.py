"""Release of allocator memory to the operating system after bursts."""

from __future__ import annotations

import ctypes
import logging

import pyarrow as pa

_log = logging.getLogger("snowmelt.server")


def use_system_memory_pool() -> None:
    """Let Arrow allocate from the C library's heap in this process.

    Its default pool, mimalloc, keeps what other threads than the releasing one have freed: of
    193 MB that a burst of requests added it gave back 64, the C library's heap 112 of 137.
    """
    pa.set_memory_pool(pa.system_memory_pool())


def release_memory() -> None:
    """Give unused pages of Arrow's pool and of the C library's heap back to the system.

    They keep what was freed for the next request. The C library has no such call outside glibc;
    there only Arrow's pool is released. Takes milliseconds, in which other threads go on.
    """
    pa.default_memory_pool().release_unused()
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (AttributeError, OSError) as error:
        _log.debug("this C library cannot release memory: %s", error)

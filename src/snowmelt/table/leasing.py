"""Keeping a lease while work goes on."""

from __future__ import annotations

import contextlib
import os
import platform
import threading
import uuid
from typing import TYPE_CHECKING

from snowmelt.catalog import leases

if TYPE_CHECKING:
    from collections.abc import Iterator

    from snowmelt.catalog.database import Database
    from snowmelt.catalog.leases import Lease
    from snowmelt.clock import Clock


def this_process() -> str:
    """Return what the names of all owners of leases in this process begin with, before a colon."""
    return f"{platform.node()}:{os.getpid()}"


def new_owner() -> str:
    """Return a name under which to hold leases; no other has it."""
    return f"{this_process()}:{uuid.uuid4().hex[:8]}"


@contextlib.contextmanager
def renewed(database: Database, lease: Lease, *, ttl_s: float, clock: Clock) -> Iterator[None]:
    """Renew a lease in the background while the block runs; it lives for `ttl_s` seconds.

    A renewal that fails is not an error here: a commit checks the lease itself.
    """
    done = threading.Event()

    def keep_renewing() -> None:
        while not done.wait(ttl_s / 3):
            with contextlib.suppress(Exception), database.writing() as connection:
                leases.renew(connection, lease, ttl_s=ttl_s, now=clock.now())

    thread = threading.Thread(target=keep_renewing, name="lease", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()

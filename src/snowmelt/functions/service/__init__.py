"""The kit to write services that SQL calls: needs neither Spark nor a web framework.

from snowmelt.functions.service import RemoteService

svc = RemoteService("geo")

@svc.function
def city(lat: float, lon: float) -> str | None: ...

app = svc.asgi()
"""

from __future__ import annotations

from snowmelt.functions.errors import Overloaded, PermanentError
from snowmelt.functions.service.batch_stores import BatchStore, Known, MemoryStore, SqliteStore
from snowmelt.functions.service.context import Context
from snowmelt.functions.service.service import Limits, RemoteService, ServiceOptions
from snowmelt.functions.wire.values import BinaryForm, Formats

__all__ = [
    "BatchStore",
    "BinaryForm",
    "Context",
    "Formats",
    "Known",
    "Limits",
    "MemoryStore",
    "Overloaded",
    "PermanentError",
    "RemoteService",
    "ServiceOptions",
    "SqliteStore",
]

"""SDK for writing services that SQL calls. Requires neither Spark nor a web framework.

`asgi`: the ASGI application of a service.
`http_protocol`: fast path for small requests in uvicorn's HTTP protocol, without ASGI.
`cloud_handlers`: handlers for cloud functions, and a host that runs unmodified Lambda handlers.
`request_response_types`: requests, call context and responses, independent of the server.
`service`: the service with its functions by name.
`deduplicator`: runs each batch once, supports polling, and stores responses in memory or SQLite.
`function_runner`: SQL signatures from annotations, and execution of a function on a batch.

from snowmelt.functions.service import RemoteService

svc = RemoteService("geo")

@svc.function
def city(lat: float, lon: float) -> str | None: ...

app = svc.asgi()
"""

from __future__ import annotations

from snowmelt.functions.errors import Overloaded, PermanentError
from snowmelt.functions.service.deduplicator import BatchStore, Known, MemoryStore, SqliteStore
from snowmelt.functions.service.request_response_types import Context
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

"""Snowmelt: exactly-once streaming ingestion into Iceberg tables that Spark can query.

`errors`: the public error tree.
`clock`, `config`, `config_file`, `backoff`: time, settings, `snowmelt.toml`, retry delays.
`sigv4`, `http_heads`: AWS signatures, heads of HTTP/1.1 messages.
`failpoints`, `tracing`, `jit`: failpoints for tests, OpenTelemetry spans, compiled kernels.
`json`: exact JSON reader and its compiled scanner.
`schema`, `storage`, `blob`, `wire`: columns and types, object stores, blob format, HTTP messages.
`kernels`: compiled text scanners.
`functions`: external functions in SQL, and the SDK for their services.
`catalog`: tables, channels, users and jobs in a SQL database.
`table`, `buckets`: native tables, their migration and compaction; S3 buckets.
`integrity`: integrity checks of stored data, and traces of rows.
`backup`: backup and restoration of an installation.
`replication`: copies of an installation at other sites, and failover.
`load`, `loaders`: COPY (sources, filters, parsers) and the programs that run it.
`select`: S3 Select queries on objects.
`client`: the Python SDK.
`ingest`, `server`: the streaming service and its HTTP endpoints.
`spark`: tables in a Spark session.
`query`: plain queries without Spark.
`cli`, `embedded`, `testing`: the command line, a service in this process, public test support.

The names exported here belong to the SDK. Each is imported at first use, so `import snowmelt` is
fast and loads no other package. Their types are in `__init__.pyi`.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType

__all__ = [
    "AsyncChannel",
    "AsyncClient",
    "Channel",
    "Client",
    "InsertResult",
    "OAuth",
    "OnError",
    "RowError",
    "SnowmeltError",
    "StatementClient",
    "__version__",
    "connect",
    "embedded",
    "errors",
    "stream",
]

_EXPORT_MODULES = {
    "AsyncChannel": "snowmelt.client.async_client",
    "AsyncClient": "snowmelt.client.async_client",
    "Channel": "snowmelt.client.channel",
    "Client": "snowmelt.client.client",
    "InsertResult": "snowmelt.client.channel",
    "OAuth": "snowmelt.client.auth",
    "OnError": "snowmelt.client.channel",
    "RowError": "snowmelt.schema.conversion.row_converter",
    "SnowmeltError": "snowmelt.errors",
    "StatementClient": "snowmelt.client.statements",
    "connect": "snowmelt.client.client",
    "embedded": "snowmelt.embedded",
    "stream": "snowmelt.client.source_streaming",
}


def __getattr__(name: str) -> object:
    if name == "__version__":
        value: object = import_module("importlib.metadata").version("snowmelt")
    elif name == "errors":
        value = import_module("snowmelt.errors")
    elif name in _EXPORT_MODULES:
        value = getattr(import_module(_EXPORT_MODULES[name]), name)
    else:
        raise AttributeError(f"module 'snowmelt' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


class _ExportPreservingModule(ModuleType):
    """Module type that prevents the module `snowmelt.embedded` from hiding the function of that name."""

    def __setattr__(self, name: str, value: object) -> None:
        # The import system assigns a submodule to its package's attribute after loading it.
        if not (name in _EXPORT_MODULES and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _ExportPreservingModule

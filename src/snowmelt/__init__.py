"""Snowmelt: rows in within a second, exactly once, into open tables on Spark.

The names here are the SDK's. Each is imported when it is first used, so `import snowmelt` is cheap
and one part never loads another. Their types are in `__init__.pyi`.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType

__all__ = [
    "Channel",
    "Client",
    "InsertResult",
    "OAuth",
    "OnError",
    "RowError",
    "SnowmeltError",
    "__version__",
    "embedded",
    "errors",
    "stream",
]

_EXPORT_MODULES = {
    "Channel": "snowmelt.client.channel",
    "Client": "snowmelt.client.client",
    "InsertResult": "snowmelt.client.channel",
    "OAuth": "snowmelt.client.auth",
    "OnError": "snowmelt.client.channel",
    "RowError": "snowmelt.schema.conversion.row_converter",
    "SnowmeltError": "snowmelt.errors",
    "embedded": "snowmelt.embedded",
    "stream": "snowmelt.client.streaming",
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


class _PackageModule(ModuleType):
    """Keeps the function `snowmelt.embedded` from being hidden by the module of that name."""

    def __setattr__(self, name: str, value: object) -> None:
        # The import system binds a submodule to its package after loading it.
        if not (name in _EXPORT_MODULES and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _PackageModule

"""External functions: definitions, the caller, the service SDK and proxies for tests.

`signature`: SQL types, arguments and signatures of functions.
`definition`: external functions, API integrations and translators, with their CREATE statements.
`urls`: parsing and normalization of service URLs, and checks of allowed and blocked prefixes.
`errors`: errors of the caller and of the service.
`wire`: the JSON format of batches, with headers, values and compression.
`caller`: conversion of argument columns to batches, requests and result columns.
`service`: the SDK for writing services that SQL calls.
`probe`: sends single batches to a service, for manual checks and tests.
`proxy`: fault injection, recording and replay between a caller and a service.

`snowmelt.functions.service` must not load Spark, a database or a web framework. The names exported
here are therefore imported at first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from snowmelt.functions.caller.plan import CallerOptions

__all__ = ["CallerOptions"]


def __getattr__(name: str) -> object:
    if name == "CallerOptions":
        from snowmelt.functions.caller.plan import CallerOptions

        return CallerOptions
    raise AttributeError(f"module 'snowmelt.functions' has no attribute {name!r}")

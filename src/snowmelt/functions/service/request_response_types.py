"""Requests, their context for functions, and responses, whatever the server.

Errors become responses only here: this module decides which part of an error a caller may read.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field

from snowmelt.errors import SnowmeltError
from snowmelt.functions.errors import Overloaded
from snowmelt.functions.wire import headers as names
from snowmelt.json import exact


@dataclass(frozen=True, slots=True)
class ServiceRequest:
    """What came; header names are in lower case."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes = b""
    query: str = ""


@dataclass(frozen=True, slots=True)
class ServiceResponse:
    """What goes back."""

    status: int
    body: bytes
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BatchResponseBody:
    """What a batch came to: an HTTP status and JSON, not yet compressed or signed."""

    status: int
    body: bytes
    retry_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class Context:
    """One call. A function that has an argument annotated `Context` is given it.

    `headers` has all headers by lower-case name; the properties prefer the base64 twins, which
    are exact.
    """

    function: str
    rows: int
    headers: Mapping[str, str]

    @property
    def query_id(self) -> str | None:
        """The query, the same for all its batches."""
        return self.headers.get(names.QUERY_ID)

    @property
    def batch_id(self) -> str | None:
        """The batch, the same for each attempt at it."""
        return self.headers.get(names.BATCH_ID)

    @property
    def signature(self) -> str | None:
        """The arguments as the caller declared them, such as `(N NUMBER)`."""
        return names.decode_header(self.headers, names.SIGNATURE)

    @property
    def return_type(self) -> str | None:
        """The result as the caller declared it."""
        return names.decode_header(self.headers, names.RETURN_TYPE)

    @property
    def custom(self) -> dict[str, str]:
        """What the HEADERS clause sends, by name without prefix: `custom["volume-measure"]`."""
        return self._collect_headers(names.CUSTOM_PREFIX)

    @property
    def session(self) -> dict[str, str]:
        """What the CONTEXT_HEADERS clause sends, by function: `session["current-user"]`."""
        return self._collect_headers(names.CONTEXT_PREFIX)

    def _collect_headers(self, prefix: str) -> dict[str, str]:
        found = {}
        for name in self.headers:
            if name.startswith(prefix):
                plain = name.removesuffix(names.BASE64_SUFFIX)
                found[plain.removeprefix(prefix)] = names.decode_header(self.headers, plain) or ""
        return found


_LOG = logging.getLogger("snowmelt.functions")


def error_to_response(error: Exception, *, debug: bool = False) -> BatchResponseBody:
    """Return the answer to what went wrong.

    An exception of the author's code is named by its type alone unless `debug`: its text may hold
    what a row holds.
    """
    if isinstance(error, SnowmeltError):
        retry_after_s = error.retry_after if isinstance(error, Overloaded) else None
        return make_error_response(
            error.status, error.code, str(error), retry_after_s=retry_after_s
        )
    _LOG.error("a function failed: %s", type(error).__name__, exc_info=error if debug else None)
    text = f"The function failed with {type(error).__name__}"
    return make_error_response(500, "failed", f"{text}: {error}" if debug else f"{text}.")


def make_error_response(
    status: int, code: str, message: str, *, retry_after_s: float | None = None
) -> BatchResponseBody:
    """Return an error as JSON."""
    body = exact.serialize_json({"error": {"code": code, "message": message}})
    return BatchResponseBody(status, body, retry_after_s)

"""Requests, their context for functions, and responses, independent of the server.

Only this module converts errors to responses, so it alone controls which details of an error
callers receive.
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
    """An HTTP request. Header names are in lower case."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes = b""
    query: str = ""


@dataclass(frozen=True, slots=True)
class ServiceResponse:
    """An HTTP response."""

    status: int
    body: bytes
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BatchResponseBody:
    """Response to a batch before encoding: HTTP status and JSON, uncompressed, without checksum."""

    status: int
    body: bytes
    retry_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class Context:
    """Context of one call, passed to an argument with the annotation `Context`.

    `headers` has all headers by lower-case name. The properties read the base64 duplicates first,
    because these are exact.
    """

    function: str
    rows: int
    headers: Mapping[str, str]

    @property
    def query_id(self) -> str | None:
        """ID of the query. All batches of a query have the same ID."""
        return self.headers.get(names.QUERY_ID)

    @property
    def batch_id(self) -> str | None:
        """ID of the batch. All attempts at a batch have the same ID."""
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
        """Values of the HEADERS clause, by name without prefix: `custom["volume-measure"]`."""
        return self._collect_headers(names.CUSTOM_PREFIX)

    @property
    def session(self) -> dict[str, str]:
        """Values of the CONTEXT_HEADERS clause, by function: `session["current-user"]`."""
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
    """Convert an error to a response.

    Without `debug`, the response shows only the type of an exception of the function, because the
    text may contain row values.
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
    """Return an error response as JSON."""
    body = exact.serialize_json({"error": {"code": code, "message": message}})
    return BatchResponseBody(status, body, retry_after_s)

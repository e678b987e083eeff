"""Responses of the S3 endpoint, each an ASGI application.

An operation may also return any other ASGI application as its response.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, TypeAlias

from snowmelt.buckets.errors import S3Error
from snowmelt.errors import SnowmeltError
from snowmelt.server.error_responses import HostNotAllowed
from snowmelt.server.s3 import xml

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from snowmelt.buckets.checksums import Checksum

_log = logging.getLogger("snowmelt.server")

# Key of an ASGI extension: a `ChunkWriter` that writes a chunk of a chunked body directly.
WRITE_CHUNK = "snowmelt.write_chunk"
ChunkWriter: TypeAlias = "Callable[[list[bytes | memoryview]], Awaitable[None]]"

_INVALID_XML_CHARACTERS = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")


@dataclass(frozen=True, slots=True)
class S3Response:
    """Response with status, headers and a complete body."""

    status: int = HTTPStatus.OK
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response."""
        del receive
        headers = dict(self.headers)
        if self.status not in {HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED}:
            headers.setdefault("content-length", str(len(self.body)))
        await send(make_start_message(self.status, headers))
        body = b"" if scope["method"] == "HEAD" else self.body
        await send({"type": "http.response.body", "body": body})


@dataclass(frozen=True, slots=True)
class S3StreamingResponse:
    """Response with a body that blocking code yields in chunks. Headers include the length."""

    status: int
    headers: Mapping[str, str]
    chunks: Iterator[bytes]
    close: Callable[[], None]
    threads: Executor

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response at the client's speed. Stop if the client disconnects."""
        del scope
        loop = asyncio.get_running_loop()
        gone = asyncio.ensure_future(wait_for_disconnect(receive))
        try:
            chunk = await loop.run_in_executor(self.threads, next, self.chunks, None)
            await send(make_start_message(self.status, self.headers))
            while chunk is not None and not gone.done():
                ahead = loop.run_in_executor(self.threads, next, self.chunks, None)
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
                chunk = await ahead
            await send({"type": "http.response.body", "body": b""})
        finally:
            gone.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await gone
            await loop.run_in_executor(self.threads, self.close)


def xml_response(
    root_name: str, content: xml.XmlContent, headers: Mapping[str, str] | None = None
) -> S3Response:
    """Return a response with an XML document."""
    body = xml.render_document(root_name, content)
    return S3Response(HTTPStatus.OK, {"content-type": "application/xml", **(headers or {})}, body)


def make_checksum_elements(checksum: Checksum | None) -> list[xml.XmlElement]:
    """Return the XML elements of an object's or a part's checksum."""
    if checksum is None:
        return []
    return [(f"Checksum{checksum.algorithm}", checksum.value), ("ChecksumType", checksum.kind)]


def make_owner_elements(name: str) -> list[xml.XmlElement]:
    """Return the XML elements of an owner, which is a user or a role."""
    return [("ID", name), ("DisplayName", name)]


def error_response(error: Exception, *, resource: str, request_id: str) -> S3Response:
    """Convert an exception to an S3 error document. Log server errors."""
    code, status, details = _describe_error(error)
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR and code != "NotImplemented":
        about = {"request_id": request_id, "path": resource, "status": int(status), "error": code}
        _log.warning(
            "S3 request %s on %s answered %d: %s",
            *(request_id, resource, status, error),
            extra=about,
        )
        if code == "InternalError":
            _log.error("S3 request %s failed", request_id, exc_info=error, extra=about)
    headers = {"content-type": "application/xml"}
    if status == HTTPStatus.SERVICE_UNAVAILABLE:
        headers["retry-after"] = "1"
    if status == HTTPStatus.NOT_MODIFIED:
        return S3Response(status, {name: str(value) for name, value in details.items()})
    message = str(error) if code != "InternalError" else str(S3Error(code))
    # Escape characters that XML cannot represent, because messages may quote user data.
    message = _INVALID_XML_CHARACTERS.sub("\ufffd", message)
    elements: list[xml.XmlElement] = [("Code", code), ("Message", message)]
    elements += [(name, str(value)) for name, value in details.items()]
    elements += [("Resource", resource), ("RequestId", request_id), ("HostId", request_id)]
    return S3Response(status, headers, xml.render_document("Error", elements, namespace=None))


def _describe_error(error: Exception) -> tuple[str, int, Mapping[str, object]]:
    # `SelectError` of the package `select` has the same two attributes.
    code = getattr(error, "s3_code", None)
    if code is not None:
        return code, getattr(error, "status_code", 400), getattr(error, "details", {})
    if isinstance(error, HostNotAllowed):
        return "AccessDenied", HTTPStatus.FORBIDDEN, {}
    if isinstance(error, SnowmeltError):
        if error.status == HTTPStatus.PRECONDITION_FAILED:
            return "PreconditionFailed", error.status, {}
        if error.retryable:
            return "ServiceUnavailable", HTTPStatus.SERVICE_UNAVAILABLE, {}
        if error.status < HTTPStatus.INTERNAL_SERVER_ERROR:
            return "InvalidRequest", error.status, {}
    return "InternalError", HTTPStatus.INTERNAL_SERVER_ERROR, {}


def make_start_message(status: int, headers: Mapping[str, str]) -> dict[str, object]:
    """Return the ASGI message that starts a response."""
    return {
        "type": "http.response.start",
        "status": int(status),
        "headers": [
            (name.encode("latin-1"), value.encode("latin-1", "replace"))
            for name, value in headers.items()
        ],
    }


async def wait_for_disconnect(receive: Receive) -> None:
    """Wait until the client closes the connection."""
    while (await receive())["type"] != "http.disconnect":
        pass

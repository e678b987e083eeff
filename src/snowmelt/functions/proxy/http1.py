"""Minimal HTTP/1.1 message reader and encoder for a proxy that must be able to break messages."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from snowmelt.functions.errors import BatchInvalid, BatchTooLarge

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_HEAD_BYTES = 64 * 1024
MAX_BODY_BYTES = 256 * 1024 * 1024
_HOP_BY_HOP_HEADERS = frozenset(
    {"connection", "keep-alive", "transfer-encoding", "content-length", "expect"}
)


@dataclass(frozen=True, slots=True)
class HttpMessage:
    """A request or a response; `start_line` is its first line, header names are in lower case."""

    start_line: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""

    @property
    def method(self) -> str:
        """A request's method."""
        return self.start_line.split(" ")[0]

    @property
    def target(self) -> str:
        """A request's path with its query."""
        return self.start_line.split(" ")[1]

    @property
    def status(self) -> int:
        """A response's status."""
        return int(self.start_line.split(" ")[1])

    def get_end_to_end_headers(self) -> dict[str, str]:
        """Return the headers that are not about one connection."""
        return {
            name: value for name, value in self.headers.items() if name not in _HOP_BY_HOP_HEADERS
        }


async def read_message(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter | None = None
) -> HttpMessage | None:
    """Return the next message, None at the connection's end.

    Args:
        reader: Of the connection.
        writer: Given for requests: it says 100 Continue to a caller that waits for it.

    Raises:
        BatchInvalid: It is not HTTP/1.1.
        BatchTooLarge: The body is larger than MAX_BODY_BYTES.
        asyncio.IncompleteReadError: It breaks off.
    """
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as error:
        if error.partial.strip():
            raise
        return None
    except asyncio.LimitOverrunError:
        raise BatchTooLarge(what="head", limit=MAX_HEAD_BYTES) from None
    first, *lines = head.decode("latin-1").strip().split("\r\n")
    if "HTTP/1." not in first or len(first.split(" ")) < 2:
        raise BatchInvalid(reason="it is not HTTP/1.1")
    headers = {}
    for line in lines:
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    if writer is not None and headers.get("expect", "").lower() == "100-continue":
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    return HttpMessage(
        first, headers, await _read_body(reader, headers, is_request=writer is not None)
    )


async def _read_body(
    reader: asyncio.StreamReader, headers: Mapping[str, str], *, is_request: bool
) -> bytes:
    if "chunked" in headers.get("transfer-encoding", "").lower():
        return await _read_chunked_body(reader)
    length = headers.get("content-length")
    if length is not None:
        if not length.isdigit():
            raise BatchInvalid(reason="its length is no number")
        if int(length) > MAX_BODY_BYTES:
            raise BatchTooLarge(what="body", limit=MAX_BODY_BYTES)
        return await reader.readexactly(int(length))
    return b"" if is_request else await reader.read(MAX_BODY_BYTES)


async def _read_chunked_body(reader: asyncio.StreamReader) -> bytes:
    pieces: list[bytes] = []
    size = 0
    while True:
        line = await reader.readuntil(b"\r\n")
        try:
            length = int(line.partition(b";")[0], 16)
        except ValueError:
            raise BatchInvalid(reason="a chunk has no length") from None
        size += length
        if size > MAX_BODY_BYTES:
            raise BatchTooLarge(what="body", limit=MAX_BODY_BYTES)
        if length == 0:
            while (await reader.readuntil(b"\r\n")) != b"\r\n":
                pass  # trailers
            return b"".join(pieces)
        pieces.append(await reader.readexactly(length))
        await reader.readexactly(2)


def encode_message(message: HttpMessage, *, content_length: int | None = None) -> bytes:
    """Return a message's bytes; `content_length` is announced instead of the true one."""
    headers = message.get_end_to_end_headers()
    headers["content-length"] = str(len(message.body) if content_length is None else content_length)
    lines = [message.start_line, *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + message.body

"""HTTP/1.1 messages for proxies: reads whole messages, and encodes messages that may be corrupt."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field

import httptools

from snowmelt.functions.errors import BatchInvalid, BatchTooLarge
from snowmelt.http_heads import MAX_HEAD_BYTES, add_header, encode_head, encode_header_lines

MAX_BODY_BYTES = 256 * 1024 * 1024
_READ_BYTES = 64 * 1024
_HTTP_OK = 200
_HOP_BY_HOP_HEADERS = frozenset(
    {"connection", "keep-alive", "transfer-encoding", "content-length", "expect"}
)


@dataclass(frozen=True, slots=True)
class HttpMessage:
    """A request or response. `start_line` is its first line. Header names are in lower case."""

    start_line: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""

    @property
    def method(self) -> str:
        """The method of a request."""
        return self.start_line.split(" ")[0]

    @property
    def target(self) -> str:
        """The path of a request with its query."""
        return self.start_line.split(" ")[1]

    def get_end_to_end_headers(self) -> dict[str, str]:
        """Return the headers except for hop-by-hop headers."""
        return {
            name: value for name, value in self.headers.items() if name not in _HOP_BY_HOP_HEADERS
        }


class _MessageCollector:
    """Collector of messages. The parser calls the `on_…` methods in the order of a message."""

    def __init__(self, writer: asyncio.StreamWriter | None) -> None:
        self.messages: deque[HttpMessage] = deque()
        self.is_within_message = False
        self._writer = writer
        self._parser: httptools.HttpRequestParser | httptools.HttpResponseParser
        if writer is None:
            self._parser = httptools.HttpResponseParser(self)
            # Accept lines that end with only a line feed, as the caller does: handwritten services
            # send them.
            self._parser.set_dangerous_leniencies(lenient_optional_cr_before_lf=True)
        else:
            self._parser = httptools.HttpRequestParser(self)

    def feed(self, data: bytes) -> None:
        """Parse the next bytes of a connection."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserCallbackError as error:
            raise error.__context__ or error from None
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            raise BatchInvalid(reason="it is not HTTP/1.1") from None
        if self.is_within_message and not self._is_in_body:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                raise BatchTooLarge(what="head", limit=MAX_HEAD_BYTES)

    def finish(self) -> None:
        """Complete a response that ends with the connection."""
        framed = {"content-length", "transfer-encoding"} & self._headers.keys()
        if self._writer is not None or not self._is_in_body or framed:
            raise asyncio.IncompleteReadError(b"", None)
        self.on_message_complete()

    def on_message_begin(self) -> None:
        """Reset the state for a new message."""
        self.is_within_message, self._is_in_body = True, False
        self._start, self._headers = b"", dict[str, str]()
        self._body = bytearray()
        self._head_bytes = 0

    def on_url(self, target: bytes) -> None:
        """Append a slice of a request's target."""
        self._start += target

    on_status = on_url  # Appends a slice of the reason phrase of a response.

    def on_header(self, name: bytes, value: bytes) -> None:
        """Add a header; ignore trailers."""
        if not self._is_in_body:
            add_header(self._headers, name, value)

    def on_headers_complete(self) -> None:
        """Check the content length and send 100 Continue if the client expects it."""
        self._is_in_body = True
        length = self._headers.get("content-length")
        if length is not None and int(length) > MAX_BODY_BYTES:
            raise BatchTooLarge(what="body", limit=MAX_BODY_BYTES)
        if self._writer is not None and self._headers.get("expect", "").lower() == "100-continue":
            self._writer.write(encode_head(b"HTTP/1.1 100 Continue"))

    def on_body(self, data: bytes) -> None:
        """Append a slice of the body."""
        self._body += data
        if len(self._body) > MAX_BODY_BYTES:
            raise BatchTooLarge(what="body", limit=MAX_BODY_BYTES)

    def on_message_complete(self) -> None:
        """Add the message, unless it is an informational (1xx) response."""
        self.is_within_message = False
        text, version = self._start.decode("latin-1"), self._parser.get_http_version()
        if isinstance(self._parser, httptools.HttpRequestParser):
            first = f"{self._parser.get_method().decode()} {text} HTTP/{version}"
        else:
            status = self._parser.get_status_code()
            if status < _HTTP_OK:
                return
            first = f"HTTP/{version} {status} {text}".rstrip()
        self.messages.append(HttpMessage(first, self._headers, bytes(self._body)))


async def read_messages(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter | None = None
) -> AsyncIterator[HttpMessage]:
    """Yield the messages of a connection until its end.

    Args:
        reader: Source of the messages.
        writer: Stream for 100 Continue if the messages are requests. None: they are responses.

    Raises:
        BatchInvalid: If the data is not HTTP/1.1.
        BatchTooLarge: If a head is larger than MAX_HEAD_BYTES, or a body than MAX_BODY_BYTES.
        asyncio.IncompleteReadError: If the connection ends within a message.
    """
    collector = _MessageCollector(writer)
    while data := await reader.read(_READ_BYTES):
        collector.feed(data)
        while collector.messages:
            yield collector.messages.popleft()
    if collector.is_within_message:
        collector.finish()
        yield collector.messages.popleft()


def encode_message(message: HttpMessage) -> bytes:
    """Return the bytes of a message."""
    headers = message.get_end_to_end_headers() | {"content-length": str(len(message.body))}
    lines = encode_header_lines(
        (name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()
    )
    return encode_head(message.start_line.encode("latin-1"), lines) + message.body

"""Encode the heads of HTTP/1.1 messages, and collect headers that httptools parsed."""

from __future__ import annotations

from collections.abc import Iterable

MAX_HEAD_BYTES = 64 * 1024


def encode_header_lines(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Encode headers as lines. The caller must reject names and values that a line cannot contain."""
    return b"".join([b"%b: %b\r\n" % header for header in headers])


def encode_head(start_line: bytes, *header_lines: bytes) -> bytes:
    """Return the head of a message from its first line and results of `encode_header_lines`."""
    return b"".join((start_line, b"\r\n", *header_lines, b"\r\n"))


def add_header(headers: dict[str, str], name: bytes, value: bytes) -> None:
    """Add a header by its lower-case name. Join repeated headers with commas (RFC 9110).

    Whitespace around a value is not part of it (section 5.5), but httptools keeps trailing
    whitespace.
    """
    key, text = name.decode("latin-1").lower(), value.strip(b" \t").decode("latin-1")
    known = headers.get(key)
    headers[key] = text if known is None else f"{known}, {text}"

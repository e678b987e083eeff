"""Heads of HTTP/1.1 messages: header lines and heads as bytes, headers as httptools reports them."""

from __future__ import annotations

from collections.abc import Iterable

MAX_HEAD_BYTES = 64 * 1024


def encode_header_lines(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return headers as they are sent; what a line cannot hold is the caller's to refuse."""
    return b"".join([b"%b: %b\r\n" % header for header in headers])


def encode_head(start_line: bytes, *header_lines: bytes) -> bytes:
    """Return the head of a message from its first line and from results of `encode_header_lines`."""
    return b"".join((start_line, b"\r\n", *header_lines, b"\r\n"))


def add_header(headers: dict[str, str], name: bytes, value: bytes) -> None:
    """Add a header by its lower-case name; one that comes again is a list, as RFC 9110 says.

    Blanks around a value are no part of it (section 5.5); httptools keeps those behind it.
    """
    key, text = name.decode("latin-1").lower(), value.strip(b" \t").decode("latin-1")
    known = headers.get(key)
    headers[key] = text if known is None else f"{known}, {text}"

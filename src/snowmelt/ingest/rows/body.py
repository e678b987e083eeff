"""Decompress request bodies within a size limit, and parse their lines."""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec
import pyarrow as pa

from snowmelt.errors import BodyTooLarge, BodyUnreadable

_READ_SIZE_BYTES = 1 << 20
_CODECS_BY_ENCODING = {"zstd": "zstd", "gzip": "gzip", "x-gzip": "gzip"}
_decoder = msgspec.json.Decoder()
_DECODE_ERRORS = (msgspec.DecodeError, UnicodeError, RecursionError)


@dataclass(frozen=True, slots=True)
class ParsedBody:
    """The rows of a body in order, and the errors of invalid lines.

    Errors are keyed by line number, from 0. Blank lines are not counted.
    """

    rows: list[Mapping[str, object]]
    errors_by_line: dict[int, str]

    @property
    def line_count(self) -> int:
        """Number of lines that are not blank."""
        return len(self.rows) + len(self.errors_by_line)


def decompress_body(body: bytes, encoding: str, max_bytes: int, declared_bytes: int = 0) -> bytes:
    """Decode the content encoding of a body. A correct declared size makes it faster.

    Raises:
        BodyUnreadable: If the encoding is unknown, or the bytes are invalid.
        BodyTooLarge: If the result exceeds `max_bytes`.
    """
    encoding = encoding.strip().lower()
    if encoding in {"", "identity"}:
        if len(body) > max_bytes:
            raise BodyTooLarge(limit=max_bytes)
        return body
    codec = _CODECS_BY_ENCODING.get(encoding)
    if codec is None:
        raise BodyUnreadable(encoding=repr(encoding), reason="only zstd and gzip are known")
    if codec == "zstd" and 0 < declared_bytes <= max_bytes:
        with contextlib.suppress(OSError):
            return bytes(pa.decompress(body, declared_bytes, codec, asbytes=True))
    pieces: list[bytes] = []
    size = 0
    try:
        with pa.CompressedInputStream(pa.BufferReader(body), codec) as stream:
            while piece := stream.read(_READ_SIZE_BYTES):
                size += len(piece)
                if size > max_bytes:
                    raise BodyTooLarge(limit=max_bytes)
                pieces.append(piece)
    except (OSError, pa.ArrowException, zlib.error) as error:
        raise BodyUnreadable(encoding=encoding, reason=str(error)) from None
    return b"".join(pieces)


def parse_json_lines(data: bytes) -> ParsedBody:
    """Parse newline-delimited JSON. Skip blank lines, which the official SDK sends."""
    try:
        rows = _decoder.decode_lines(data)
    except _DECODE_ERRORS:
        return _parse_one_by_one(data)
    # The decoder accepts several objects on a line, and an object on several lines. Here each line
    # must be a row, because errors refer to rows by line number.
    return (
        ParsedBody(rows, {}) if len(rows) == count_nonblank_lines(data) else _parse_one_by_one(data)
    )


def count_nonblank_lines(data: bytes) -> int:
    """Return the number of lines that are not blank."""
    return sum(map(bool, map(bytes.strip, data.split(b"\n"))))


def _parse_one_by_one(data: bytes) -> ParsedBody:
    rows: list[Mapping[str, object]] = []
    unreadable: dict[int, str] = {}
    given = (line for line in data.split(b"\n") if line.strip())
    for number, line in enumerate(given):
        try:
            rows.append(_decoder.decode(line))
        except _DECODE_ERRORS as error:
            unreadable[number] = f"line {number} is no JSON: {error}"
    return ParsedBody(rows, unreadable)

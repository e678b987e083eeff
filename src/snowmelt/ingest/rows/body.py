"""Bodies of requests: unpacked within a limit, and read line by line."""

from __future__ import annotations

import contextlib
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

from snowmelt.errors import BodyTooLarge, BodyUnreadable

if TYPE_CHECKING:
    from collections.abc import Mapping

_PIECE_BYTES = 1 << 20
_PACKED = {"zstd": "zstd", "gzip": "gzip", "x-gzip": "gzip"}
_decoder = msgspec.json.Decoder()
_UNREADABLE = (msgspec.DecodeError, UnicodeError, RecursionError)


@dataclass(frozen=True, slots=True)
class Lines:
    """The rows of a body in their order, and by line number (from 0, blanks not counted) what is wrong with lines that are no JSON.

    Such a line is not among `rows`.
    """

    rows: list[Mapping[str, object]]
    unreadable: dict[int, str]

    @property
    def count(self) -> int:
        """Lines that are not blank."""
        return len(self.rows) + len(self.unreadable)


def unpacked(body: bytes, encoding: str, limit: int, told: int = 0) -> bytes:
    """Return a body without its content encoding.

    Args:
        body: As it came.
        encoding: The header's text.
        limit: Bytes that may come out.
        told: How many will, as the sender says; when that is true it is done in one step.

    Raises:
        BodyUnreadable: An encoding that is not known, or bytes that are not of it.
        BodyTooLarge: More than `limit` bytes come out.
    """
    encoding = encoding.strip().lower()
    if encoding in {"", "identity"}:
        if len(body) > limit:
            raise BodyTooLarge(limit=limit)
        return body
    codec = _PACKED.get(encoding)
    if codec is None:
        raise BodyUnreadable(encoding=repr(encoding), reason="only zstd and gzip are known")
    if codec == "zstd" and 0 < told <= limit:
        with contextlib.suppress(OSError):
            return bytes(pa.decompress(body, told, codec, asbytes=True))
    pieces: list[bytes] = []
    size = 0
    try:
        with pa.CompressedInputStream(pa.BufferReader(body), codec) as stream:
            while piece := stream.read(_PIECE_BYTES):
                size += len(piece)
                if size > limit:
                    raise BodyTooLarge(limit=limit)
                pieces.append(piece)
    except (OSError, pa.ArrowException, zlib.error) as error:
        raise BodyUnreadable(encoding=encoding, reason=str(error)) from None
    return b"".join(pieces)


def lines_of(data: bytes) -> Lines:
    """Read newline-delimited JSON; blank lines count for nothing, as the official SDK leaves some."""
    try:
        rows = _decoder.decode_lines(data)
    except _UNREADABLE:
        return _one_by_one(data)
    # The decoder also takes several objects on a line, and one on several; a row is a line here,
    # whatever else is in the body: by its number the line is found again.
    return Lines(rows, {}) if len(rows) == line_count(data) else _one_by_one(data)


def line_count(data: bytes) -> int:
    """Return how many lines are not blank."""
    return sum(map(bool, map(bytes.strip, data.split(b"\n"))))


def _one_by_one(data: bytes) -> Lines:
    rows: list[Mapping[str, object]] = []
    unreadable: dict[int, str] = {}
    given = (line for line in data.split(b"\n") if line.strip())
    for number, line in enumerate(given):
        try:
            rows.append(_decoder.decode(line))
        except _UNREADABLE as error:
            unreadable[number] = f"line {number} is no JSON: {error}"
    return Lines(rows, unreadable)

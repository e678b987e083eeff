"""The frames of an answer, byte by byte (specification of Select, §1.7).

A frame: total length, length of headers, CRC-32 of these eight bytes, headers, payload, CRC-32
of everything before; numbers are unsigned, 32 bits, big endian.
"""

from __future__ import annotations

import struct
from zlib import crc32

_PRELUDE = struct.Struct(">II")
_CHECKSUM = struct.Struct(">I")
_OVERHEAD = _PRELUDE.size + 2 * _CHECKSUM.size
_TEXT = 7
# Some decoders take no value beyond 32 KiB; characters have up to four bytes.
_LONGEST_VALUE = 8000


def _header(name: str, value: str) -> bytes:
    encoded = value[:_LONGEST_VALUE].encode(errors="replace")
    head = struct.pack(">B", len(name)) + name.encode() + struct.pack(">BH", _TEXT, len(encoded))
    return head + encoded


def _frame(headers: bytes, payload: bytes = b"") -> bytes:
    prelude = _PRELUDE.pack(_OVERHEAD + len(headers) + len(payload), len(headers))
    start = prelude + _CHECKSUM.pack(crc32(prelude)) + headers
    return b"".join((start, payload, _CHECKSUM.pack(crc32(payload, crc32(start)))))


def _event(kind: str, content: str | None = None) -> bytes:
    typed = b"" if content is None else _header(":content-type", content)
    return _header(":message-type", "event") + typed + _header(":event-type", kind)


_RECORDS = _event("Records", "application/octet-stream")
_PROGRESS = _event("Progress", "text/xml")
_STATS = _event("Stats", "text/xml")

CONT = _frame(_event("Cont"))
END = _frame(_event("End"))


def records(payload: bytes) -> bytes:
    """Return a frame of output."""
    return _frame(_RECORDS, payload)


def progress(scanned: int, processed: int, returned: int) -> bytes:
    """Return a frame that tells bytes read, bytes after decompression and bytes of output."""
    return _frame(_PROGRESS, _counts("Progress", scanned, processed, returned))


def stats(scanned: int, processed: int, returned: int) -> bytes:
    """Return the frame before the last, with the same counts as `progress`."""
    return _frame(_STATS, _counts("Stats", scanned, processed, returned))


def error(code: str, message: str) -> bytes:
    """Return the frame that ends an answer in the middle; nothing follows it."""
    return _frame(
        _header(":message-type", "error")
        + _header(":error-code", code)
        + _header(":error-message", message)
    )


def _counts(name: str, scanned: int, processed: int, returned: int) -> bytes:
    return (
        f'<?xml version="1.0" encoding="UTF-8"?><{name}><BytesScanned>{scanned}</BytesScanned>'
        f"<BytesProcessed>{processed}</BytesProcessed><BytesReturned>{returned}</BytesReturned>"
        f"</{name}>"
    ).encode()

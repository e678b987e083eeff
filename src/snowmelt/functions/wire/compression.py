"""Compression and Content-MD5 checksums of bodies."""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import re
import zlib
from importlib import import_module
from types import ModuleType

from snowmelt.functions.errors import BatchInvalid, BatchTooLarge

_fast_zlib: ModuleType = zlib
with contextlib.suppress(ImportError):  # `isal` is 4 times as fast, but some platforms lack it.
    _fast_zlib = import_module("isal.isal_zlib")

_GZIP_MAGIC = b"\x1f\x8b"
_GZIP_WINDOW_BITS = 16 + zlib.MAX_WBITS
_COMPRESSION_LEVEL = 1
_BYTES_REPR_PATTERN = re.compile(r"b'([^']*)'")


def decompress(body: bytes, encoding: str | None, *, max_bytes: int, strict: bool = False) -> bytes:
    """Undo a Content-Encoding.

    Args:
        body: Body as received.
        encoding: Value of the Content-Encoding header. Several encodings are undone in reverse
            order.
        max_bytes: Maximum size of the result in bytes, to protect against decompression bombs.
        strict: Reject a body that is not compressed although the header says so. Not set for
            requests, because gateways decompress requests but keep the header.

    Raises:
        BatchInvalid: If the encoding is unknown or the data is corrupt.
        BatchTooLarge: If the body or the result is larger than `max_bytes`.
    """
    if len(body) > max_bytes:
        raise BatchTooLarge(what="body", limit=max_bytes)
    for name in reversed((encoding or "").lower().split(",")):
        match name.strip():
            case "" | "identity":
                continue
            case "gzip" | "x-gzip":
                if strict or body.startswith(_GZIP_MAGIC):
                    body = _inflate(body, _GZIP_WINDOW_BITS, max_bytes)
            case "deflate":
                if strict or body[:1] not in (b"{", b"[", b" ", b"\n"):
                    # The standard specifies a zlib wrapper, but many clients send raw deflate.
                    wrapped = (
                        len(body) >= 2
                        and body[0] & 0x0F == 8
                        and (body[0] << 8 | body[1]) % 31 == 0
                    )
                    window = zlib.MAX_WBITS if wrapped else -zlib.MAX_WBITS
                    body = _inflate(body, window, max_bytes)
            case other:
                raise BatchInvalid(reason=f"unknown content encoding {other!r}")
    return body


def _inflate(body: bytes, window_bits: int, max_bytes: int) -> bytes:
    pieces: list[bytes] = []
    left = max_bytes
    while body:
        member = zlib.decompressobj(window_bits)
        try:
            piece = member.decompress(body, left + 1)
        except zlib.error:
            raise BatchInvalid(reason="the body is not compressed as its header says") from None
        left -= len(piece)
        if left < 0:
            raise BatchTooLarge(what="decompressed body", limit=max_bytes)
        if not member.eof:
            raise BatchInvalid(reason="the compressed body is truncated")
        pieces.append(piece)
        body = member.unused_data
        if body and window_bits != _GZIP_WINDOW_BITS:
            raise BatchInvalid(reason="bytes follow the compressed body")
    return b"".join(pieces)


def compress(body: bytes, encoding: str) -> bytes:
    """Compress a body at the fastest level. `encoding` is `gzip` or `deflate` (with zlib wrapper)."""
    window = _GZIP_WINDOW_BITS if encoding == "gzip" else zlib.MAX_WBITS
    compressor = _fast_zlib.compressobj(_COMPRESSION_LEVEL, zlib.DEFLATED, window)
    return bytes(compressor.compress(body) + compressor.flush())


def negotiate_encoding(accept_encoding: str | None) -> str | None:
    """Return a compression that an Accept-Encoding header accepts. Prefers gzip to deflate."""
    if not accept_encoding:
        return None
    names = set()
    for piece in accept_encoding.lower().split(","):
        name, _, parameters = piece.partition(";")
        if parameters.replace(" ", "") not in {"q=0", "q=0.0", "q=0.00", "q=0.000"}:
            names.add(name.strip())
    if "gzip" in names:
        return "gzip"
    return "deflate" if "deflate" in names else None


def compute_content_md5(body: bytes) -> str:
    """Return the Content-MD5 of a body: its digest in base64."""
    digest = hashlib.md5(body, usedforsecurity=False).digest()
    return base64.b64encode(digest).decode("ascii")


def is_content_md5_valid(content_md5: str, received: bytes, decompressed: bytes) -> bool:
    """Return True if a Content-MD5 matches the received or the decompressed bytes.

    Both are valid, because services hash the text before their gateway compresses it.
    """
    # Services based on the published sample send the repr of bytes (b'…'); accept it.
    content_md5 = _BYTES_REPR_PATTERN.sub(r"\1", content_md5.strip())
    try:
        digest = base64.b64decode(content_md5, validate=True)
    except binascii.Error:
        return False
    bodies = (received,) if received is decompressed else (received, decompressed)
    return any(hashlib.md5(body, usedforsecurity=False).digest() == digest for body in bodies)

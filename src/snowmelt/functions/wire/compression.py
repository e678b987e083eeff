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
with contextlib.suppress(ImportError):  # four times as fast, and not everywhere
    _fast_zlib = import_module("isal.isal_zlib")

_GZIP_MAGIC = b"\x1f\x8b"
_GZIP_WINDOW_BITS = 16 + zlib.MAX_WBITS
_COMPRESSION_LEVEL = 1
_BYTES_REPR_PATTERN = re.compile(r"b'([^']*)'")


def decompress(body: bytes, encoding: str | None, *, max_bytes: int, strict: bool = False) -> bytes:
    """Undo a Content-Encoding.

    `encoding`: The header's value; several are undone from the last.
    `max_bytes`: Largest result in bytes, so that a small bomb stays small.
    `strict`: Refuse a body that is not compressed as the header says. Gateways decompress
        requests and leave the header, so what receives requests is not strict.

    Raises:
        BatchInvalid: The encoding is unknown, or the bytes are damaged.
        BatchTooLarge: The result is larger than the limit.
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
                    # Zlib's wrapping, which the standard means, or raw deflate, which many send.
                    wrapped = (
                        len(body) >= 2
                        and body[0] & 0x0F == 8
                        and (body[0] << 8 | body[1]) % 31 == 0
                    )
                    window = zlib.MAX_WBITS if wrapped else -zlib.MAX_WBITS
                    body = _inflate(body, window, max_bytes)
            case other:
                raise BatchInvalid(reason=f"content encoding {other!r} is not known")
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
            raise BatchInvalid(reason="the compressed body breaks off")
        pieces.append(piece)
        body = member.unused_data if window_bits == _GZIP_WINDOW_BITS else b""
    return b"".join(pieces)


def compress(body: bytes, encoding: str) -> bytes:
    """Compress for speed; `encoding` is `gzip` or `deflate` (with zlib's wrapping)."""
    window = _GZIP_WINDOW_BITS if encoding == "gzip" else zlib.MAX_WBITS
    compressor = _fast_zlib.compressobj(_COMPRESSION_LEVEL, zlib.DEFLATED, window)
    return bytes(compressor.compress(body) + compressor.flush())


def negotiate_encoding(accept_encoding: str | None) -> str | None:
    """Return the compression that an Accept-Encoding header asks for, gzip before deflate."""
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
    """Return a body's Content-MD5: the digest in base64."""
    digest = hashlib.md5(body, usedforsecurity=False).digest()
    return base64.b64encode(digest).decode("ascii")


def is_content_md5_valid(content_md5: str, received: bytes, decompressed: bytes) -> bool:
    """Tell whether a Content-MD5 fits the bytes as they came or as they were compressed from.

    Services hash the text and leave compression to their gateway, so either is right.
    """
    # Who copies the published sample into a framework sends what Python shows of bytes: b'…'.
    content_md5 = _BYTES_REPR_PATTERN.sub(r"\1", content_md5.strip())
    try:
        digest = base64.b64decode(content_md5, validate=True)
    except binascii.Error:
        return False
    bodies = (received,) if received is decompressed else (received, decompressed)
    return any(hashlib.md5(body, usedforsecurity=False).digest() == digest for body in bodies)

"""Compression and checksums of bodies."""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import re
import zlib
from importlib import import_module
from typing import TYPE_CHECKING

from snowmelt.functions.errors import BatchInvalid, BatchTooLarge

if TYPE_CHECKING:
    from types import ModuleType

_fast: ModuleType = zlib
with contextlib.suppress(ImportError):  # four times as fast, and not everywhere
    _fast = import_module("isal.isal_zlib")

_GZIP_MAGIC = b"\x1f\x8b"
_GZIP_WINDOW = 16 + zlib.MAX_WBITS
_LEVEL = 1
_SHOWN_BYTES = re.compile(r"b'([^']*)'")


def decoded(body: bytes, encoding: str | None, *, limit: int, strict: bool = False) -> bytes:
    """Undo a Content-Encoding.

    Args:
        body: As it came.
        encoding: The header's value; several are undone from the last.
        limit: Largest result in bytes, so that a small bomb stays small.
        strict: Refuse a body that is not compressed as the header says. Gateways decompress
            requests and leave the header, so what receives requests is not strict.

    Raises:
        BatchInvalid: The encoding is unknown, or the bytes are damaged.
        BatchTooLarge: The result is larger than the limit.
    """
    if len(body) > limit:
        raise BatchTooLarge(what="body", limit=limit)
    for name in reversed((encoding or "").lower().split(",")):
        match name.strip():
            case "" | "identity":
                continue
            case "gzip" | "x-gzip":
                if strict or body.startswith(_GZIP_MAGIC):
                    body = _inflate(body, _GZIP_WINDOW, limit)
            case "deflate":
                if strict or body[:1] not in (b"{", b"[", b" ", b"\n"):
                    body = _inflate(body, _deflate_window(body), limit)
            case other:
                raise BatchInvalid(reason=f"content encoding {other!r} is not known")
    return body


def _deflate_window(body: bytes) -> int:
    """Tell zlib's wrapping, which the standard means, from raw deflate, which many send."""
    wrapped = len(body) >= 2 and body[0] & 0x0F == 8 and (body[0] << 8 | body[1]) % 31 == 0
    return zlib.MAX_WBITS if wrapped else -zlib.MAX_WBITS


def _inflate(body: bytes, window: int, limit: int) -> bytes:
    pieces: list[bytes] = []
    left = limit
    while body:
        member = zlib.decompressobj(window)
        try:
            piece = member.decompress(body, left + 1)
        except zlib.error:
            raise BatchInvalid(reason="the body is not compressed as its header says") from None
        left -= len(piece)
        if left < 0:
            raise BatchTooLarge(what="decompressed body", limit=limit)
        if not member.eof:
            raise BatchInvalid(reason="the compressed body breaks off")
        pieces.append(piece)
        body = member.unused_data if window == _GZIP_WINDOW else b""
    return b"".join(pieces)


def encoded(body: bytes, encoding: str) -> bytes:
    """Compress for speed; `encoding` is `gzip` or `deflate` (with zlib's wrapping)."""
    window = _GZIP_WINDOW if encoding == "gzip" else zlib.MAX_WBITS
    compressor = _fast.compressobj(_LEVEL, zlib.DEFLATED, window)
    return bytes(compressor.compress(body) + compressor.flush())


def accepted(header: str | None) -> str | None:
    """Return the compression that an Accept-Encoding header asks for, gzip before deflate."""
    if not header:
        return None
    names = set()
    for piece in header.lower().split(","):
        name, _, parameters = piece.partition(";")
        if parameters.replace(" ", "") not in {"q=0", "q=0.0", "q=0.00", "q=0.000"}:
            names.add(name.strip())
    if "gzip" in names:
        return "gzip"
    return "deflate" if "deflate" in names else None


def md5(body: bytes) -> str:
    """Return a body's Content-MD5: the digest in base64."""
    digest = hashlib.md5(body, usedforsecurity=False).digest()
    return base64.b64encode(digest).decode("ascii")


def md5_matches(header: str, raw: bytes, plain: bytes) -> bool:
    """Tell whether a Content-MD5 fits the bytes as they came or as they were compressed from.

    Services hash the text and leave compression to their gateway, so either is right.
    """
    # Who copies the published sample into a framework sends what Python shows of bytes: b'…'.
    header = _SHOWN_BYTES.sub(r"\1", header.strip())
    try:
        digest = base64.b64decode(header, validate=True)
    except binascii.Error:
        return False
    bodies = (raw,) if raw is plain else (raw, plain)
    return any(hashlib.md5(body, usedforsecurity=False).digest() == digest for body in bodies)

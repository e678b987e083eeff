"""GZip, BZip, Xz and Lz4: a member is decompressed as its header says, with checked sums."""

from __future__ import annotations

import bz2
import functools
import lzma
from typing import cast

import lz4.frame
from isal import igzip_lib

from snowmelt.errors import LoadRefused
from snowmelt.load.definition import Definition, Parameter
from snowmelt.load.filters.decompression import Codec, Decoder, Decompressor

# What `xz -9` needs is 65 MiB; a file that wants more is not read.
_XZ_MEMORY = 128 * 1024 * 1024
_XZ_MAGIC = b"\xfd7zXZ\x00"
_LZMA_MAGIC = b"\x5d\x00\x00"
_LZ4_MAGIC = b"\x04\x22\x4d\x18"
_LZ4_SKIPPABLE = b"\x2a\x4d\x18"

# Its package says that it is an error, and means that it is a class of errors.
_ISAL_ERROR = cast("type[Exception]", igzip_lib.IsalError)

MAX_OUTPUT = Parameter("max_output", int)


def _gzip(head: bytes) -> Decoder | None:
    if head == b"\x1f\x8b":
        return igzip_lib.IgzipDecompressor(flag=igzip_lib.DECOMP_GZIP)
    # Zlib: method 8 and a check sum of its two bytes. Vertica's filter takes both.
    if len(head) == 2 and head[0] & 15 == 8 and int.from_bytes(head, "big") % 31 == 0:
        return igzip_lib.IgzipDecompressor(flag=igzip_lib.DECOMP_ZLIB)
    return None


def _bzip(head: bytes) -> Decoder | None:
    return bz2.BZ2Decompressor() if head == b"BZh" else None


def _xz(head: bytes) -> Decoder | None:
    if head != _XZ_MAGIC and not head.startswith(_LZMA_MAGIC):
        return None
    return lzma.LZMADecompressor(memlimit=_XZ_MEMORY)


def _lz4(head: bytes) -> Decoder | None:
    skippable = head[1:] == _LZ4_SKIPPABLE and 0x50 <= head[0] <= 0x5F
    return lz4.frame.LZ4FrameDecompressor() if head == _LZ4_MAGIC or skippable else None


_GZIP = Codec("gzip", 2, _gzip, (_ISAL_ERROR,), padded=True)
_BZIP = Codec("bzip2", 3, _bzip, (OSError, ValueError))
_XZ = Codec("xz", 6, _xz, (lzma.LZMAError,), padded=True)
_LZ4 = Codec("lz4", 4, _lz4, (RuntimeError,))


def _make(codec: Codec, max_output: int | None = None) -> Decompressor:
    check_max_output(codec.name, max_output)
    return Decompressor(codec, max_output)


def check_max_output(what: str, max_output: int | None) -> None:
    """Check the limit of a decompressor's output, in bytes.

    Raises:
        LoadRefused: It is below 1.
    """
    if max_output is not None and max_output < 1:
        raise LoadRefused(what=what, reason=f"max_output is bytes, 1 or more, not {max_output}")


GZIP = Definition("GZip", functools.partial(_make, _GZIP), (MAX_OUTPUT,))
BZIP = Definition("BZip", functools.partial(_make, _BZIP), (MAX_OUTPUT,))
XZ = Definition("Xz", functools.partial(_make, _XZ), (MAX_OUTPUT,))
LZ4 = Definition("Lz4", functools.partial(_make, _LZ4), (MAX_OUTPUT,))

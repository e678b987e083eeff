"""Compressed objects: the text they hold, or the error that tells what is wrong with them."""

from __future__ import annotations

import bz2
import gzip
import threading
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from snowmelt.select.errors import SelectError
from snowmelt.select.formats.byte_streams import open_decompressed_stream
from support.memory_objects import MemoryObject

TEXT = b"".join(b"%d,some text,%d\n" % (i, i * i) for i in range(60_000))
PACK: dict[str, Callable[[bytes], bytes]] = {
    "GZIP": gzip.compress,
    "BZIP2": bz2.compress,
    "ZSTD": lambda data: pa.compress(data, codec="zstd", asbytes=True),
}
FORMATS = sorted(PACK)


def text_of(data: Any, compression: str, *, piece: int = 1 << 30) -> bytes:
    stream = open_decompressed_stream(MemoryObject(data, piece=piece), compression)
    view = memoryview(bytearray(70_001))
    parts = []
    try:
        while count := stream.read_into(view):
            parts.append(bytes(view[:count]))
        assert stream.read_into(view) == 0
        assert (stream.scanned_bytes, stream.processed_bytes) == (len(data), sum(map(len, parts)))
    finally:
        stream.close()
    return b"".join(parts)


@pytest.mark.parametrize("compression", FORMATS)
@pytest.mark.parametrize("piece", [1 << 30, 1013])
def test_the_text_is_what_was_packed(compression: str, piece: int) -> None:
    assert text_of(PACK[compression](TEXT), compression, piece=piece) == TEXT


@pytest.mark.parametrize("compression", FORMATS)
@pytest.mark.parametrize("piece", [1 << 30, 7])
def test_concatenated_members_are_one_text(compression: str, piece: int) -> None:
    pack = PACK[compression]
    data = pack(b"one\n") + pack(b"") + pack(b"two\n") + pack(b"three")
    assert text_of(data, compression, piece=piece) == b"one\ntwo\nthree"


@pytest.mark.parametrize("compression", ["GZIP", "BZIP2"])
def test_zeros_behind_the_last_member_are_padding(compression: str) -> None:
    assert text_of(PACK[compression](b"one\n") + bytes(600_000), compression) == b"one\n"


@pytest.mark.parametrize("compression", FORMATS)
@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda data: data[:-1], id="last byte missing"),
        pytest.param(lambda data: data[: len(data) // 2], id="half"),
        pytest.param(lambda data: data[:3], id="header only"),
        pytest.param(lambda data: b"", id="empty"),
        pytest.param(lambda data: data + b"something else", id="garbage behind"),
    ],
)
def test_an_object_that_breaks_off_or_goes_on_is_an_error(
    compression: str, spoil: Callable[[Any], Any] | Callable[[Any], bytes]
) -> None:
    with pytest.raises(SelectError, match="memory could not be decompressed") as refused:
        text_of(spoil(PACK[compression](TEXT)), compression)
    assert refused.value.s3_code == "TruncatedInput"


def test_a_wrong_checksum_is_an_error() -> None:
    data = bytearray(gzip.compress(TEXT))
    data[-6] ^= 1
    with pytest.raises(SelectError) as refused:
        text_of(bytes(data), "GZIP")
    assert refused.value.s3_code == "TruncatedInput"


@pytest.mark.parametrize("compression", FORMATS)
def test_an_object_that_is_something_else_is_told_apart(compression: str) -> None:
    with pytest.raises(SelectError, match="begins with the bytes") as refused:
        open_decompressed_stream(MemoryObject(TEXT), compression)
    assert refused.value.s3_code == "InvalidCompressionFormat"


@pytest.mark.slow
@pytest.mark.parametrize("compression", FORMATS)
def test_closing_early_ends_the_thread(compression: str) -> None:
    before = threading.active_count()
    stream = open_decompressed_stream(MemoryObject(PACK[compression](TEXT * 5)), compression)
    stream.read_into(memoryview(bytearray(10)))
    stream.close()
    stream.close()
    assert threading.active_count() == before
    assert stream.read_into(memoryview(bytearray(10))) == 0


@pytest.mark.slow
def test_what_the_source_raises_reaches_the_reader() -> None:
    class Replaced(MemoryObject):
        def read_into(self, offset: int, view: memoryview[int]) -> int:
            if offset > 100_000:
                raise SelectError("InternalError", "the object was replaced")
            return super().read_into(offset, view)

    for compression in ("GZIP", "ZSTD"):
        stream = open_decompressed_stream(Replaced(PACK[compression](TEXT * 3)), compression)
        view = memoryview(bytearray(100_000))
        with pytest.raises(SelectError, match="was replaced"):
            list(iter(lambda: stream.read_into(view), 0))  # noqa: B023
        stream.close()

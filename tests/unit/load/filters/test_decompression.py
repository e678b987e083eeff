"""Compressed files come back whole, in bounded pieces, and broken ones say where."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import lzma
import random
import tracemalloc
import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import lz4.frame
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from snowmelt.errors import LoadRefused, PhaseFailed
from snowmelt.load.filters import definition
from snowmelt.load.phase_definition import PhaseDefinition
from snowmelt.load.phase_protocols import ByteReader
from support.phases import built

if TYPE_CHECKING:
    from collections.abc import Iterator

COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "GZip": gzip.compress,
    "BZip": bz2.compress,
    "Zstd": zstandard.ZstdCompressor(write_checksum=True).compress,
    "Lz4": lambda data: lz4.frame.compress(data, content_checksum=True),
    "Xz": lzma.compress,
}
TEXT = random.Random(7).randbytes(50_000) + b"a line of text\n" * 20_000
MIB = 2**20


def pieces(data: bytes, size: int) -> Iterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


def undone(name: str, data: bytes, size: int = MIB, **parameters: object) -> bytes:
    made = built(definition(name), parameters)
    return b"".join(made.run(ByteReader(pieces(data, size))))


@pytest.mark.parametrize("size", [1, 7, 4096, MIB])
@pytest.mark.parametrize("name", COMPRESS)
def test_what_was_compressed_comes_back_however_it_is_cut(name: str, size: int) -> None:
    text = TEXT[45_000:60_000] if size == 1 else TEXT
    assert undone(name, COMPRESS[name](text), size) == text


@pytest.mark.parametrize("name", COMPRESS)
def test_members_follow_one_another(name: str) -> None:
    parts = [b"one", b"", TEXT, b"three" * 9]
    data = b"".join(map(COMPRESS[name], parts))
    assert undone(name, data) == b"".join(parts)
    assert undone(name, data, 5) == b"".join(parts)


@pytest.mark.parametrize("name", COMPRESS)
def test_many_small_members_take_time_by_their_bytes(name: str) -> None:
    member = COMPRESS[name](b"x" * 40)
    assert undone(name, member * 20_000) == b"x" * 800_000


@pytest.mark.parametrize("name", COMPRESS)
def test_nothing_compressed_is_nothing(name: str) -> None:
    assert undone(name, b"") == b""
    assert undone(name, COMPRESS[name](b"")) == b""


@pytest.mark.parametrize("name", COMPRESS)
def test_one_object_runs_again_after_a_failure(name: str) -> None:
    made = built(definition(name), {})
    with pytest.raises(PhaseFailed):
        list(made.run(ByteReader([COMPRESS[name](TEXT)[:-9]])))
    assert b"".join(made.run(ByteReader([COMPRESS[name](TEXT)]))) == TEXT


@pytest.mark.parametrize("size", [3, MIB])
@pytest.mark.parametrize("name", COMPRESS)
def test_a_truncated_file_tells_where_it_ends(name: str, size: int) -> None:
    first, second = COMPRESS[name](b"first"), COMPRESS[name](TEXT)
    data = (first + second)[: len(first) + len(second) // 2]
    with pytest.raises(PhaseFailed, match=f"from byte {len(first)} is truncated") as failure:
        undone(name, data, size)
    assert failure.value.fields["offset"] == len(data)


@pytest.mark.parametrize("missing", [1, 2, 3])
@pytest.mark.parametrize("name", COMPRESS)
def test_a_last_byte_is_missed(name: str, missing: int) -> None:
    data = COMPRESS[name](TEXT)[:-missing]
    with pytest.raises(PhaseFailed, match="truncated") as failure:
        undone(name, data)
    assert failure.value.fields["offset"] == len(data)


@pytest.mark.parametrize("name", COMPRESS)
def test_trailing_garbage_tells_where_it_begins(name: str) -> None:
    data = COMPRESS[name](TEXT)
    with pytest.raises(PhaseFailed, match=f"ends at byte {len(data)}, but other") as failure:
        undone(name, data + b"garbage that is longer than a head")
    assert failure.value.fields["offset"] == len(data)
    with pytest.raises(PhaseFailed, match="other data follows"):
        undone(name, data + b"g")


@pytest.mark.parametrize("name", COMPRESS)
def test_another_format_is_refused_by_its_first_bytes(name: str) -> None:
    with pytest.raises(PhaseFailed, match="it starts with 61 2c 62") as failure:
        undone(name, b"a,b\n1,2\n" * 10)
    assert failure.value.fields["offset"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", COMPRESS)
def test_a_flipped_byte_never_goes_unnoticed(name: str) -> None:
    data = COMPRESS[name](TEXT)
    for place in range(0, len(data), len(data) // 40):
        broken = bytearray(data)
        broken[place] ^= 0x55
        # Some bits mean nothing, such as those of a file's date.
        with contextlib.suppress(PhaseFailed):
            assert undone(name, bytes(broken)) == TEXT


@pytest.mark.slow
@pytest.mark.parametrize("name", COMPRESS)
def test_a_bomb_takes_little_memory_and_stops_at_the_limit(name: str) -> None:
    bomb = COMPRESS[name](bytes(60 * MIB if name in {"Zstd", "Lz4"} else 24 * MIB))
    assert len(bomb) < MIB / 2
    made = built(definition(name), {"max_output": 16 * MIB})
    tracemalloc.start()
    sizes: list[int] = []
    with pytest.raises(PhaseFailed, match="max_output of 16,777,216 bytes"):
        sizes.extend(map(len, made.run(ByteReader([bomb]))))
    assert tracemalloc.get_traced_memory()[1] < 14 * MIB
    tracemalloc.stop()
    assert max(sizes) <= MIB
    assert 15 * MIB <= sum(sizes) <= 16 * MIB


@pytest.mark.parametrize("name", ["GZip", "Xz"])
def test_padding_of_zeros_is_no_garbage(name: str) -> None:
    data = COMPRESS[name](b"one") + bytes(512) + COMPRESS[name](b"two") + bytes(10_000)
    assert undone(name, data) == b"onetwo"
    assert undone(name, data, 100) == b"onetwo"


def test_zlib_is_taken_by_gzip_and_old_lzma_by_xz() -> None:
    assert undone("GZip", zlib.compress(TEXT)) == TEXT
    assert undone("Xz", lzma.compress(TEXT, format=lzma.FORMAT_ALONE)) == TEXT


def test_xz_that_wants_too_much_memory_is_refused() -> None:
    header = bytearray(lzma.compress(b"a" * 100, filters=[{"id": lzma.FILTER_LZMA2, "preset": 0}]))
    # The dictionary's size is one byte of the block header, whose sum follows.
    header[16] = 38
    header[20:24] = zlib.crc32(bytes(header[12:20])).to_bytes(4, "little")
    with pytest.raises(PhaseFailed, match=r"[Mm]emory"):
        undone("Xz", bytes(header))


@pytest.mark.slow
def test_zstd_of_all_kinds_of_blocks_and_frames() -> None:
    noise = random.Random(1).randbytes(400_000)
    data = noise + bytes(900_000) + b"word and word " * 50_000
    for level in (1, 19):
        kinds: tuple[dict[str, Any], ...] = (
            {"write_content_size": False},
            {"write_checksum": True},
            {},
        )
        for options in kinds:
            whole = zstandard.ZstdCompressor(level=level, **options).compress(data)
            skippable = b"\x53\x2a\x4d\x18" + (70_000).to_bytes(4, "little") + bytes(70_000)
            assert undone("Zstd", whole + skippable + whole, 10_001) == data * 2
    streamed = zstandard.ZstdCompressor().compressobj()
    assert undone("Zstd", streamed.compress(data) + streamed.flush()) == data
    with pytest.raises(PhaseFailed, match="truncated"):
        undone("Zstd", b"\x53\x2a\x4d\x18" + (70_000).to_bytes(4, "little") + bytes(100))


@pytest.mark.parametrize("name", COMPRESS)
@given(
    parts=st.lists(st.binary(max_size=3_000), max_size=4),
    size=st.integers(1, 500),
    cut=st.integers(0, 400),
)
@settings(max_examples=settings().max_examples // 4)
def test_every_cut_either_ends_a_member_or_is_told(
    name: str, parts: list[Any], size: int, cut: int
) -> None:
    members = [COMPRESS[name](part) for part in parts]
    ends = [sum(map(len, members[:number])) for number in range(len(members) + 1)]
    data = b"".join(members)[: max(ends[-1] - cut, 0)]
    if len(data) in ends:
        assert undone(name, data, size) == b"".join(parts[: ends.index(len(data))])
        return
    with pytest.raises(PhaseFailed):
        undone(name, data, size)


def test_names_are_known_in_any_case_and_lzo_is_refused() -> None:
    assert cast("PhaseDefinition[Any]", definition("gZIP")).name == "GZip"
    assert definition("bzip2") is definition("BZIP")
    assert definition("nothing") is None
    with pytest.raises(LoadRefused, match="ZSTD or LZ4"):
        definition("LZO")
    with pytest.raises(LoadRefused, match="1 byte or more"):
        built(definition("GZip"), {"max_output": 0})

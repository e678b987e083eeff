r"""Benchmark of load filters, compared with the libraries that they call.

    python benchmarks/load_filters.py [--mib 64] [--repeats 7]

Uses one thread, and slices of 1 MiB that stay in memory. Results are MB of text (the larger of
input and output) per second of processor time. Library and filter take turns; the best run of each
counts. The library is called in a loop over the same slices, and its output is discarded.
"""

from __future__ import annotations

import argparse
import bz2
import codecs
import gzip
import lzma
import random
import resource
import subprocess
import tempfile
import time
from collections import deque
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lz4.frame
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import zstandard
from hosted_code import pass_through_pair
from isal import igzip_lib, isal_zlib
from report import Report

from snowmelt.load.filters import definition
from snowmelt.load.phase_protocols import ByteReader, Filter, RecordFilter
from snowmelt.load.portion import Portion
from snowmelt.load.sources.files import FileGlobSource, list_files

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

MIB = 2**20


def words(size: int) -> bytes:
    """Return text of random words, which compresses to about half of its size."""
    seeded = random.Random(1)
    known = [seeded.randbytes(seeded.randrange(2, 9)).hex() for _ in range(4_000)]
    line = " ".join(seeded.choices(known, k=200_000)).encode() + b"\n"
    return (line * (size // len(line) + 1))[:size]


def log(size: int) -> bytes:
    """Return lines of a web server's log, which compress to about an eighth of their size."""
    seeded = random.Random(2)
    lines = [
        f"10.0.{seeded.randrange(9)}.{seeded.randrange(256)} - - [21/Nov/2026:10:{number // 60 % 60:02}:"
        f'{number % 60:02} +0000] "GET /articles/{seeded.randrange(5_000)}/index.html HTTP/1.1" 200 '
        f'{seeded.randrange(100_000)} "https://example.org/" "Mozilla/5.0 (X11; Linux x86_64)"\n'
        for number in range(60_000)
    ]
    text = "".join(lines).encode()
    return (text * (size // len(text) + 1))[:size]


def drop(items: Iterable[object]) -> None:
    """Consume all items and discard them."""
    deque(items, maxlen=0)


def cut(data: bytes) -> list[bytes]:
    return [data[start : start + MIB] for start in range(0, len(data), MIB)]


def bounded(make: Callable[[], Any]) -> Callable[[Sequence[bytes]], None]:
    """Call a decompressor in a loop, with output of up to 1 MiB per call."""

    def run(pieces: Sequence[bytes]) -> None:
        decoder = make()
        for piece in pieces:
            decoder.decompress(piece, MIB)
            while not decoder.needs_input and not decoder.eof:
                decoder.decompress(b"", MIB)

    return run


def isal_in_zlibs_way(pieces: Sequence[bytes]) -> None:
    decoder = isal_zlib.decompressobj(wbits=31)
    for piece in pieces:
        decoder.decompress(piece, MIB)
        while decoder.unconsumed_tail:
            decoder.decompress(decoder.unconsumed_tail, MIB)


def whole(make: Callable[[], Any]) -> Callable[[Sequence[bytes]], None]:
    """Call a decompressor in a loop, with the whole output of a slice per call."""

    def run(pieces: Sequence[bytes]) -> None:
        decoder = make()
        for piece in pieces:
            decoder.decompress(piece)

    return run


def converted(pieces: Sequence[bytes]) -> None:
    decoder = codecs.getincrementaldecoder("utf-16-le")()
    for piece in pieces:
        decoder.decode(piece).encode()


def best(works: Sequence[Callable[[], object]], repeats: int) -> list[float]:
    """Run functions in turns. Return the shortest processor time of each in seconds."""
    times: list[list[float]] = [[] for _ in works]
    for _ in range(repeats):
        for work, own in zip(works, times, strict=True):
            begin = time.process_time()
            work()
            own.append(time.process_time() - begin)
    return [min(own) for own in times]


class Bench:
    """Benchmark runs, and the rows of the report."""

    def __init__(self, report: Report, repeats: int) -> None:
        self._report = report
        self._repeats = repeats

    def compare(
        self,
        what: str,
        size: int,
        library: Callable[[], object],
        ours: Callable[[], object],
        goal: str = "0.90",
    ) -> None:
        """Add a row for a filter and the library that it calls."""
        theirs_s, ours_s = best((library, ours), self._repeats)
        mb = size / 1e6
        self._report.add(
            what, f"{mb / theirs_s:,.0f}", f"{mb / ours_s:,.0f}", f"{theirs_s / ours_s:.2f}", goal
        )

    def alone(self, what: str, size: int, ours: Callable[[], object], goal: str) -> None:
        """Add a row for a filter without a library to compare with."""
        (ours_s,) = best((ours,), self._repeats)
        self._report.add(what, "", f"{size / 1e6 / ours_s:,.0f}", "", goal)


def built(name: str, parameters: dict[str, object]) -> Filter | RecordFilter:
    """Return a built-in filter."""
    defined = definition(name)
    assert defined is not None
    return defined.build_phase(parameters)


def filtered(name: str, pieces: Sequence[bytes], **parameters: object) -> Callable[[], None]:
    """Return a run of a built-in filter."""
    made = built(name, parameters)
    assert isinstance(made, Filter)
    return lambda: drop(made.run(ByteReader(pieces)))


def decompressors(bench: Bench, text: bytes, kind: str) -> None:
    size = len(text)
    pieces = cut(gzip.compress(text, 6))
    gzip_loop = bounded(lambda: igzip_lib.IgzipDecompressor(flag=igzip_lib.DECOMP_GZIP))
    bench.compare(f"GZip, {kind}", size, lambda: gzip_loop(pieces), filtered("GZip", pieces))
    bench.compare(
        f"GZip, {kind}, library as zlib",
        size,
        lambda: isal_in_zlibs_way(pieces),
        filtered("GZip", pieces),
    )
    frames = cut(zstandard.ZstdCompressor(level=3).compress(text))
    zstd_loop = whole(lambda: zstandard.ZstdDecompressor().decompressobj())
    bench.compare(f"Zstd, {kind}", size, lambda: zstd_loop(frames), filtered("Zstd", frames))
    blocks = cut(lz4.frame.compress(text))
    lz4_loop = bounded(lz4.frame.LZ4FrameDecompressor)
    bench.compare(f"Lz4, {kind}", size, lambda: lz4_loop(blocks), filtered("Lz4", blocks))
    part = text[: size // 8]
    for name, compress, make in (
        ("BZip", bz2.compress, bz2.BZ2Decompressor),
        ("Xz", lzma.compress, lzma.LZMADecompressor),
    ):
        packed = cut(compress(part))
        loop = bounded(make)
        bench.compare(
            f"{name}, {kind}",
            len(part),
            partial(loop, packed),
            filtered(name, packed),
        )


def replace_all(pieces: Sequence[bytes], pattern: bytes) -> None:
    drop(piece.replace(pattern, b"~") for piece in pieces)


def texts(bench: Bench, text: bytes) -> None:
    wide = cut(text.decode().encode("utf-16-le"))
    bench.compare(
        "Iconverter UTF-16LE, bytes read",
        2 * len(text),
        lambda: converted(wide),
        filtered("Iconverter", wide, from_encoding="UTF-16LE"),
    )
    pieces = cut(text)
    for pattern in (b";", b"html", b"GET "):
        replaced = filtered("SearchAndReplace", pieces, pattern=pattern.decode(), replace_with="~")
        bench.compare(
            f"SearchAndReplace {pattern.decode()!r}",
            len(text),
            partial(replace_all, pieces, pattern),
            replaced,
        )
    ends = cut(text.replace(b"\n", b"\r\n"))
    bench.compare(
        "LineEndings from CRLF",
        len(text),
        lambda: drop(piece.replace(b"\r\n", b"\n").replace(b"\r", b"\n") for piece in ends),
        filtered("LineEndings", ends),
    )


def pass_through(bench: Bench, text: bytes) -> None:
    pieces = cut(text)
    bench.alone(
        "two pass-through filters of a user",
        len(text),
        lambda: drop(pass_through_pair(pieces)),
        "8,000 MB/s",
    )


def messages(bench: Bench, text: bytes) -> None:
    """Return batches of 5,000 messages of 147 bytes."""
    step, each = 147, 5_000
    batches = []
    for start in range(0, len(text) - step * each, step * each):
        offsets = np.arange(0, step * each + 1, step, dtype=np.int32)
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(text[start : start + step * each])]
        batches.append(pa.Array.from_buffers(pa.binary(), each, buffers))
    size = sum(step * len(batch) for batch in batches)
    empty, end = pa.scalar(b""), pa.scalar(b"\n")

    def library() -> None:
        drop(pc.binary_join_element_wise(batch, empty, end) for batch in batches)

    delimiters = built("KafkaInsertDelimiters", {"delimiter": "\n"})
    assert isinstance(delimiters, RecordFilter)
    bench.compare(
        "KafkaInsertDelimiters",
        size,
        library,
        lambda: drop(delimiters.run_records(iter(batches))),
        "2,000 MB/s",
    )
    lengths = built("KafkaInsertLengths", {})
    assert isinstance(lengths, RecordFilter)
    bench.alone("KafkaInsertLengths", size, lambda: drop(lengths.run_records(iter(batches))), "")


def against_zcat(report: Report, text: bytes, kind: str, repeats: int) -> None:
    """Compare reading a file by zcat and by the filter: processor time, output discarded."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "text.gz")
        path.write_bytes(gzip.compress(text, 6))
        zcat_s, ours_s = [], []
        (file,) = list_files(str(path))
        made = built("GZip", {})
        assert isinstance(made, Filter)
        for _ in range(repeats):
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run(["zcat", path], stdout=subprocess.DEVNULL, check=True)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            zcat_s.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
            begin = time.process_time()
            drop(made.run(ByteReader(FileGlobSource().read(Portion(file)))))
            ours_s.append(time.process_time() - begin)
    mb = len(text) / 1e6
    report.add(
        f"GZip of a file against zcat, {kind}",
        f"{mb / min(zcat_s):,.0f}",
        f"{mb / min(ours_s):,.0f}",
        f"{min(zcat_s) / min(ours_s):.2f}",
        "2.00",
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--mib", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    report = Report(
        "load_filters",
        "What do filters of a load cost over the libraries that they call?",
        ("filter", "library MB/s", "filter MB/s", "ratio", "goal"),
    )
    bench = Bench(report, options.repeats)
    size = options.mib * MIB
    lines = log(size)
    for kind, text in (("words", words(size)), ("log", lines)):
        decompressors(bench, text, kind)
        against_zcat(report, text, kind, options.repeats)
    texts(bench, lines)
    pass_through(bench, lines)
    messages(bench, lines)
    report.remark(
        "MB of plain text for each second of processor time, one thread, the best of "
        f"{options.repeats} runs by turns; {options.mib} MiB of text in pieces of 1 MiB."
    )
    report.keep()


if __name__ == "__main__":
    main()

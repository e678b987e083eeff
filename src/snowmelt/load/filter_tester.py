"""Runs a filter of users in many ways that must not matter, and says where its output changes.

How input is cut into calls is the host's, and an object filters one stream after the other: what a
filter makes of its input may depend on neither.
"""

from __future__ import annotations

import datetime as dt
import random
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

from snowmelt.errors import LoadRefused, PhaseFailed
from snowmelt.load.phases import Filter, Reader

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from snowmelt.load.definition import Definition
    from snowmelt.load.phases import RecordFilter

_SIZES = (1, 2, 3, 7, 64, 1000, 4096, 65_536, 1 << 20)
_MOST_PIECES = 20_000
_MOST_CUTS = 40
_SHUFFLES = 3
_SHOWN = 24
_PATIENCE = dt.timedelta(seconds=30)

SAMPLES: Mapping[str, bytes] = {
    "an empty input": b"",
    "a line without an end": b"alpha",
    "lines of JSON": b'{"a": 1, "b": "x"}\n{"a": 2, "b": null}\n{"a": [3, {"c": "\\u00e4"}]}\n' * 3,
    "lines of CSV": 'id,name,"a ""quoted"", one"\r\n1,Zoë,"two\nlines"\r\n2,,€\r\n'.encode() * 3,
    "every byte": bytes(range(256)) * 2,
}
"""Inputs to check with where none is given."""


@dataclass(frozen=True, slots=True)
class Chunking:
    """One way to cut an input: its name, the pieces, and the bytes that a call is given."""

    name: str
    pieces: tuple[bytes, ...]
    chunk_bytes: int


@dataclass(frozen=True, slots=True)
class Difference:
    """One run whose outcome is not that of the whole input in one call.

    `offset` is the first byte of the output that differs; both outputs are shown from there on, or
    the error instead.
    """

    chunking: str
    reused: bool
    offset: int | None
    expected: str
    got: str

    def __str__(self) -> str:
        which = "an object that was used before" if self.reused else "a new object"
        where = "" if self.offset is None else f" differs at byte {self.offset} of the output:"
        return f"{self.chunking}, {which}:{where} expected {self.expected}, got {self.got}"


@dataclass(slots=True)
class Report:
    """What came of one input. `refused` is the error that it ends in, whatever the chunking."""

    runs: int = 0
    output_bytes: int = 0
    refused: str | None = None
    differences: list[Difference] = field(default_factory=list)


def check_filter(
    definition: Definition[Filter | RecordFilter], given: Mapping[str, object], data: bytes
) -> Report:
    """Run a filter with many chunkings of some input, with new objects and with one again and again.

    Raises:
        LoadRefused: It cannot be made, or works on records only.
    """
    # Generators are given pieces as they come, and have no use for it.
    hosted = any(parameter.name == "chunk_bytes" for parameter in definition.parameters)

    def make(chunk_bytes: int) -> Filter:
        own = {"chunk_bytes": chunk_bytes, "patience": _PATIENCE} if hosted else {}
        made = definition.build({**own, **given})
        if not isinstance(made, Filter):
            raise LoadRefused(what=definition.name, reason="it works on records, not on bytes")
        return made

    report = Report()
    whole = Chunking("the whole input in one call", (data,), max(len(data), 1) + 1)
    expected = _outcome(make(whole.chunk_bytes), whole)
    if isinstance(expected, bytes):
        report.output_bytes = len(expected)
    else:
        report.refused = str(expected)
    used: dict[int, Filter] = {}
    for chunking in (whole, *chunkings(data)):
        again = used.setdefault(chunking.chunk_bytes, make(chunking.chunk_bytes))
        # Twice, so that what one stream leaves behind is there for the next.
        ways = ((make(chunking.chunk_bytes), False), (again, True), (again, True))
        found = [
            _difference(chunking, expected, _outcome(phase, chunking), reused=reused)
            for phase, reused in ways
        ]
        report.runs += len(ways)
        # One that new objects show, too, says nothing of used ones.
        report.differences += [each for each in found if each is not None][:1]
    return report


def chunkings(data: bytes) -> Iterator[Chunking]:
    """Yield ways to cut an input, which are the same each time."""
    if data:
        yield Chunking("the end told after the last byte", (data,), len(data))
    for size in _SIZES:
        if size < len(data) <= size * _MOST_PIECES:
            yield _cut(f"pieces of {size} bytes", data, range(size, len(data), size), size)
    for cut in _cuts(data):
        yield _cut(f"two pieces cut at byte {cut}", data, (cut,), 1)
    longest = max(2, len(data) // 50)
    for seed in range(_SHUFFLES if len(data) > 2 else 0):
        name = f"pieces of 1 to {longest} bytes (seed {seed})"
        yield _cut(name, data, _uneven(len(data), longest, seed), 1)


def _uneven(size: int, longest: int, seed: int) -> list[int]:
    sizes = random.Random(seed)  # noqa: S311 - nothing is secret
    edges = [sizes.randint(1, longest)]
    while edges[-1] < size:
        edges.append(edges[-1] + sizes.randint(1, longest))
    return edges[:-1]


def _cut(name: str, data: bytes, edges: Sequence[int], chunk_bytes: int) -> Chunking:
    all_edges = (0, *edges, len(data))
    pieces = tuple(data[start:end] for start, end in pairwise(all_edges))
    return Chunking(name, pieces, chunk_bytes)


def _cuts(data: bytes) -> list[int]:
    """Return where to cut in two: everywhere, or at the ends of lines and here and there."""
    if len(data) <= _MOST_CUTS:
        return list(range(1, len(data)))
    step = len(data) / _MOST_CUTS
    places = {int(step * number) for number in range(1, _MOST_CUTS)}
    line = data.find(b"\n")
    if line >= 0:
        places |= {line, line + 1, line + 2}
    return sorted(place for place in places if 0 < place < len(data))


def _outcome(phase: Filter, chunking: Chunking) -> bytes | PhaseFailed:
    try:
        return b"".join(phase.run(Reader(chunking.pieces)))
    except PhaseFailed as error:
        return error


def _difference(
    chunking: Chunking, expected: bytes | PhaseFailed, got: bytes | PhaseFailed, *, reused: bool
) -> Difference | None:
    failed = (isinstance(expected, PhaseFailed), isinstance(got, PhaseFailed))
    # That it fails may not depend on the chunking; where and with which words may.
    if failed == (True, True) or expected == got:
        return None
    offset = None
    if isinstance(expected, bytes) and isinstance(got, bytes):
        offset = _first_difference(expected, got)
    return Difference(
        chunking.name, reused, offset, _shown(expected, offset), _shown(got, offset)
    )  # fmt: skip


def _first_difference(one: bytes, other: bytes) -> int:
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[:middle] == other[:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _shown(outcome: bytes | PhaseFailed, offset: int | None) -> str:
    if isinstance(outcome, PhaseFailed):
        return f"an error: {outcome}"
    part = outcome[offset or 0 :]
    if not part:
        return "its end"
    return f"{part[:_SHOWN]!r}" + ("…" if len(part) > _SHOWN else "")

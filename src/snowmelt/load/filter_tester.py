"""Tests of a user-defined filter with many input chunkings, to report where its output changes.

The host decides how input is cut into calls, and one object filters several streams in turn. The
output of a filter must depend on neither.
"""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from snowmelt.errors import LoadRefused, PhaseFailed
from snowmelt.load.phase_definition import PhaseDefinition
from snowmelt.load.phase_protocols import ByteReader, Filter, RecordFilter

_SLICE_SIZES_BYTES = (1, 2, 3, 7, 64, 1000, 4096, 65_536, 1 << 20)
_MAX_SLICES = 20_000
_MAX_CUTS = 40
_RANDOM_CHUNKINGS = 3
_MAX_SHOWN_BYTES = 24
_CALL_TIMEOUT = dt.timedelta(seconds=30)

SAMPLE_INPUTS: Mapping[str, bytes] = {
    "an empty input": b"",
    "a line without an end": b"alpha",
    "lines of JSON": b'{"a": 1, "b": "x"}\n{"a": 2, "b": null}\n{"a": [3, {"c": "\\u00e4"}]}\n' * 3,
    "lines of CSV": 'id,name,"a ""quoted"", one"\r\n1,Zoë,"two\nlines"\r\n2,,€\r\n'.encode() * 3,
    "every byte": bytes(range(256)) * 2,
}
"""Inputs to check with where none is given."""


@dataclass(frozen=True, slots=True)
class InputChunking:
    """One way to cut an input: its name, the pieces, and the bytes that a call is given."""

    name: str
    slices: tuple[bytes, ...]
    chunk_bytes: int


@dataclass(frozen=True, slots=True)
class OutputDifference:
    """One run whose outcome is not that of the whole input in one call.

    `offset` is the first byte of the output that differs; both outputs are shown from there on, or
    the error instead.
    """

    chunking_name: str
    is_reused_object: bool
    offset: int | None
    expected: str
    actual: str

    def __str__(self) -> str:
        which = "an object that was used before" if self.is_reused_object else "a new object"
        where = "" if self.offset is None else f" differs at byte {self.offset} of the output:"
        return f"{self.chunking_name}, {which}:{where} expected {self.expected}, got {self.actual}"


@dataclass(slots=True)
class FilterReport:
    """What came of one input. `error` is the error that it ends in, whatever the chunking."""

    runs: int = 0
    output_bytes: int = 0
    error: str | None = None
    differences: list[OutputDifference] = field(default_factory=list)


def check_filter_with_chunkings(
    definition: PhaseDefinition[Filter | RecordFilter],
    parameters: Mapping[str, object],
    data: bytes,
) -> FilterReport:
    """Run a filter with many chunkings of some input, with new objects and with one again and again.

    Raises:
        LoadRefused: It cannot be made, or works on records only.
    """
    # Generators are given pieces as they come, and have no use for it.
    hosted = any(parameter.name == "chunk_bytes" for parameter in definition.parameters)

    def make(chunk_bytes: int) -> Filter:
        own = {"chunk_bytes": chunk_bytes, "patience": _CALL_TIMEOUT} if hosted else {}
        made = definition.build_phase({**own, **parameters})
        if not isinstance(made, Filter):
            raise LoadRefused(what=definition.name, reason="it works on records, not on bytes")
        return made

    report = FilterReport()
    whole = InputChunking("the whole input in one call", (data,), max(len(data), 1) + 1)
    expected = _run_filter(make(whole.chunk_bytes), whole)
    if isinstance(expected, bytes):
        report.output_bytes = len(expected)
    else:
        report.error = str(expected)
    used: dict[int, Filter] = {}
    for chunking in (whole, *generate_chunkings(data)):
        again = used.setdefault(chunking.chunk_bytes, make(chunking.chunk_bytes))
        # Twice, so that what one stream leaves behind is there for the next.
        ways = ((make(chunking.chunk_bytes), False), (again, True), (again, True))
        found = [
            _compare_outputs(
                chunking, expected, _run_filter(phase, chunking), is_reused_object=reused
            )
            for phase, reused in ways
        ]
        report.runs += len(ways)
        # One that new objects show, too, says nothing of used ones.
        report.differences += [each for each in found if each is not None][:1]
    return report


def generate_chunkings(data: bytes) -> Iterator[InputChunking]:
    """Yield ways to cut an input, which are the same each time."""
    if data:
        yield InputChunking("the end told after the last byte", (data,), len(data))
    for size in _SLICE_SIZES_BYTES:
        if size < len(data) <= size * _MAX_SLICES:
            yield _make_chunking(
                f"pieces of {size} bytes", data, range(size, len(data), size), size
            )
    for cut in _choose_cut_positions(data):
        yield _make_chunking(f"two pieces cut at byte {cut}", data, (cut,), 1)
    longest = max(2, len(data) // 50)
    for seed in range(_RANDOM_CHUNKINGS if len(data) > 2 else 0):
        name = f"pieces of 1 to {longest} bytes (seed {seed})"
        yield _make_chunking(name, data, _choose_random_cut_positions(len(data), longest, seed), 1)


def _choose_random_cut_positions(total_bytes: int, max_slice_bytes: int, seed: int) -> list[int]:
    sizes = random.Random(seed)  # noqa: S311 - nothing is secret
    edges = [sizes.randint(1, max_slice_bytes)]
    while edges[-1] < total_bytes:
        edges.append(edges[-1] + sizes.randint(1, max_slice_bytes))
    return edges[:-1]


def _make_chunking(
    name: str, data: bytes, cut_positions: Sequence[int], chunk_bytes: int
) -> InputChunking:
    all_edges = (0, *cut_positions, len(data))
    pieces = tuple(data[start:end] for start, end in pairwise(all_edges))
    return InputChunking(name, pieces, chunk_bytes)


def _choose_cut_positions(data: bytes) -> list[int]:
    """Return where to cut in two: everywhere, or at the ends of lines and here and there."""
    if len(data) <= _MAX_CUTS:
        return list(range(1, len(data)))
    step = len(data) / _MAX_CUTS
    places = {int(step * number) for number in range(1, _MAX_CUTS)}
    line = data.find(b"\n")
    if line >= 0:
        places |= {line, line + 1, line + 2}
    return sorted(place for place in places if 0 < place < len(data))


def _run_filter(phase: Filter, chunking: InputChunking) -> bytes | PhaseFailed:
    try:
        return b"".join(phase.run(ByteReader(chunking.slices)))
    except PhaseFailed as error:
        return error


def _compare_outputs(
    chunking: InputChunking,
    expected: bytes | PhaseFailed,
    actual: bytes | PhaseFailed,
    *,
    is_reused_object: bool,
) -> OutputDifference | None:
    failed = (isinstance(expected, PhaseFailed), isinstance(actual, PhaseFailed))
    # That it fails may not depend on the chunking; where and with which words may.
    if failed == (True, True) or expected == actual:
        return None
    offset = None
    if isinstance(expected, bytes) and isinstance(actual, bytes):
        offset = _find_first_difference(expected, actual)
    return OutputDifference(
        chunking.name, is_reused_object, offset, _display_output(expected, offset), _display_output(actual, offset)
    )  # fmt: skip


def _find_first_difference(one: bytes, other: bytes) -> int:
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[:middle] == other[:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _display_output(outcome: bytes | PhaseFailed, offset: int | None) -> str:
    if isinstance(outcome, PhaseFailed):
        return f"an error: {outcome}"
    part = outcome[offset or 0 :]
    if not part:
        return "its end"
    return f"{part[:_MAX_SHOWN_BYTES]!r}" + ("…" if len(part) > _MAX_SHOWN_BYTES else "")

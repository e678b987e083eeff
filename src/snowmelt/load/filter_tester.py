"""Test that a user-defined filter's output does not depend on the chunking of its input.

The output must also be the same if the object filtered another stream before. The report has every
run whose output differs.
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
"""Default inputs."""


@dataclass(frozen=True, slots=True)
class InputChunking:
    """One way to split an input: name, slices, and bytes per call."""

    name: str
    slices: tuple[bytes, ...]
    chunk_bytes: int


@dataclass(frozen=True, slots=True)
class OutputDifference:
    """A run whose result differs from the run with the whole input in one call.

    `offset` is the first output byte that differs, or None if one run failed. `expected` and
    `actual` show the outputs from there, or the error.
    """

    chunking_name: str
    is_reused_object: bool
    offset: int | None
    expected: str
    actual: str

    def __str__(self) -> str:
        which = "a reused object" if self.is_reused_object else "a new object"
        where = "" if self.offset is None else f" differs at byte {self.offset} of the output:"
        return f"{self.chunking_name}, {which}:{where} expected {self.expected}, got {self.actual}"


@dataclass(slots=True)
class FilterReport:
    """Result for one input. `error` is set if the run with the whole input failed."""

    runs: int = 0
    output_bytes: int = 0
    error: str | None = None
    differences: list[OutputDifference] = field(default_factory=list)


def check_filter_with_chunkings(
    definition: PhaseDefinition[Filter | RecordFilter],
    parameters: Mapping[str, object],
    data: bytes,
) -> FilterReport:
    """Run a filter with the chunkings of `generate_chunkings`, with new and with reused objects.

    Raises:
        LoadRefused: If the filter cannot be built, or works only on records.
    """
    # Generators receive the slices themselves, so `chunk_bytes` does not apply to them.
    hosted = any(parameter.name == "chunk_bytes" for parameter in definition.parameters)

    def make(chunk_bytes: int) -> Filter:
        own = {"chunk_bytes": chunk_bytes, "patience": _CALL_TIMEOUT} if hosted else {}
        made = definition.build_phase({**own, **parameters})
        if not isinstance(made, Filter):
            raise LoadRefused(
                what=definition.name, reason="expected a filter of bytes, got one of records"
            )
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
        # Reuse the object twice, so that the second run follows a stream with the same bytes.
        ways = ((make(chunking.chunk_bytes), False), (again, True), (again, True))
        found = [
            _compare_outputs(
                chunking, expected, _run_filter(phase, chunking), is_reused_object=reused
            )
            for phase, reused in ways
        ]
        report.runs += len(ways)
        # If a new object gives a different output too, reuse is not the cause.
        report.differences += [each for each in found if each is not None][:1]
    return report


def generate_chunkings(data: bytes) -> Iterator[InputChunking]:
    """Yield a deterministic series of chunkings."""
    if data:
        yield InputChunking("the end reported after the last byte", (data,), len(data))
    for size in _SLICE_SIZES_BYTES:
        if size < len(data) <= size * _MAX_SLICES:
            yield _make_chunking(
                f"slices of {size} bytes", data, range(size, len(data), size), size
            )
    for cut in _choose_cut_positions(data):
        yield _make_chunking(f"two slices, split at byte {cut}", data, (cut,), 1)
    longest = max(2, len(data) // 50)
    for seed in range(_RANDOM_CHUNKINGS if len(data) > 2 else 0):
        name = f"slices of 1 to {longest} bytes (seed {seed})"
        yield _make_chunking(name, data, _choose_random_cut_positions(len(data), longest, seed), 1)


def _choose_random_cut_positions(total_bytes: int, max_slice_bytes: int, seed: int) -> list[int]:
    sizes = random.Random(seed)  # noqa: S311 - not for secrets
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
    """Return all cut positions inside the data.

    For more than `_MAX_CUTS` bytes, return `_MAX_CUTS` - 1 positions at equal distances, and those
    next to the first line feed.
    """
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
    # Whether the filter fails must not depend on the chunking. The error's position and text may.
    if failed == (True, True) or expected == actual:
        return None
    offset = None
    if isinstance(expected, bytes) and isinstance(actual, bytes):
        pairs = enumerate(zip(expected, actual, strict=False))
        end = min(len(expected), len(actual))
        offset = next((at for at, (one, other) in pairs if one != other), end)
    return OutputDifference(
        chunking.name, is_reused_object, offset, _display_output(expected, offset), _display_output(actual, offset)
    )  # fmt: skip


def _display_output(outcome: bytes | PhaseFailed, offset: int | None) -> str:
    if isinstance(outcome, PhaseFailed):
        return f"an error: {outcome}"
    part = outcome[offset or 0 :]
    if not part:
        return "its end"
    return f"{part[:_MAX_SHOWN_BYTES]!r}" + ("…" if len(part) > _MAX_SHOWN_BYTES else "")

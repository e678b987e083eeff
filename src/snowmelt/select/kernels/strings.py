"""String kernels: bytewise comparison, LIKE matching, ASCII checks and ASCII case conversion."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from snowmelt.jit import inline_jit, jit_kernel
from snowmelt.kernels.slices import Bytes, Mask, Positions, StringSlices, view_bytes

# Functions that only kernels call have no annotations, because Numba infers the types.
# ruff: noqa: ANN001, ANN202
# mypy: disable-error-code="no-untyped-def, no-untyped-call"


# Represents `_` in a segment. This value never occurs in UTF-8.
_ANY_BYTE = 255
_ANY_BYTE_SURROGATE = "\udcff"


@jit_kernel
def _compare_bytes(
    buffer: Bytes,
    starts: Positions,
    ends: Positions,
    other_strings: tuple[Bytes, Positions, Positions],
) -> NDArray[np.int8]:
    """Return -1, 0 or 1 for each text. `other_strings` has the same number of texts, or one."""
    other_buffer, other_starts, other_ends = other_strings
    step = 0 if len(other_starts) == 1 else 1
    found = np.empty(len(starts), np.int8)
    for r in range(len(starts)):
        at = other_starts[r * step]
        size = ends[r] - starts[r]
        other_size = other_ends[r * step] - at
        shared = min(size, other_size)
        order = 0
        for i in range(shared):
            a = buffer[starts[r] + i]
            b = other_buffer[at + i]
            if a != b:
                order = -1 if a < b else 1
                break
        if order == 0 and size != other_size:
            order = -1 if size < other_size else 1
        found[r] = order
    return found


@inline_jit
def _segment_matches_at(buffer, position, segments, segment_start, segment_end):
    for i in range(segment_end - segment_start):
        wanted = segments[segment_start + i]
        if wanted != buffer[position + i] and wanted != _ANY_BYTE:
            return False
    return True


@jit_kernel
def _match_segments(
    buffer: Bytes, starts: Positions, ends: Positions, segments: Bytes, bounds: Positions
) -> Mask:
    """Return a mask of the texts that match a pattern.

    Segment p is segments[bounds[p]:bounds[p + 1]]. The first segment must match at the start of the
    text and the last one at its end. The others are searched once, from left to right.
    """
    count = len(bounds) - 1
    least = np.int64(bounds[count])
    found = np.empty(len(starts), np.bool_)
    tail = bounds[count] - bounds[count - 1] if count > 1 else 0
    for r in range(len(starts)):
        found[r] = False
        start, end = np.int64(starts[r]), np.int64(ends[r])
        size = end - start
        if size < least or (count == 1 and size != least):
            continue
        if not _segment_matches_at(buffer, start, segments, bounds[0], bounds[1]):
            continue
        if count == 1:
            found[r] = True
            continue
        end -= tail
        if not _segment_matches_at(buffer, end, segments, bounds[count - 1], bounds[count]):
            continue
        at = start + bounds[1] - bounds[0]
        whole = True
        for p in range(1, count - 1):
            width = bounds[p + 1] - bounds[p]
            if width == 0:
                continue
            first = segments[bounds[p]]
            while at + width <= end:
                if (first == buffer[at] or first == _ANY_BYTE) and _segment_matches_at(
                    buffer, at, segments, bounds[p], bounds[p + 1]
                ):
                    break
                at += 1
            if at + width > end:
                whole = False
                break
            at += width
        found[r] = whole
    return found


def compare_strings(slices: StringSlices, other: bytes | StringSlices) -> NDArray[np.int8]:
    """Compare texts by their bytes. Return -1 (less), 0 (equal) or 1 (greater) for each."""
    if isinstance(other, bytes):
        ends = np.array([len(other)], np.int32)
        others = (view_bytes(other or b"\0"), np.zeros(1, np.int32), ends)
    else:
        others = (other.buffer, other.start, other.end)
    order: NDArray[np.int8] = _compare_bytes(slices.buffer, slices.start, slices.end, others)
    return order


def match_like_pattern(
    slices: StringSlices, segments: Sequence[Sequence[str | None]]
) -> tuple[Mask, Mask]:
    """Return two masks: texts that match a pattern, and texts deferred to the scalar evaluator.

    `_` matches one byte, which is one character only in ASCII texts. If the pattern contains `_` or
    a byte that is not UTF-8, all other texts are deferred.
    """
    if any(each == _ANY_BYTE_SURROGATE for piece in segments for each in piece):
        return np.zeros(len(slices), np.bool_), np.ones(len(slices), np.bool_)
    encoded = [
        b"".join(
            bytes([_ANY_BYTE]) if each is None else each.encode("utf-8", "surrogateescape")
            for each in piece
        )
        for piece in segments
    ]
    bounds = np.cumsum([0, *(len(piece) for piece in encoded)], dtype=np.int32)
    flat = view_bytes(b"".join(encoded) or b"\0")
    found = _match_segments(slices.buffer, slices.start, slices.end, flat, bounds)
    if any(each is None or "\udc80" <= each <= "\udcff" for piece in segments for each in piece):
        return found, mask_non_ascii(slices.buffer, slices.start, slices.end)
    return found, np.zeros(len(slices), np.bool_)


_MAX_ASCII_BYTE = 127


@jit_kernel
def mask_non_ascii(buffer: Bytes, starts: Positions, ends: Positions) -> Mask:
    """Return a mask of the texts that contain a non-ASCII byte."""
    found = np.empty(len(starts), np.bool_)
    for r in range(len(starts)):
        found[r] = False
        for i in range(starts[r], ends[r]):
            if buffer[i] > _MAX_ASCII_BYTE:
                found[r] = True
                break
    return found


@jit_kernel
def mask_containing_byte(
    buffer: Bytes, starts: Positions, ends: Positions, wanted_byte: int
) -> Mask:
    """Return a mask of the texts that contain a byte."""
    found = np.empty(len(starts), np.bool_)
    for r in range(len(starts)):
        found[r] = False
        for i in range(starts[r], ends[r]):
            if buffer[i] == wanted_byte:
                found[r] = True
                break
    return found


@jit_kernel
def _shift_letters(
    buffer: Bytes, starts: Positions, ends: Positions, first_letter: int, shift: int
) -> tuple[Bytes, Positions, Positions]:
    """Copy texts, adding `shift` to the 26 letters that start with `first_letter`."""
    total = 0
    for r in range(len(starts)):
        total += ends[r] - starts[r]
    out = np.empty(max(total, 1), np.uint8)
    new_starts = np.empty(len(starts), np.int32)
    new_ends = np.empty(len(starts), np.int32)
    at = 0
    for r in range(len(starts)):
        new_starts[r] = at
        for i in range(starts[r], ends[r]):
            byte = buffer[i]
            out[at] = byte + shift if first_letter <= byte < first_letter + 26 else byte
            at += 1
        new_ends[r] = at
    return out, new_starts, new_ends


def to_lower_ascii(slices: StringSlices) -> StringSlices:
    """Return the texts with A-Z in lower case."""
    parts = _shift_letters(slices.buffer, slices.start, slices.end, ord("A"), 32)
    return StringSlices(*parts, np.zeros(len(slices), np.uint8))


def to_upper_ascii(slices: StringSlices) -> StringSlices:
    """Return the texts with a-z in upper case."""
    parts = _shift_letters(slices.buffer, slices.start, slices.end, ord("a"), -32)
    return StringSlices(*parts, np.zeros(len(slices), np.uint8))

"""Where the values of a JSON text begin and end, without looking at what they say."""

# One loop is one compiled function; types are what numba sees.
# ruff: noqa: C901, PLR0912, PLR0915
# mypy: disable-error-code="no-untyped-def, no-untyped-call"

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from snowmelt.compiled import kernel

if TYPE_CHECKING:
    from snowmelt.select.vectors import Bytes, Places

_QUOTE, _BACKSLASH = 34, 92
# What a byte means outside of strings.
_OTHER, _BLANK, _OPEN, _CLOSE, _STRING, _COMMA = 0, 1, 2, 3, 4, 5

_CLASSES = np.zeros(256, np.uint8)
_CLASSES[list(b" \t\r\n")] = _BLANK
_CLASSES[list(b"[{")] = _OPEN
_CLASSES[list(b"]}")] = _CLOSE
_CLASSES[_QUOTE] = _STRING
_CLASSES[ord(",")] = _COMMA


@kernel
def _walk(data: Bytes, start: int, end: int, bounds: Places, classes: Bytes) -> tuple[int, int]:
    """Find the root values in [start, end).

    Writes where each begins and ends to `bounds` (two for each, as many as fit).

    Returns:
        How many are whole, and the place behind the last of them; one that reaches `end` counts
        only if a bracket or a quote closes it.
    """
    count = 0
    last = start
    depth = 0
    begin = -1
    at = start
    while at < end:
        kind = classes[data[at]]
        if begin >= 0 and depth == 0 and kind != 0:
            # A number or a word ends where anything else begins.
            if 2 * count + 1 < len(bounds):
                bounds[2 * count] = begin
                bounds[2 * count + 1] = at
            count += 1
            last = at
            begin = -1
        if kind == 1 or (kind == 5 and depth):
            at += 1
            continue
        if begin < 0:
            begin = at
        closed = False
        if kind == 4:
            at += 1
            while at < end and data[at] != _QUOTE:
                at += 2 if data[at] == _BACKSLASH else 1
            if at >= end:
                break
            closed = depth == 0
        elif kind == 2:
            depth += 1
        elif kind == 3:
            depth = max(0, depth - 1)
            closed = depth == 0
        elif kind == 5:
            closed = True
        at += 1
        if closed:
            if 2 * count + 1 < len(bounds):
                bounds[2 * count] = begin
                bounds[2 * count + 1] = at
            count += 1
            last = at
            begin = -1
    return count, last


def root_values(data: Bytes, start: int, end: int) -> Places:
    """Return begin and end, in turn, of the root values in [start, end), the broken last one too."""
    bounds = np.empty(64, np.int32)
    count, last = _walk(data, start, end, bounds, _CLASSES)
    if 2 * count > len(bounds):
        bounds = np.empty(2 * count, np.int32)
        _walk(data, start, end, bounds, _CLASSES)
    rest = data[last:end].tobytes()
    bounds = bounds[: 2 * count]
    if rest.strip(b" \t\r\n"):
        begin = end - len(rest.lstrip(b" \t\r\n"))
        return np.append(bounds, np.array([begin, end], np.int32))
    return bounds


def cut_values(memory: bytearray, start: int, end: int) -> int:
    """Return the place behind the last whole root value of [start, end), `start` if none."""
    _, last = _walk(np.frombuffer(memory, np.uint8), start, end, np.empty(0, np.int32), _CLASSES)
    return last

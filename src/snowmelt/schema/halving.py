"""What cannot be converted at once is halved until most of it can."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Callable

# Below this many values, one after the other is quicker than another two attempts.
_FEW = 32


def in_pieces(
    values: Any,
    at_once: Callable[[Any], pa.Array | None],
    exactly: Callable[[Any], tuple[pa.Array | pa.ChunkedArray, list[int]]],
) -> tuple[pa.Array | pa.ChunkedArray, list[int]]:
    """Convert a list or an Arrow array that `at_once` has declined as a whole.

    Returns the converted values in one array, and the positions that `exactly` refused.
    """
    if len(values) <= _FEW:
        return exactly(values)
    pieces: list[pa.Array] = []
    refused: list[int] = []
    # The stack holds ranges still to do, the next one last.
    middle = len(values) // 2
    ranges = [(middle, len(values)), (0, middle)]
    while ranges:
        start, end = ranges.pop()
        part = values[start:end]
        array: pa.Array | pa.ChunkedArray | None = at_once(part)
        if array is None and end - start > _FEW:
            middle = (start + end) // 2
            ranges += [(middle, end), (start, middle)]
            continue
        if array is None:
            array, positions = exactly(part)
            refused += [start + position for position in positions]
        pieces += array.chunks if isinstance(array, pa.ChunkedArray) else [array]
    return pa.chunked_array(pieces).combine_chunks(), refused

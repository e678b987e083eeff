"""Calls of rows that are checked at once, and become a table only when a flush takes them.

What a call costs besides its rows is then paid once a flush, and half of the conversion is done
by a thread that has no need of the interpreter's lock. A call in which any row is refused, or a
single row might be too large, is left to the other paths.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from snowmelt.schema.chunk_types import chunk_schema
from snowmelt.schema.conversion.column_converter import ColumnConverter
from snowmelt.schema.conversion.compact_columns import Piece, arrays_of, compacted
from snowmelt.schema.size_estimates import array_bytes, plain_bytes, value_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from zoneinfo import ZoneInfo

    from snowmelt.schema.types import Compatibility, TableSchema

    # How to gather each column, and the rows that are refused already.
    Sources = Callable[..., tuple[Sequence[Callable[[], list[object] | None]], set[int]]]

# So many times a column is not tried after its values were not surely good.
_PAUSE = 15


class Uneven(Exception):
    """A row has other keys than the first."""


class LaterForm:
    """Checks and later converts calls for one version of a table."""

    def __init__(
        self,
        schema: TableSchema,
        zone: ZoneInfo,
        compatibility: Compatibility,
        sources: Sources,
        max_row_bytes: int,
    ) -> None:
        self.schema = schema
        self._zone = zone
        self._compatibility = compatibility
        self._sources = sources
        self._max_row_bytes = max_row_bytes
        self._converters = self._made()
        self._widths = [value_bytes(column) for column in schema.columns]
        self._pauses = [0] * len(schema.columns)

    def taken(self, rows: Sequence[Mapping[str, object]]) -> LaterRows | None:
        """Copy the rows of a call, all of which are good; None for the other paths.

        To be called by one thread at a time.
        """
        if not rows:
            return None
        try:
            columns = self._columns(rows, *self._sources(rows))
        except Uneven:
            columns = self._columns(rows, *self._sources(rows, uneven=True))
        if columns is None:
            return None
        size = sum(map(_size, columns, self._widths))
        if size > self._max_row_bytes:
            return None
        return LaterRows(self, [[column] for column in columns], len(rows), int(size) + 1)

    def table_of(self, columns: Sequence[Sequence[Piece | pa.Array]]) -> pa.Table:
        """Return the table, in chunk form, of what was taken; any thread may call it."""
        arrays = []
        # Converters of its own each time: two threads may be at work.
        for pieces, converter in zip(columns, self._made(), strict=True):
            made = arrays_of(pieces, converter)
            arrays.append(made[0] if len(made) == 1 else _chunked(made))
        return pa.Table.from_arrays(arrays, schema=chunk_schema(self.schema))

    def _made(self) -> list[ColumnConverter]:
        return [
            ColumnConverter(column, self._zone, self._compatibility)
            for column in self.schema.columns
        ]

    def _columns(
        self,
        rows: Sequence[Mapping[str, object]],
        sources: Sequence[Callable[[], list[object] | None]],
        refused: set[int],
    ) -> list[Piece | pa.Array] | None:
        if refused:
            return None
        columns: list[Piece | pa.Array] = []
        for place, (source, converter) in enumerate(zip(sources, self._converters, strict=True)):
            values = source()
            if values is None:
                if not converter.column.nullable:
                    return None
                columns.append(pa.nulls(len(rows), converter.type))
                continue
            piece = self._piece(place, values)
            if piece is None:
                piece, positions = converter.convert(values)
                if positions:
                    return None
            columns.append(piece)
        return columns

    def _piece(self, place: int, values: list[object]) -> Piece | None:
        if self._pauses[place]:
            self._pauses[place] -= 1
            return None
        piece = compacted(self.schema.columns[place], values)
        if piece is None:
            self._pauses[place] = _PAUSE
        return piece


class LaterRows:
    """Rows of one or more calls that were only checked; `size_bytes` is an estimate."""

    __slots__ = ("_columns", "form", "rows", "size_bytes")

    def __init__(
        self,
        form: LaterForm,
        columns: list[list[Piece | pa.Array]],
        rows: int,
        size_bytes: int,
    ) -> None:
        self.form = form
        self._columns = columns
        self.rows = rows
        self.size_bytes = size_bytes

    def extend(self, other: LaterRows) -> None:
        """Append the rows of a later call of the same form."""
        for own, more in zip(self._columns, other._columns, strict=True):
            own += more
        self.rows += other.rows
        self.size_bytes += other.size_bytes

    def table(self) -> pa.Table:
        """Return them in chunk form."""
        return self.form.table_of(self._columns)


def _size(column: Piece | pa.Array | pa.ChunkedArray, width: float | None) -> float:
    if isinstance(column, Piece):
        return plain_bytes(column.count, column.content_bytes, width)
    return array_bytes(column, width)


def _chunked(arrays: Sequence[pa.Array | pa.ChunkedArray]) -> pa.ChunkedArray:
    chunks: list[pa.Array] = []
    for array in arrays:
        chunks += array.chunks if isinstance(array, pa.ChunkedArray) else [array]
    return pa.chunked_array(chunks)

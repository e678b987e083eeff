"""Batches of rows that are checked immediately and converted to a table at a flush.

The fixed cost of a call is then paid once per flush, and half of the conversion runs in a thread
that does not need the interpreter's lock. A call with any rejected row, or with a single row that
might be too large, is left to the other paths.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from snowmelt.schema.chunk_types import chunk_arrow_schema
from snowmelt.schema.conversion.column_converter import ColumnConverter
from snowmelt.schema.conversion.packed_input_columns import (
    CompactColumn,
    concatenate_to_arrays,
    try_compact_column,
)
from snowmelt.schema.size_estimates import (
    estimate_array_bytes,
    estimate_fixed_value_bytes,
    estimate_non_null_bytes,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from zoneinfo import ZoneInfo

    from snowmelt.schema.types import Compatibility, TableSchema

    # How to gather each column, and the rows that are refused already.
    Sources = Callable[..., tuple[Sequence[Callable[[], list[object] | None]], set[int]]]

# So many times a column is not tried after its values were not surely good.
_SKIPPED_CALLS_AFTER_MISS = 15


class MixedKeys(Exception):
    """A row has other keys than the first."""


class DeferredConverter:
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
        self._converters = self._make_converters()
        self._widths = [estimate_fixed_value_bytes(column) for column in schema.columns]
        self._calls_to_skip = [0] * len(schema.columns)

    def try_defer(self, rows: Sequence[Mapping[str, object]]) -> DeferredRows | None:
        """Copy the rows of a call, all of which are good; None for the other paths.

        To be called by one thread at a time.
        """
        if not rows:
            return None
        try:
            columns = self._try_compact_columns(rows, *self._sources(rows))
        except MixedKeys:
            columns = self._try_compact_columns(rows, *self._sources(rows, uneven=True))
        if columns is None:
            return None
        size = sum(map(_estimate_column_bytes, columns, self._widths))
        if size > self._max_row_bytes:
            return None
        return DeferredRows(self, [[column] for column in columns], len(rows), int(size) + 1)

    def build_table(self, columns: Sequence[Sequence[CompactColumn | pa.Array]]) -> pa.Table:
        """Return the table, in chunk form, of what was taken; any thread may call it."""
        arrays = []
        # Converters of its own each time: two threads may be at work.
        for pieces, converter in zip(columns, self._make_converters(), strict=True):
            made = concatenate_to_arrays(pieces, converter)
            arrays.append(made[0] if len(made) == 1 else _to_chunked_array(made))
        return pa.Table.from_arrays(arrays, schema=chunk_arrow_schema(self.schema))

    def _make_converters(self) -> list[ColumnConverter]:
        return [
            ColumnConverter(column, self._zone, self._compatibility)
            for column in self.schema.columns
        ]

    def _try_compact_columns(
        self,
        rows: Sequence[Mapping[str, object]],
        sources: Sequence[Callable[[], list[object] | None]],
        rejected: set[int],
    ) -> list[CompactColumn | pa.Array] | None:
        if rejected:
            return None
        columns: list[CompactColumn | pa.Array] = []
        for place, (source, converter) in enumerate(zip(sources, self._converters, strict=True)):
            values = source()
            if values is None:
                if not converter.column.nullable:
                    return None
                columns.append(pa.nulls(len(rows), converter.type))
                continue
            piece = self._try_compact_column(place, values)
            if piece is None:
                piece, positions = converter.convert(values)
                if positions:
                    return None
            columns.append(piece)
        return columns

    def _try_compact_column(self, position: int, values: list[object]) -> CompactColumn | None:
        if self._calls_to_skip[position]:
            self._calls_to_skip[position] -= 1
            return None
        piece = try_compact_column(self.schema.columns[position], values)
        if piece is None:
            self._calls_to_skip[position] = _SKIPPED_CALLS_AFTER_MISS
        return piece


class DeferredRows:
    """Rows of one or more calls that were only checked; `size_bytes` is an estimate."""

    __slots__ = ("_columns", "form", "rows", "size_bytes")

    def __init__(
        self,
        form: DeferredConverter,
        columns: list[list[CompactColumn | pa.Array]],
        rows: int,
        size_bytes: int,
    ) -> None:
        self.form = form
        self._columns = columns
        self.rows = rows
        self.size_bytes = size_bytes

    def extend(self, other: DeferredRows) -> None:
        """Append the rows of a later call of the same form."""
        for own, more in zip(self._columns, other._columns, strict=True):
            own += more
        self.rows += other.rows
        self.size_bytes += other.size_bytes

    def to_table(self) -> pa.Table:
        """Return them in chunk form."""
        return self.form.build_table(self._columns)


def _estimate_column_bytes(
    column: CompactColumn | pa.Array | pa.ChunkedArray, width_bytes: float | None
) -> float:
    if isinstance(column, CompactColumn):
        return estimate_non_null_bytes(column.count, column.content_bytes, width_bytes)
    return estimate_array_bytes(column, width_bytes)


def _to_chunked_array(arrays: Sequence[pa.Array | pa.ChunkedArray]) -> pa.ChunkedArray:
    chunks: list[pa.Array] = []
    for array in arrays:
        chunks += array.chunks if isinstance(array, pa.ChunkedArray) else [array]
    return pa.chunked_array(chunks)

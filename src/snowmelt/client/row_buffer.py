"""Buffer for rows of one channel between insert and flush, and their conversion to tables.

Rows that were inserted before a table was altered are adapted to its current columns: values stay
with the ordinal of their column, values of dropped columns are removed, and added columns are NULL.
If a column was dropped and added again with the same name, values move to the new column.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias
from zoneinfo import ZoneInfo

import pyarrow as pa

from snowmelt.client.counters_and_metrics import ChannelCounts
from snowmelt.schema.chunk_types import FIELD_ID, chunk_arrow_schema, chunk_arrow_type
from snowmelt.schema.conversion.deferred_single_rows import FastRows
from snowmelt.schema.conversion.row_converter import DeferredRows, RowConverter
from snowmelt.schema.inference import widen_column_type

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from snowmelt.schema.conversion.deferred_single_rows import FastRowChecker, Values
    from snowmelt.schema.types import TableSchema

if TYPE_CHECKING:
    BufferSegment: TypeAlias = pa.Table | list["StoredRow"] | FastRows | DeferredRows

# Clock and limits are checked after this number of rows, and for rows of at least this many bytes.
_ROWS_BETWEEN_LIMIT_CHECKS = 256
LARGE_ROW_BYTES = 16 * 1024

StoredRow: TypeAlias = tuple[int | float | bool | str | bytes | None, ...]


@dataclass(frozen=True, slots=True)
class InsertBatch:
    """Valid rows of one insert: a table, deferred rows, or one row as stored values.

    A batch without rows only sets the offset token. `schema` is the schema of a single row.
    """

    data: pa.Table | DeferredRows | FastRows | StoredRow | None
    row_count: int
    size_bytes: int
    start_token: str | None = None
    end_token: str | None = None
    schema: TableSchema | None = None


@dataclass(slots=True)
class FlushSlice:
    """Rows of one channel in one flush, in insertion order.

    `offset_tokens` are the tokens that the flush commits. `end_token` is the last one. If
    `flushes_without_rows` is true, the slice is sent for its token even if it has no rows.
    """

    segments: list[BufferSegment] = field(default_factory=list)
    row_count: int = 0
    size_bytes: int = 0
    start_token: str | None = None
    end_token: str | None = None
    offset_tokens: list[str] = field(default_factory=list)
    first_insert_ms: int = 0
    last_insert_ms: int = 0
    flushes_without_rows: bool = False


class RowBuffer:
    """Buffered rows of a channel. Callers must hold a lock.

    The offset token stays until a call sets a new one. Inserted rows are added to `counts`.

    Rows that were checked but not converted are in `fast_run`, and are counted later in groups.
    While `fast_run` has fewer than `next_check_items` items, the holder of the lock may append rows
    of the same form directly. Otherwise it must call `append_fast_row`.
    """

    __slots__ = ("_counted_run_rows", "_counts", "_flush_slice", "fast_run", "next_check_items")

    def __init__(self, offset_token: str | None, counts: ChannelCounts | None = None) -> None:
        self._flush_slice = FlushSlice(end_token=offset_token)
        self._counts = ChannelCounts() if counts is None else counts
        self._counted_run_rows = 0
        self.fast_run: FastRows | None = None
        self.next_check_items = 0

    @property
    def row_count(self) -> int:
        """Number of rows."""
        return self._count_fast_run_rows().row_count

    @property
    def has_data_to_flush(self) -> bool:
        """True if the buffer has rows or a token to flush."""
        return self._count_fast_run_rows().row_count > 0 or self._flush_slice.flushes_without_rows

    @property
    def size_bytes(self) -> int:
        """Estimated size in bytes."""
        return self._count_fast_run_rows().size_bytes

    @property
    def first_insert_ms(self) -> int:
        """Time of the first insert in ms since 1970."""
        return self._flush_slice.first_insert_ms

    def append_batch(self, batch: InsertBatch, inserted_at_ms: int) -> None:
        """Append a batch, and set the offset token.

        The token of a batch without rows waits for the next row (specification of v1, §7.4), or
        for `request_offset_token_flush`.
        """
        self.end_fast_run()
        portion = self._flush_slice
        if portion.row_count == 0:
            portion.start_token = batch.start_token
            portion.first_insert_ms = inserted_at_ms
        if batch.end_token is not None:
            portion.end_token = batch.end_token
            portion.offset_tokens.append(batch.end_token)
        if batch.row_count == 0:
            return
        portion.last_insert_ms = inserted_at_ms
        self._add_counts(batch.row_count, batch.size_bytes)
        parts = portion.segments
        last = parts[-1] if parts else None
        if isinstance(batch.data, (DeferredRows, FastRows)):
            if not (isinstance(last, (DeferredRows, FastRows)) and last.try_extend(batch.data)):
                parts.append(batch.data)
        elif not isinstance(batch.data, tuple):
            parts.append(batch.data)
        elif parts and isinstance(parts[-1], list):
            parts[-1].append(batch.data)
        else:
            parts.append([batch.data])

    def request_offset_token_flush(self, inserted_at_ms: int) -> None:
        """Commit the offset token with the next flush, even without rows."""
        self._flush_slice.flushes_without_rows = True
        self._flush_slice.last_insert_ms = inserted_at_ms

    def append_fast_row(
        self, checker: FastRowChecker, values: Values, token: str | None, inserted_at_ms: int
    ) -> None:
        """Append a checked, unconverted row. The next rows may be appended to `fast_run` directly."""
        portion = self._count_fast_run_rows()
        if self.fast_run is None or self.fast_run.form is not checker:
            self.end_fast_run()
            self.fast_run = FastRows(checker)
            portion.segments.append(self.fast_run)
        if portion.row_count == 0:
            portion.start_token = token
            portion.first_insert_ms = inserted_at_ms
        portion.last_insert_ms = inserted_at_ms
        self.fast_run.items.extend(values)
        if token is not None:
            self.fast_run.tokens.append(token)
        self._count_fast_run_rows()
        self.next_check_items = (
            len(self.fast_run.items) + _ROWS_BETWEEN_LIMIT_CHECKS * checker.items_per_row
        )

    def end_fast_run(self) -> None:
        """End `fast_run`, so that the next row needs `append_fast_row`."""
        self._count_fast_run_rows()
        self.fast_run = None
        self._counted_run_rows = 0

    def contains_token(self, token: str) -> bool:
        """Return True if the next slice commits this offset token."""
        return token in self._count_fast_run_rows().offset_tokens

    def get_segments_for_update(self) -> list[BufferSegment]:
        """Return the segments for modification in place."""
        self.end_fast_run()
        return self._flush_slice.segments

    def pop_slice(self) -> FlushSlice:
        """Return the buffered rows, and clear the buffer."""
        self.end_fast_run()
        taken = self._flush_slice
        self._flush_slice = FlushSlice(end_token=taken.end_token)
        return taken

    def _count_fast_run_rows(self) -> FlushSlice:
        """Count the rows that were appended to `fast_run` since the last call."""
        portion, run = self._flush_slice, self.fast_run
        if run is None or (rows := run.row_count) == self._counted_run_rows:
            return portion
        self._add_counts(
            rows - self._counted_run_rows, run.estimated_bytes_from(self._counted_run_rows)
        )
        self._counted_run_rows = rows
        if run.tokens:
            portion.end_token = run.tokens[-1]
            portion.offset_tokens += run.tokens
            run.tokens.clear()
        return portion

    def _add_counts(self, rows: int, size_bytes: int) -> None:
        self._flush_slice.row_count += rows
        self._flush_slice.size_bytes += size_bytes
        self._counts.inserted_rows += rows
        self._counts.inserted_bytes += size_bytes


# In larger segments, the fixed cost per column is small compared with the cost per row.
_SMALL_SEGMENT_ROWS = 256


def find_schema_mismatch(older: TableSchema, current: TableSchema) -> str | None:
    """Return why rows with `older` columns cannot be adapted to `current` columns, or None if they can."""
    known = {column.ordinal: column for column in older.columns}
    remaining = {column.ordinal for column in current.columns}
    dropped = {column.name: column for column in older.columns if column.ordinal not in remaining}
    for column in current.columns:
        before = known.get(column.ordinal) or dropped.get(column.name)
        if before is None:
            if not column.nullable:
                return f"NOT NULL column {column.display_name} was added"
        elif isinstance(widen_column_type(before, column), str) or (
            before.nullable and not column.nullable
        ):
            null = "" if column.nullable else " NOT NULL"
            return f"column {column.display_name} was changed to {column.sql_type}{null}"
    return None


def adapt_rows(table: pa.Table, schema: TableSchema) -> pa.Table:
    """Adapt rows in chunk form to the columns of `schema`."""
    wanted = chunk_arrow_schema(schema)
    if table.schema.equals(wanted, check_metadata=True):
        return table
    places = {
        int((table.schema.field(place).metadata or {}).get(FIELD_ID, b"0")): place
        for place in range(table.num_columns)
    }
    remaining = {column.ordinal for column in schema.columns}
    dropped = {
        table.schema.field(place).name: place
        for ordinal, place in places.items()
        if ordinal not in remaining
    }
    columns = []
    for column in schema.columns:
        place = places.get(column.ordinal, dropped.get(column.name))
        kind = chunk_arrow_type(column)
        if place is None:
            columns.append(pa.nulls(table.num_rows, kind))
        else:
            values = table.column(place)
            columns.append(values if values.type == kind else values.cast(kind))
    return pa.Table.from_arrays(columns, schema=wanted)


def segments_to_tables(
    segments: Sequence[BufferSegment], schema: TableSchema
) -> list[BufferSegment]:
    """Convert segments to tables. Rows in lists have the columns of `schema`."""
    converter = RowConverter(schema, zone=ZoneInfo("UTC"))  # The zone is not used.
    return [segment_to_table(part, converter) for part in segments]


def convert_segments_jointly(
    segment_lists: Sequence[list[BufferSegment]], schema: TableSchema
) -> list[pa.Table]:
    """Convert segments of many channels to tables in place. Return the same rows in order.

    Channels with few rows are converted together, because converting one row takes as long as a
    hundred. Rows in lists have the columns of `schema`.
    """
    # Create a converter, because another thread may be using the channel's converter. The zone is
    # not used.
    converter = RowConverter(schema, zone=ZoneInfo("UTC"))
    places = [(parts, place) for parts in segment_lists for place in range(len(parts))]
    tables = []
    for together in _group_for_conversion(places):
        first, *others = [parts[place] for parts, place in together]
        if isinstance(first, FastRows) and others:
            quick = [each for each in (first, *others) if isinstance(each, FastRows)]
            table = first.form.build_table([item for each in quick for item in each.items])
            ends = itertools.accumulate(each.row_count for each in quick)
            for (parts, place), each, end in zip(together, quick, ends, strict=True):
                parts[place] = table.slice(end - each.row_count, each.row_count)
        else:
            parts, place = together[0]
            table = parts[place] = segment_to_table(first, converter)
        tables.append(table)
    return tables


def _group_for_conversion(
    positions: Sequence[tuple[list[BufferSegment], int]],
) -> Iterator[list[tuple[list[BufferSegment], int]]]:
    """Yield groups of segment positions, in order. Segments of a group have the same conversion."""
    run: list[tuple[list[BufferSegment], int]] = []
    rows = 0
    before: FastRows | None = None
    for parts, place in positions:
        part = parts[place]
        few = part if isinstance(part, FastRows) and part.row_count <= _SMALL_SEGMENT_ROWS else None
        alike = (
            few
            and before
            and rows <= _SMALL_SEGMENT_ROWS * 16
            and before.form.is_compatible_with(few.form)
        )
        if run and not alike:
            yield run
            run, rows = [], 0
        run.append((parts, place))
        rows += 0 if few is None else few.row_count
        before = few
    if run:
        yield run


def segment_to_table(segment: BufferSegment, converter: RowConverter) -> pa.Table:
    """Convert a segment to a table. Rows in lists have the columns of the converter."""
    if isinstance(segment, (FastRows, DeferredRows)):
        return segment.to_table()
    return converter.build_table(segment) if isinstance(segment, list) else segment

"""Rows of one channel between insert and flush."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias
from zoneinfo import ZoneInfo

import pyarrow as pa

from snowmelt.client.status import Counts
from snowmelt.schema.chunk_types import FIELD_ID, chunk_arrow_schema, chunk_arrow_type
from snowmelt.schema.conversion.deferred_rows import DeferredRows
from snowmelt.schema.conversion.fast_rows import FastRows
from snowmelt.schema.conversion.row_converter import RowConverter
from snowmelt.schema.evolution import widen_type

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from snowmelt.schema.conversion.fast_rows import FastRowChecker, Values
    from snowmelt.schema.types import TableSchema

if TYPE_CHECKING:
    Part: TypeAlias = pa.Table | list["Stored"] | FastRows | DeferredRows

# After so many rows, or with one of so many bytes, clock and limits are looked at.
_ROWS_PER_LOOK = 256
LARGE = 16 * 1024

Stored: TypeAlias = tuple[int | float | bool | str | bytes | None, ...]


@dataclass(frozen=True, slots=True)
class Batch:
    """The good rows of one insert call: in chunk form, now or later, or one row as stored values.

    Without rows it only moves the offset token. `schema` is what one row's values are for.
    """

    part: pa.Table | DeferredRows | Stored | None
    rows: int
    size_bytes: int
    start_token: str | None = None
    end_token: str | None = None
    schema: TableSchema | None = None


@dataclass(slots=True)
class Portion:
    """What one flush takes from one channel, in the order of insertion.

    `tokens` are all offset tokens that are committed by it; the last given is `end_token`. One
    that `goes_alone` is sent even if it has no rows, for its token.
    """

    parts: list[Part] = field(default_factory=list)
    rows: int = 0
    size_bytes: int = 0
    start_token: str | None = None
    end_token: str | None = None
    tokens: list[str] = field(default_factory=list)
    first_insert_ms: int = 0
    last_insert_ms: int = 0
    goes_alone: bool = False


class Buffer:
    """Rows that no flush has taken yet; whoever shares it holds a lock.

    `token` is the offset token last known for the channel: a call without one leaves it. What comes in is
    added to `counts`.

    Rows that were only checked are kept in `run` and counted later, many at a time. While it is
    there, and has fewer than `look_at` items, whoever holds the lock may put rows of its form
    there, which else are for `add_quick`.
    """

    __slots__ = ("_counted", "_counts", "_portion", "look_at", "run")

    def __init__(self, token: str | None, counts: Counts | None = None) -> None:
        self._portion = Portion(end_token=token)
        self._counts = Counts() if counts is None else counts
        self._counted = 0
        self.run: FastRows | None = None
        self.look_at = 0

    @property
    def rows(self) -> int:
        """Rows held."""
        return self._settled().rows

    @property
    def is_due(self) -> bool:
        """Whether a flush takes something from here."""
        return self._settled().rows > 0 or self._portion.goes_alone

    @property
    def size_bytes(self) -> int:
        """Estimated bytes held."""
        return self._settled().size_bytes

    @property
    def first_insert_ms(self) -> int:
        """When the first of its rows was inserted, ms since 1970."""
        return self._portion.first_insert_ms

    def add(self, batch: Batch, at_ms: int) -> None:
        """Append a batch and move the offset token.

        The token of a batch without rows waits for the next row (specification of v1, §7.4), or
        for `send`.
        """
        self.rest()
        portion = self._portion
        if portion.rows == 0:
            portion.start_token = batch.start_token
            portion.first_insert_ms = at_ms
        if batch.end_token is not None:
            portion.end_token = batch.end_token
            portion.tokens.append(batch.end_token)
        if batch.rows == 0:
            return
        portion.last_insert_ms = at_ms
        self._count(batch.rows, batch.size_bytes)
        parts = portion.parts
        last = parts[-1] if parts else None
        if isinstance(batch.part, DeferredRows) and isinstance(last, DeferredRows):
            if last.form is batch.part.form:
                last.extend(batch.part)
            else:
                parts.append(batch.part)
        elif not isinstance(batch.part, tuple):
            parts.append(batch.part)
        elif parts and isinstance(parts[-1], list):
            parts[-1].append(batch.part)
        else:
            parts.append([batch.part])

    def send(self, at_ms: int) -> None:
        """Let the next flush commit the offset token, whether a row comes or not."""
        self._portion.goes_alone = True
        self._portion.last_insert_ms = at_ms

    def add_quick(
        self, form: FastRowChecker, values: Values, token: str | None, at_ms: int
    ) -> None:
        """Append a row that was only checked, and let those that follow go into `run`."""
        portion = self._settled()
        if self.run is None or self.run.form is not form:
            self.rest()
            self.run = FastRows(form)
            portion.parts.append(self.run)
        if portion.rows == 0:
            portion.start_token = token
            portion.first_insert_ms = at_ms
        portion.last_insert_ms = at_ms
        self.run.items.extend(values)
        if token is not None:
            self.run.tokens.append(token)
        self._settled()
        self.look_at = len(self.run.items) + _ROWS_PER_LOOK * form.items_per_row

    def rest(self) -> None:
        """See that no row goes into `run` before the next look."""
        self._settled()
        self.run = None
        self._counted = 0

    def brings(self, token: str) -> bool:
        """Tell whether the next portion commits this offset token."""
        return token in self._settled().tokens

    def parts(self) -> list[Part]:
        """Return what is held, to be changed in place."""
        self.rest()
        return self._portion.parts

    def take(self) -> Portion:
        """Return what is held, and hold nothing."""
        self.rest()
        taken = self._portion
        self._portion = Portion(end_token=taken.end_token)
        return taken

    def _settled(self) -> Portion:
        """Count what has come into `run` since the last time."""
        portion, run = self._portion, self.run
        if run is None or (rows := run.rows) == self._counted:
            return portion
        self._count(rows - self._counted, run.estimated_bytes_from(self._counted))
        self._counted = rows
        if run.tokens:
            portion.end_token = run.tokens[-1]
            portion.tokens += run.tokens
            run.tokens.clear()
        return portion

    def _count(self, rows: int, size_bytes: int) -> None:
        self._portion.rows += rows
        self._portion.size_bytes += size_bytes
        self._counts.inserted_rows += rows
        self._counts.inserted_bytes += size_bytes


# --- Rows that were inserted for older columns of a table, brought into its columns of now.
#
# They become what they would be if they had been committed just before the table was altered: a
# value stays with its column's number, what was dropped goes, what was added is NULL.

# Beyond this many rows a part's conversion costs what its rows cost, not its columns.
_FEW = 256


def misfit(older: TableSchema, current: TableSchema) -> str | None:
    """Return why rows made for `older` columns cannot become rows of `current`; None if they can."""
    known = {column.ordinal: column for column in older.columns}
    for column in current.columns:
        before = known.get(column.ordinal)
        if before is None:
            if not column.nullable:
                return f"column {column.display_name} was added, which is NOT NULL"
        elif isinstance(widen_type(before, column), str) or (
            before.nullable and not column.nullable
        ):
            null = "" if column.nullable else " NOT NULL"
            return f"column {column.display_name} is {column.sql_type}{null} now"
    return None


def fitted(table: pa.Table, schema: TableSchema) -> pa.Table:
    """Return rows in chunk form with the columns of `schema`; those that have them already as is."""
    wanted = chunk_arrow_schema(schema)
    if table.schema.equals(wanted, check_metadata=True):
        return table
    places = {
        int((table.schema.field(place).metadata or {}).get(FIELD_ID, b"0")): place
        for place in range(table.num_columns)
    }
    columns = []
    for column in schema.columns:
        place = places.get(column.ordinal)
        kind = chunk_arrow_type(column)
        if place is None:
            columns.append(pa.nulls(table.num_rows, kind))
        else:
            values = table.column(place)
            columns.append(values if values.type == kind else values.cast(kind))
    return pa.Table.from_arrays(columns, schema=wanted)


def as_tables(parts: Sequence[Part], schema: TableSchema) -> list[Part]:
    """Return parts as tables, which know their own columns; rows in lists are of `schema`."""
    converter = RowConverter(schema, zone=ZoneInfo("UTC"))  # the zone is not used
    return [as_table(part, converter) for part in parts]


def joint_tables(portions: Sequence[list[Part]], schema: TableSchema) -> list[pa.Table]:
    """Turn the parts of many channels into tables in place; return the same rows, in order.

    Channels with few rows each are converted together: by itself a row costs as much as a hundred.
    Rows in lists are of `schema`.
    """
    # The channel's own converter may be at work in another thread; the zone is not used.
    converter = RowConverter(schema, zone=ZoneInfo("UTC"))
    places = [(parts, place) for parts in portions for place in range(len(parts))]
    tables = []
    for together in _runs(places):
        first, *others = [parts[place] for parts, place in together]
        if isinstance(first, FastRows) and others:
            quick = [each for each in (first, *others) if isinstance(each, FastRows)]
            table = first.form.build_table([item for each in quick for item in each.items])
            ends = itertools.accumulate(each.rows for each in quick)
            for (parts, place), each, end in zip(together, quick, ends, strict=True):
                parts[place] = table.slice(end - each.rows, each.rows)
        else:
            parts, place = together[0]
            table = parts[place] = as_table(first, converter)
        tables.append(table)
    return tables


def _runs(places: Sequence[tuple[list[Part], int]]) -> Iterator[list[tuple[list[Part], int]]]:
    """Yield places of parts in order, those together that one conversion takes."""
    run: list[tuple[list[Part], int]] = []
    rows = 0
    before: FastRows | None = None
    for parts, place in places:
        part = parts[place]
        few = part if isinstance(part, FastRows) and part.rows <= _FEW else None
        alike = few and before and rows <= _FEW * 16 and before.form.is_compatible_with(few.form)
        if run and not alike:
            yield run
            run, rows = [], 0
        run.append((parts, place))
        rows += 0 if few is None else few.rows
        before = few
    if run:
        yield run


def as_table(part: Part, converter: RowConverter) -> pa.Table:
    """Return one part as a table; rows in lists are of the converter's schema."""
    if isinstance(part, (FastRows, DeferredRows)):
        return part.to_table()
    return converter.build_table(part) if isinstance(part, list) else part

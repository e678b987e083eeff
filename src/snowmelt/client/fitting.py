"""Rows that were inserted for older columns of a table, brought into its columns of now.

They become what they would be if they had been committed just before the table was altered: a
value stays with its column's number, what was dropped goes, what was added is NULL.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

import pyarrow as pa

from snowmelt.schema.arrow import FIELD_ID, chunk_schema, chunk_type
from snowmelt.schema.evolution import widened
from snowmelt.schema.later import LaterRows
from snowmelt.schema.quick import QuickRows
from snowmelt.schema.rows import RowConverter

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from snowmelt.client.buffer import Part
    from snowmelt.schema.types import TableSchema

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
        elif isinstance(widened(before, column), str) or (before.nullable and not column.nullable):
            null = "" if column.nullable else " NOT NULL"
            return f"column {column.display_name} is {column.sql_type}{null} now"
    return None


def fitted(table: pa.Table, schema: TableSchema) -> pa.Table:
    """Return rows in chunk form with the columns of `schema`; those that have them already as is."""
    wanted = chunk_schema(schema)
    if table.schema.equals(wanted, check_metadata=True):
        return table
    places = {
        int((table.schema.field(place).metadata or {}).get(FIELD_ID, b"0")): place
        for place in range(table.num_columns)
    }
    columns = []
    for column in schema.columns:
        place = places.get(column.ordinal)
        kind = chunk_type(column)
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
        if isinstance(first, QuickRows) and others:
            quick = [each for each in (first, *others) if isinstance(each, QuickRows)]
            table = first.form.table_of([item for each in quick for item in each.items])
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
    before: QuickRows | None = None
    for parts, place in places:
        part = parts[place]
        few = part if isinstance(part, QuickRows) and part.rows <= _FEW else None
        alike = few and before and rows <= _FEW * 16 and before.form.is_like(few.form)
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
    if isinstance(part, (QuickRows, LaterRows)):
        return part.table()
    return converter.table_of(part) if isinstance(part, list) else part

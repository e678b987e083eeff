"""Rows that were inserted for older columns of a table, brought into its columns of now.

They become what they would be if they had been committed just before the table was altered: a
value stays with its column's number, what was dropped goes, what was added is NULL.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

import pyarrow as pa

from snowmelt.schema.arrow import FIELD_ID, chunk_schema, chunk_type
from snowmelt.schema.evolution import widened
from snowmelt.schema.quick import QuickRows
from snowmelt.schema.rows import RowConverter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from snowmelt.client.buffer import Part
    from snowmelt.schema.types import TableSchema


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


def as_table(part: Part, converter: RowConverter) -> pa.Table:
    """Return one part as a table; rows in lists are of the converter's schema."""
    if isinstance(part, QuickRows):
        return part.table()
    return converter.table_of(part) if isinstance(part, list) else part

"""Columns about the file of each row, such as METADATA$FILENAME and partition columns.

Expressions can use them like parsed columns. They are not stored.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Sequence
from dataclasses import replace
from urllib.parse import unquote

import pyarrow as pa

from snowmelt.errors import LoadFailed
from snowmelt.load.portion import InputFile
from snowmelt.schema.iceberg_table_form import native_schema
from snowmelt.schema.types import MAX_TEXT_BYTES, Column, LogicalType, TableSchema

FILENAME = "METADATA$FILENAME"
_FILE_ROW_NUMBER = "METADATA$FILE_ROW_NUMBER"
_FILE_LAST_MODIFIED = "METADATA$FILE_LAST_MODIFIED"
_START_SCAN_TIME = "METADATA$START_SCAN_TIME"
FILE_COLUMN_NAMES = (FILENAME, _FILE_ROW_NUMBER, _FILE_LAST_MODIFIED, _START_SCAN_TIME)
_PARTITION_PREFIX = "PARTITION$"
# Hive writes this name for NULL.
_NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"


def make_file_columns(partition_columns: Sequence[str], first_ordinal: int) -> tuple[Column, ...]:
    """Return the columns about files, numbered from `first_ordinal`."""
    text = Column(FILENAME, LogicalType.TEXT, 0, length=MAX_TEXT_BYTES, byte_length=MAX_TEXT_BYTES)
    columns = (
        text,
        Column(_FILE_ROW_NUMBER, LogicalType.FIXED, 0, precision=18, scale=0),
        Column(_FILE_LAST_MODIFIED, LogicalType.TIMESTAMP_NTZ, 0, scale=6),
        Column(_START_SCAN_TIME, LogicalType.TIMESTAMP_LTZ, 0, scale=6),
        *(replace(text, name=_PARTITION_PREFIX + each) for each in partition_columns),
    )
    return tuple(replace(each, ordinal=first_ordinal + n) for n, each in enumerate(columns))


def make_partition_expression(column: str) -> str:
    """Return the expression of the value of a partition column."""
    return '"' + (_PARTITION_PREFIX + column).replace('"', '""') + '"'


def uses_row_numbers(expressions: Collection[str]) -> bool:
    """Return True if an expression needs numbers of rows, so that files must not be split."""
    return any(_FILE_ROW_NUMBER in each.upper() for each in expressions)


def add_file_columns(
    rows: pa.Table,
    columns: Sequence[Column],
    file: InputFile | None,
    row_numbers: Sequence[int],
    started_at: dt.datetime | None,
) -> pa.Table:
    """Add columns of `make_file_columns` to parsed rows.

    Args:
        rows: Parsed rows.
        columns: The columns to add.
        file: The file of the rows. None: the source has no files, so the columns are NULL.
        row_numbers: Number of each row in the file, from 1.
        started_at: When the load began.

    Raises:
        LoadFailed: If the path of the file lacks a partition column.
    """
    schema = native_schema(TableSchema(1, tuple(columns)))
    for column, field in zip(columns, schema, strict=True):
        if column.name == _FILE_ROW_NUMBER and file is not None:
            # Arrow casts integers to decimals of 19 digits at least.
            array = pa.array(row_numbers, pa.int64()).cast(pa.decimal128(19)).cast(field.type)
        else:
            value = _find_value(column.name, file, started_at)
            array = pa.repeat(pa.scalar(value, field.type), rows.num_rows)
        rows = rows.append_column(field, array)
    return rows


def _find_value(name: str, file: InputFile | None, started_at: dt.datetime | None) -> object:
    if name == _START_SCAN_TIME:
        return started_at
    if file is None:
        return None
    if name == FILENAME:
        return file.path
    if name == _FILE_LAST_MODIFIED:
        at = file.modified_at
        return None if at is None else at.astimezone(dt.UTC).replace(tzinfo=None)
    return _read_partition_value(file.path, name.removeprefix(_PARTITION_PREFIX))


def _read_partition_value(path: str, column: str) -> str | None:
    """Return the value of a folder `column=value` in a path."""
    for segment in path.split("/")[:-1]:
        name, equals, value = segment.partition("=")
        if equals and unquote(name).upper() == column.upper():
            return None if value == _NULL_PARTITION else unquote(value)
    raise LoadFailed(
        where=path,
        reason=f"no folder of the path is named {column.lower()}=…, and {column} is a partition column",
        file=path,
    )

"""Schema and rows of error tables. SDK, row API and COPY store rejected rows in the same format."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from zoneinfo import ZoneInfo

from snowmelt.schema.conversion.json_text import format_json
from snowmelt.schema.conversion.row_converter import RowConversion, RowConverter, RowError
from snowmelt.schema.types import MAX_TEXT_BYTES, Column, LogicalType, TableSchema

# Maximum size of one row. Longer data is truncated, and CODE is `cut`, which `snowmelt replay`
# reads.
MAX_ROW_CHARACTERS = 1024 * 1024
# Maximum total size of the rows of one call. Further rows are stored without their data.
MAX_CALL_CHARACTERS = 64 * 1024 * 1024
_MAX_REASON_CHARACTERS = 4096
_UTC = ZoneInfo("UTC")
TRUNCATED_CODE = "cut"
# Values that distinguish rows of the SDK and markers of `snowmelt replay`: the PROTOCOL `sdk` or
# `replay`, and the CODE `replay_void`.
SDK_PROTOCOL = "sdk"
REPLAY_PROTOCOL = "replay"
REPLAY_VOID_PROTOCOL = "replay_void"


def _make_text_column(name: str, ordinal: int) -> Column:
    return Column(
        name, LogicalType.TEXT, ordinal, length=MAX_TEXT_BYTES // 4, byte_length=MAX_TEXT_BYTES
    )


ERROR_SCHEMA = TableSchema(
    1,
    (
        _make_text_column("REFUSAL_ID", 1),
        Column("REFUSED_AT", LogicalType.TIMESTAMP_LTZ, 2, scale=6),
        _make_text_column("TABLE_NAME", 3),
        _make_text_column("PROTOCOL", 4),
        _make_text_column("SOURCE", 5),
        _make_text_column("START_OFFSET_TOKEN", 6),
        _make_text_column("OFFSET_TOKEN", 7),
        Column("ROW_NUMBER", LogicalType.FIXED, 8, precision=18, scale=0),
        _make_text_column("COLUMN_NAME", 9),
        _make_text_column("CODE", 10),
        _make_text_column("REASON", 11),
        _make_text_column("ROW_DATA", 12),
    ),
)


@dataclass(frozen=True, slots=True)
class ErrorRowOrigin:
    """Origin of rejected rows.

    `protocol` is `sdk`, `rows` or `copy`. `source` is a channel or the ID of a load. `table` is the
    full name of the table that rejected the rows.
    """

    table: str
    protocol: str
    source: str
    rejected_at: dt.datetime
    start_offset_token: str | None = None
    offset_token: str | None = None


@dataclass(frozen=True, slots=True)
class ErrorRow:
    """Rejected row with its number in its call. Unknown parts are None."""

    number: int | None
    reason: str
    row: object
    code: str | None = None
    column: str | None = None


def find_missing_error_columns(schema: TableSchema) -> list[str]:
    """Return the columns of an error table that a table lacks, or has with another type."""
    there = {column.name: column for column in schema.columns}
    return [
        f"{column.display_name} {column.sql_type}"
        for column in ERROR_SCHEMA.columns
        if (found := there.get(column.name)) is None or found.sql_type != column.sql_type
    ] + [f"{column.display_name} NULL" for column in schema.columns if not column.nullable]


def to_error_row(error: RowError) -> ErrorRow:
    """Convert a rejection by a row converter to an error row."""
    columns = error.extra_columns or error.missing_not_null or error.null_for_not_null
    column = ", ".join(columns) if columns else error.error.fields.get("column")
    return ErrorRow(
        error.row_index,
        str(error.error),
        error.row,
        error.error.code,
        None if column is None else str(column),
    )


def make_error_table_rows(
    origin: ErrorRowOrigin, error_rows: Iterable[ErrorRow]
) -> Iterator[dict[str, object]]:
    """Yield rejected rows as rows of the error table, each with a unique ID."""
    call, left = uuid.uuid4().hex, MAX_CALL_CHARACTERS
    for place, each in enumerate(error_rows):
        data = None if each.row is None else row_to_json(each.row)
        code = each.code
        if data is not None and len(data) > min(MAX_ROW_CHARACTERS, left):
            data, code = data[: min(MAX_ROW_CHARACTERS, left)] or None, TRUNCATED_CODE
        left -= len(data or "")
        yield {
            "REFUSAL_ID": f"{call}-{place}",
            "REFUSED_AT": origin.rejected_at,
            "TABLE_NAME": origin.table,
            "PROTOCOL": origin.protocol,
            "SOURCE": origin.source,
            "START_OFFSET_TOKEN": origin.start_offset_token,
            "OFFSET_TOKEN": origin.offset_token,
            "ROW_NUMBER": each.number,
            "COLUMN_NAME": None
            if each.column is None
            else _escape_surrogates(each.column)[:_MAX_REASON_CHARACTERS],
            "CODE": code,
            # Replace characters that a text column rejects, which a reason may quote.
            "REASON": _escape_surrogates(each.reason)[:_MAX_REASON_CHARACTERS],
            "ROW_DATA": data,
        }


def convert_error_table_rows(
    schema: TableSchema, rows: Iterable[dict[str, object]]
) -> RowConversion:
    """Convert rows of `make_error_table_rows` for the current columns of a table.

    Values of dropped columns are omitted.
    """
    names = {column.name for column in schema.columns}
    listed = list(rows)
    wanted = [{f'"{name}"': row[name] for name in row if name in names} for row in listed]
    # A further column of the table may have the default CURRENT_TIMESTAMP.
    rejected_at = next((row["REFUSED_AT"] for row in listed), None)
    get_now = None if not isinstance(rejected_at, dt.datetime) else lambda: rejected_at
    return RowConverter(schema, zone=_UTC, get_now=get_now).convert(wanted)


def row_to_json(row: object) -> str:
    """Return a row as JSON, with `repr` for values without a JSON form."""
    if isinstance(row, str):
        return _escape_surrogates(row)
    if not isinstance(row, Mapping):
        return _value_to_json(row)
    fields = (
        f"{format_json(_escape_surrogates(str(name)))}:{_value_to_json(value)}"
        for name, value in row.items()
    )
    return "{" + ",".join(fields) + "}"


def _value_to_json(value: object) -> str:
    if isinstance(value, (bytes, bytearray, memoryview)):
        # Text form of BINARY values.
        return format_json(bytes(value).hex())
    try:
        return format_json(value)
    except (TypeError, ValueError, RecursionError):
        try:
            text = repr(value)
        except Exception:  # noqa: BLE001 - a user's own class
            text = f"<{type(value).__name__}>"
        return format_json(_escape_surrogates(text))


def _escape_surrogates(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()

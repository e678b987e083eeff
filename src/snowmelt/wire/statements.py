"""Messages of the statement API, a subset of Snowflake's SQL API (`POST /api/v2/statements`).

Results are synchronous and in one partition. Values are sent as strings. Numbers are in decimal
notation or `nan`, `inf` and `-inf`, booleans are `true` and `false`, and `binary` is in hexadecimal notation. Timestamps are
seconds since 1970 with nine decimals; `date` is days since 1970.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

import msgspec

STATEMENTS_PATH = "/api/v2/statements"
SUCCESS_CODE = "090001"
SUCCESS_SQL_STATE = "00000"
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_EPOCH_DAY = _EPOCH.date().toordinal()


class StatementRequest(msgspec.Struct, omit_defaults=True):
    """Request to run one statement. Names are in SQL notation.

    `timeout` is accepted and has no effect. `bindings` and other fields are rejected.
    """

    statement: str
    database: str | None = None
    schema: str | None = None
    role: str | None = None
    warehouse: str | None = None
    timeout: int | None = None
    bindings: dict[str, Any] | None = None
    parameters: dict[str, Any] | None = None


class ResultColumn(msgspec.Struct):
    """One column of a result.

    `type` is fixed, real, boolean, date, timestamp_ltz, timestamp_ntz, binary or text.
    """

    name: str
    type: str
    nullable: bool = True


class ResultMetadata(msgspec.Struct, rename="camel"):
    """Metadata of a result: its columns and number of rows."""

    num_rows: int
    row_type: list[ResultColumn]
    format: str = "jsonv2"
    partition_info: list[dict[str, int]] = []


class StatementResponse(msgspec.Struct, rename="camel"):
    """A result with columns and rows. A statement without rows has a single column `status`."""

    result_set_meta_data: ResultMetadata
    data: list[list[str | None]]
    statement_handle: str
    created_on: int
    message: str = "Statement executed successfully."
    code: str = SUCCESS_CODE
    sql_state: str = SUCCESS_SQL_STATE


class StatementFailure(msgspec.Struct, rename="camel", omit_defaults=True):
    """Failure of a statement. `error` is Snowmelt's stable error code.

    `line` and `column` (from 1) and `reason` are set if the statement could not be parsed.
    """

    code: str
    message: str
    sql_state: str
    statement_handle: str
    error: str
    reason: str | None = None
    line: int | None = None
    column: int | None = None


def _format_timestamp(value: dt.datetime) -> str:
    # Timestamps without a zone count from the local time 1970-01-01 00:00:00.
    value = value if value.tzinfo else value.replace(tzinfo=dt.UTC)
    micros = (value - _EPOCH) // dt.timedelta(microseconds=1)
    sign, micros = ("-", -micros) if micros < 0 else ("", micros)
    return f"{sign}{micros // 1_000_000}.{micros % 1_000_000:06d}000"


def _parse_instant(text: str) -> dt.datetime:
    return _EPOCH + dt.timedelta(microseconds=int(Decimal(text).scaleb(6)))


def _parse_naive_timestamp(text: str) -> dt.datetime:
    return _parse_instant(text).replace(tzinfo=None)


def _format_number(value: int | Decimal) -> str:
    return format(value, "f") if isinstance(value, Decimal) else str(value)


def _parse_number(text: str) -> int | Decimal:
    return Decimal(text) if "." in text else int(text)


# For each type: Python types, conversion to text, and conversion from text. The first type that
# fits a value is inferred. Order matters: bool is a subclass of int, and timestamps of statements
# have a zone.
_TYPES: tuple[tuple[str, tuple[type, ...], Callable[[Any], str], Callable[[str], object]], ...] = (
    ("boolean", (bool,), lambda value: str(value).lower(), "true".__eq__),
    ("fixed", (int, Decimal), _format_number, _parse_number),
    ("real", (float,), repr, float),
    ("timestamp_ltz", (dt.datetime,), _format_timestamp, _parse_instant),
    ("timestamp_ntz", (dt.datetime,), _format_timestamp, _parse_naive_timestamp),
    (
        "date",
        (dt.date,),
        lambda value: str(value.toordinal() - _EPOCH_DAY),
        lambda text: dt.date.fromordinal(int(text) + _EPOCH_DAY),
    ),
    ("binary", (bytes,), lambda value: value.hex().upper(), bytes.fromhex),
    ("text", (str,), str, str),
)
_FORMATTERS = {name: to_text for name, _, to_text, _ in _TYPES}
_PARSERS = {name: from_text for name, _, _, from_text in _TYPES}


def encode_rows(
    columns: Sequence[str],
    rows: Sequence[Sequence[object]],
    types: Sequence[str] | None = None,
) -> tuple[ResultMetadata, list[list[str | None]]]:
    """Encode a result. Return its metadata, and its values as strings.

    Without `types`, the type of a column is inferred from its values. A column with values of
    several types becomes text.
    """
    if types is None:
        types = [_find_type([row[index] for row in rows]) for index in range(len(columns))]
    metadata = ResultMetadata(
        num_rows=len(rows),
        row_type=[ResultColumn(*each) for each in zip(columns, types, strict=True)],
        partition_info=[{"rowCount": len(rows)}],
    )
    formatters = [_FORMATTERS[each] for each in types]
    data = [
        [
            None if value is None else to_text(value)
            for value, to_text in zip(row, formatters, strict=True)
        ]
        for row in rows
    ]
    return metadata, data


def decode_rows(response: StatementResponse) -> tuple[tuple[str, ...], list[tuple[object, ...]]]:
    """Decode the columns and rows of a result. Timestamps are in UTC.

    Raises:
        ValueError: If a value does not have the form of its type.
    """
    columns = response.result_set_meta_data.row_type
    parsers = [_PARSERS.get(column.type, str) for column in columns]
    rows = [
        tuple(
            None if text is None else from_text(text)
            for text, from_text in zip(row, parsers, strict=True)
        )
        for row in response.data
    ]
    return tuple(column.name for column in columns), rows


def _find_type(values: Sequence[object]) -> str:
    kinds = {type(value) for value in values if value is not None}
    return next((name for name, types, _, _ in _TYPES if kinds and kinds <= set(types)), "text")

"""Schema and rows of tables of rejected records. Tasks on executors import it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from snowmelt.schema.iceberg_table_form import native_schema
from snowmelt.schema.types import MAX_BINARY_BYTES, MAX_TEXT_BYTES, Column, LogicalType, TableSchema

_MAX_TEXT_CHARACTERS = MAX_TEXT_BYTES // 4


def _text_column(name: str, ordinal: int) -> Column:
    return Column(
        name, LogicalType.TEXT, ordinal, length=_MAX_TEXT_CHARACTERS, byte_length=MAX_TEXT_BYTES
    )


def _number_column(name: str, ordinal: int) -> Column:
    return Column(name, LogicalType.FIXED, ordinal, precision=18, scale=0)


# The first ten columns are Vertica's, in its order.
REJECT_SCHEMA = TableSchema(
    1,
    (
        _text_column("NODE_NAME", 1),
        _text_column("FILE_NAME", 2),
        _text_column("SESSION_ID", 3),
        _number_column("TRANSACTION_ID", 4),
        _number_column("STATEMENT_ID", 5),
        _number_column("BATCH_NUMBER", 6),
        _number_column("ROW_NUMBER", 7),
        _text_column("REJECTED_DATA", 8),
        _number_column("REJECTED_DATA_ORIG_LENGTH", 9),
        _text_column("REJECTED_REASON", 10),
        _text_column("LOAD_ID", 11),
        _text_column("COLUMN_NAME", 12),
        _number_column("BYTE_OFFSET", 13),
        Column("REJECTED_BYTES", LogicalType.BINARY, 14, byte_length=MAX_BINARY_BYTES),
    ),
)
ROW_NUMBER_INDEX = REJECT_SCHEMA.columns.index(REJECT_SCHEMA.column("ROW_NUMBER"))


@dataclass(frozen=True, slots=True)
class RejectOrigin:
    """Origin of rejected records. `batch` is the number of the portion in its load."""

    load_id: str
    node: str
    file: str
    batch: int

    @property
    def transaction_id(self) -> int:
        """Number that all rejects of a load share."""
        return int(self.load_id.replace("-", "")[:14], 16)


@dataclass(frozen=True, slots=True)
class RejectedRow:
    """Rejected record. `row_number` is its 1-based number in its portion, or None.

    `location` is a more exact position than the portion's file.
    """

    row_number: int | None
    offset: int | None
    data: bytes
    reason: str
    column: str | None = None
    location: str | None = None


def to_reject_table(origin: RejectOrigin, rows: Sequence[RejectedRow]) -> pa.Table:
    """Return rejected records as rows of their table, in native form.

    Bytes that are not UTF-8 are escaped in the text, and stored unchanged in REJECTED_BYTES. Texts
    that are too long for a column are truncated, and their length is added.
    """
    texts = [_decode_for_display(row.data) for row in rows]
    columns: list[list[object]] = [
        [origin.node] * len(rows),
        [row.location or origin.file for row in rows],
        [origin.load_id] * len(rows),
        [origin.transaction_id] * len(rows),
        [1] * len(rows),
        [origin.batch] * len(rows),
        [row.row_number for row in rows],
        [text for text, _ in texts],
        [len(row.data) for row in rows],
        [row.reason[:_MAX_TEXT_CHARACTERS] for row in rows],
        [origin.load_id] * len(rows),
        [row.column for row in rows],
        [row.offset for row in rows],
        [
            None if exact else row.data[:MAX_BINARY_BYTES]
            for row, (_, exact) in zip(rows, texts, strict=True)
        ],
    ]
    schema = native_schema(REJECT_SCHEMA)
    arrays = [
        _make_array(values, field.type) for values, field in zip(columns, schema, strict=True)
    ]
    return pa.Table.from_arrays(arrays, schema=schema)


def offset_row_numbers(rows: pa.Table, preceding_records: int | None) -> pa.Table:
    """Return rejects with row numbers that count the records of earlier portions too.

    If the number of earlier records is None (unknown), row numbers are NULL.
    """
    field = rows.schema.field(ROW_NUMBER_INDEX)
    if preceding_records is None:
        return rows.set_column(ROW_NUMBER_INDEX, field, pa.nulls(rows.num_rows, field.type))
    moved = pc.add(rows.column(ROW_NUMBER_INDEX).cast(pa.int64()), preceding_records)
    return rows.set_column(ROW_NUMBER_INDEX, field, _to_decimal_array(moved, field.type))


def _decode_for_display(data: bytes) -> tuple[str, bool]:
    try:
        text, exact = data.decode(), True
    except UnicodeDecodeError:
        text, exact = data.decode("utf-8", "backslashreplace"), False
    return (
        (text, exact) if len(text) <= _MAX_TEXT_CHARACTERS else (text[:_MAX_TEXT_CHARACTERS], False)
    )


def _make_array(values: list[object], kind: pa.DataType) -> pa.Array:
    if pa.types.is_decimal(kind):
        return _to_decimal_array(pa.array(values, pa.int64()), kind)
    return pa.array(values, kind)


def _to_decimal_array(integers: pa.Array, kind: pa.DataType) -> pa.Array:
    # Arrow requires a cast to a type that holds any 64-bit value first.
    return integers.cast(pa.decimal128(19, 0)).cast(kind)

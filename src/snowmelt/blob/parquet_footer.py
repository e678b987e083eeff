"""Parser of a chunk's Parquet footer, and check that the chunk fits its table.

pyarrow cannot parse untrusted footers: with pyarrow 26, reading a column with contradictory
metadata ends the process (`terminate called after throwing ParquetException`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from snowmelt.blob.thrift_compact import (
    ThriftFields,
    read_struct,
    require_integer,
    require_struct,
    require_structs,
)
from snowmelt.errors import BlobInvalid
from snowmelt.schema.chunk_types import chunk_arrow_type
from snowmelt.schema.types import SEMI_STRUCTURED_TYPES, Column, LogicalType, TableSchema

if TYPE_CHECKING:
    from snowmelt.blob.encryption import BytesLike

_MAGIC = b"PAR1"
_TAIL_BYTES = 8
# Maximum size of a footer, which takes a few hundred bytes per column.
_MAX_FOOTER_BYTES = 16 * 1024 * 1024
_MAX_ROWS = 2**31 - 1

_PARQUET_TYPES = (
    "BOOLEAN",
    "INT32",
    "INT64",
    "INT96",
    "FLOAT",
    "DOUBLE",
    "BYTE_ARRAY",
    "FIXED_LEN_BYTE_ARRAY",
)
_OPTIONAL, _REPEATED = 1, 2
_CONVERTED_TYPES = {
    0: "STRING",
    4: "ENUM",
    5: "DECIMAL",
    6: "DATE",
    19: "JSON",
    20: "BSON",
} | dict.fromkeys(range(15, 19), "INT")
_LOGICAL_TYPES = {
    1: "STRING",
    4: "ENUM",
    5: "DECIMAL",
    6: "DATE",
    10: "INT",
    12: "JSON",
    13: "BSON",
}

_NUMBER_LOGICAL_TYPES = frozenset({"NONE", "DECIMAL", "INT"})
_TEXT_LOGICAL_TYPES = frozenset({"NONE", "STRING", "JSON", "ENUM", "BSON"})
_EXPECTED_PHYSICAL_TYPES = {
    LogicalType.REAL: "DOUBLE",
    LogicalType.BOOLEAN: "BOOLEAN",
    LogicalType.DATE: "INT32",
}
_INTEGER_DIGITS = {"INT32": 9, "INT64": 18}
_MAX_FIXED_LENGTH_BYTES = 16


@dataclass(frozen=True, slots=True)
class FooterField:
    """A column of a chunk. `ordinal` is its field ID, or None if the file has no IDs.

    `physical_type` is Parquet's name of the type. `type_length` is the size of a
    FIXED_LEN_BYTE_ARRAY. `logical_type` is NONE, DECIMAL, STRING, DATE and so on, or OTHER for a
    type that no column can have. `precision` and `scale` are set for decimals.
    """

    ordinal: int | None
    name: str
    physical_type: str
    type_length: int | None
    nullable: bool
    logical_type: str = "NONE"
    precision: int | None = None
    scale: int | None = None


@dataclass(frozen=True, slots=True)
class ColumnChunkLocation:
    """Position of one column's pages in one row group, and Parquet's number of the codec."""

    codec: int
    start: int
    length: int


@dataclass(frozen=True, slots=True)
class RowGroup:
    """Row count of a row group, and the locations of its columns in the order of the fields."""

    rows: int
    column_locations: tuple[ColumnChunkLocation, ...]


@dataclass(frozen=True, slots=True)
class ChunkFooter:
    """Parsed footer: rows and columns of a chunk, in file order."""

    rows: int
    fields: tuple[FooterField, ...]
    groups: tuple[RowGroup, ...] = ()


@contextlib.contextmanager
def raising_blob_invalid(path: str) -> Iterator[None]:
    """Convert any exception of a decoder to a BlobInvalid that names `path`."""
    try:
        yield
    except (pa.ArrowException, OSError, ValueError, OverflowError, MemoryError) as error:
        first_line = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise BlobInvalid(path=path, reason=f"not a readable chunk ({first_line})") from error


def read_chunk_footer(parquet: BytesLike | pa.Buffer, *, path: str = "chunk") -> ChunkFooter:
    """Read the footer of a decrypted chunk. `path` is the blob's path, for errors.

    Raises:
        BlobInvalid: If it is not a Parquet file, has nested or repeated columns, two columns with
            one name or field ID, or inconsistent row counts.
    """
    with raising_blob_invalid(path):
        return read_footer(memoryview(parquet).cast("B"))


def read_footer(data: memoryview) -> ChunkFooter:
    """Return the footer of a Parquet file.

    Raises:
        ValueError: If there is no footer or it is malformed.
    """
    if len(data) < _TAIL_BYTES + 4 or data[-4:] != _MAGIC or data[:4] != _MAGIC:
        raise ValueError("it is not a Parquet file")
    size = int.from_bytes(data[-8:-4], "little")
    if size > min(len(data) - _TAIL_BYTES - 4, _MAX_FOOTER_BYTES):
        raise ValueError("its footer is too long")
    footer, _ = read_struct(bytes(data[-_TAIL_BYTES - size : -_TAIL_BYTES]), 0)
    fields = _parse_fields(require_structs(footer, 2))
    groups = tuple(_parse_row_group(group, fields) for group in require_structs(footer, 4))
    rows = require_integer(footer, 3)
    if rows > _MAX_ROWS or sum(group.rows for group in groups) != rows:
        raise ValueError("row groups do not add up to the row count")
    return ChunkFooter(rows, fields, groups)


def find_schema_mismatch(footer: ChunkFooter, schema: TableSchema) -> str | None:
    """Return the reason why a chunk does not fit a schema version of a table, or None if it fits.

    Columns are compared by ordinal (by name if the chunk has no field IDs), physical type and
    nullability. A column that the chunk lacks must be nullable. The chunk must not have a column that
    the table lacks.
    """
    found = fields_by_ordinal(footer, schema)
    for column in schema.columns:
        field = found.get(column.ordinal)
        if field is None and not column.nullable:
            return f"column {column.display_name} is missing and not nullable"
        reason = field and find_column_mismatch(field, column)
        if reason:
            return reason
    if len(found) < len(footer.fields):
        known = set(found.values())
        strangers = [field.name for field in footer.fields if field not in known]
        return f"the table has no column {', '.join(strangers[:5])}"
    return None


def fields_by_ordinal(footer: ChunkFooter, schema: TableSchema) -> dict[int, FooterField]:
    """Return the chunk's fields for the columns of the schema, by column ordinal."""
    if all(field.ordinal is None for field in footer.fields):
        names = {column.name: column.ordinal for column in schema.columns}
        return {names[field.name]: field for field in footer.fields if field.name in names}
    ordinals = {column.ordinal for column in schema.columns}
    return {
        field.ordinal: field
        for field in footer.fields
        if field.ordinal is not None and field.ordinal in ordinals
    }


def find_column_mismatch(field: FooterField, column: Column) -> str | None:
    """Return the reason why a field's values do not fit a column, or None if they fit."""
    name = column.display_name
    if field.nullable and not column.nullable:
        return f"column {name} is nullable in the chunk, but not in the table"
    if not _can_hold(field, column):
        length = "" if field.type_length is None else f"({field.type_length})"
        return (
            f"column {name} is {field.physical_type}{length} {field.logical_type} in the chunk, "
            f"which does not hold {column.sql_type}"
        )
    arrow_type = chunk_arrow_type(column)
    if not pa.types.is_decimal(arrow_type):
        return None
    # Times and timestamps may be plain integers. A plain NUMBER would have an unknown scale.
    bare = arrow_type.scale if column.kind is not LogicalType.FIXED else 0
    scale = field.scale if field.logical_type == "DECIMAL" else bare
    if scale != arrow_type.scale:
        return f"column {name} has scale {scale} in the chunk, not {arrow_type.scale}"
    return None


def max_decimal_digits(field: FooterField) -> int:
    """Return the number of decimal digits that always fit a numeric field."""
    if field.physical_type in _INTEGER_DIGITS:
        return _INTEGER_DIGITS[field.physical_type]
    return len(str(2 ** (8 * (field.type_length or 0) - 1) - 1)) - 1


def _can_hold(field: FooterField, column: Column) -> bool:
    if column.kind in _EXPECTED_PHYSICAL_TYPES:
        meanings = {"NONE", "DATE"} if column.kind is LogicalType.DATE else {"NONE"}
        return (
            field.physical_type == _EXPECTED_PHYSICAL_TYPES[column.kind]
            and field.logical_type in meanings
        )
    if column.kind in SEMI_STRUCTURED_TYPES or column.kind in {
        LogicalType.TEXT,
        LogicalType.BINARY,
    }:
        return field.physical_type == "BYTE_ARRAY" and field.logical_type in _TEXT_LOGICAL_TYPES
    if field.physical_type in _INTEGER_DIGITS:
        is_number = field.logical_type in _NUMBER_LOGICAL_TYPES
    else:
        is_number = (
            field.logical_type == "DECIMAL"
            and 0 < (field.type_length or 0) <= _MAX_FIXED_LENGTH_BYTES
        )
    return is_number and (column.scale or 0) <= max_decimal_digits(field)


def _parse_fields(elements: Sequence[ThriftFields]) -> tuple[FooterField, ...]:
    if not elements or require_integer(elements[0], 5) != len(elements) - 1:
        raise ValueError("columns are nested")
    fields = tuple(map(_parse_field, elements[1:]))
    _check_unique([field.name for field in fields], "name")
    _check_unique([field.ordinal for field in fields if field.ordinal is not None], "field ID")
    return fields


def _parse_field(element: ThriftFields) -> FooterField:
    repetition = require_integer(element, 3)
    if element.get(5) or repetition >= _REPEATED:
        raise ValueError("columns are nested or repeated")
    number = require_integer(element, 1)
    physical = _PARQUET_TYPES[number] if number < len(_PARQUET_TYPES) else "OTHER"
    meaning, decimal = _parse_logical_type(element)
    name = element.get(4)
    if not isinstance(name, bytes):
        raise ValueError("a column has no name")  # noqa: TRY004 - bad bytes
    ordinal = element.get(9)
    return FooterField(
        ordinal=ordinal if isinstance(ordinal, int) and ordinal > 0 else None,
        name=name.decode(),
        physical_type=physical,
        type_length=require_integer(element, 2) if physical == "FIXED_LEN_BYTE_ARRAY" else None,
        nullable=repetition == _OPTIONAL,
        logical_type=meaning,
        precision=None if decimal is None else decimal[0],
        scale=None if decimal is None else decimal[1],
    )


def _parse_logical_type(element: ThriftFields) -> tuple[str, tuple[int, int] | None]:
    # Read the legacy annotation too: Java writes both annotations, and some clients only one.
    if 10 in element:
        [(number, details)] = require_struct(element, 10).items() or [(0, {})]
        meaning = _LOGICAL_TYPES.get(number, "OTHER")
        if meaning == "DECIMAL" and isinstance(details, dict):
            return meaning, (require_integer(details, 2), require_integer(details, 1))
        unsigned = meaning == "INT" and isinstance(details, dict) and details.get(2) is not True
        return ("OTHER" if unsigned else meaning), None
    if 6 in element:
        meaning = _CONVERTED_TYPES.get(require_integer(element, 6), "OTHER")
        if meaning == "DECIMAL":
            scale = require_integer(element, 7) if 7 in element else 0
            return meaning, (require_integer(element, 8), scale)
        return meaning, None
    return "NONE", None


def _parse_row_group(group: ThriftFields, fields: Sequence[FooterField]) -> RowGroup:
    rows = require_integer(group, 3)
    columns = require_structs(group, 1)
    if len(columns) != len(fields):
        raise ValueError("a row group lacks columns")
    return RowGroup(rows, tuple(_parse_column_chunk(column, rows) for column in columns))


def _parse_column_chunk(column: ThriftFields, rows: int) -> ColumnChunkLocation:
    # Fields of pages in another file (1), or of encrypted pages (8).
    if 1 in column:
        raise ValueError("a column is in another file")
    if 8 in column:
        raise ValueError("a column is encrypted")
    metadata = require_struct(column, 3)
    if require_integer(metadata, 5) != rows:
        raise ValueError("a column does not have one value per row")
    start = require_integer(metadata, 9)
    dictionary = metadata.get(11)
    if isinstance(dictionary, int) and 0 < dictionary < start:
        start = dictionary
    return ColumnChunkLocation(require_integer(metadata, 4), start, require_integer(metadata, 7))


def _check_unique(values: Sequence[object], what: str) -> None:
    if len(set(values)) != len(values):
        raise ValueError(f"two columns have the same {what}")

"""What a chunk's Parquet footer says, and whether it fits a table."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from snowmelt.errors import BlobInvalid
from snowmelt.schema.arrow import FIELD_ID, chunk_type
from snowmelt.schema.types import SEMI_STRUCTURED, Column, Kind, TableSchema

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from snowmelt.blob.crypto import Readable

# Limits of what the Thrift decoder may allocate for a footer; a table with 10,000 columns
# stays far below.
_THRIFT_TEXT_BYTES = 16 * 1024 * 1024
_THRIFT_ELEMENTS = 1_000_000

_FLBA_MAX_BYTES = 16
_INTEGERS = frozenset({"INT32", "INT64"})
_NUMBERS = frozenset({"INT32", "INT64", "FIXED_LEN_BYTE_ARRAY"})
_NUMBER_MEANINGS = frozenset({"NONE", "DECIMAL", "INT"})
_TEXT_MEANINGS = frozenset({"NONE", "STRING", "JSON", "ENUM", "BSON"})
_PHYSICAL = {Kind.REAL: "DOUBLE", Kind.BOOLEAN: "BOOLEAN", Kind.DATE: "INT32"}


@dataclass(frozen=True, slots=True)
class FooterField:
    """One column of a chunk; `ordinal` is its field id, None when the writer gave none.

    `physical_type` is Parquet's word, `type_length` bytes of a FIXED_LEN_BYTE_ARRAY, `meaning`
    the logical type (NONE, DECIMAL, STRING, DATE …), `precision` and `scale` a decimal's.
    """

    ordinal: int | None
    name: str
    physical_type: str
    type_length: int | None
    nullable: bool
    meaning: str = "NONE"
    precision: int | None = None
    scale: int | None = None


@dataclass(frozen=True, slots=True)
class ChunkFooter:
    """Rows and columns of a chunk, in file order."""

    rows: int
    fields: tuple[FooterField, ...]


@contextlib.contextmanager
def refusing(path: str) -> Iterator[None]:
    """Turn whatever a decoder raises over broken bytes into BlobInvalid naming `path`."""
    try:
        yield
    except (pa.ArrowException, OSError, ValueError, OverflowError, MemoryError) as error:
        first_line = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise BlobInvalid(path=path, reason=f"not a readable chunk ({first_line})") from error


def open_parquet(
    parquet: Readable | pa.Buffer,
    *,
    metadata: pq.FileMetaData | None = None,
    read_dictionary: Sequence[str] = (),
) -> pq.ParquetFile:
    """Open a Parquet file in memory with limits on its footer; raises what pyarrow raises."""
    return pq.ParquetFile(
        pa.BufferReader(parquet),
        metadata=metadata,
        read_dictionary=list(read_dictionary),
        pre_buffer=False,
        thrift_string_size_limit=_THRIFT_TEXT_BYTES,
        thrift_container_size_limit=_THRIFT_ELEMENTS,
        page_checksum_verification=True,
        arrow_extensions_enabled=False,
    )


def inspect_chunk(parquet: Readable | pa.Buffer, *, path: str = "chunk") -> ChunkFooter:
    """Read the footer of a decrypted chunk; `path` names the blob in errors.

    Raises:
        BlobInvalid: Not a Parquet file, nested or repeated columns, two columns with one name
            or field id, or row counts that contradict each other.
    """
    with refusing(path):
        return read_footer(open_parquet(parquet))


def read_footer(file: pq.ParquetFile) -> ChunkFooter:
    """Return the footer of an opened file; ValueError when it contradicts itself."""
    metadata = file.metadata
    arrow_schema = file.schema_arrow
    if len(arrow_schema) != metadata.num_columns:
        raise ValueError("columns are nested")
    fields = tuple(
        _field(file.schema.column(index), arrow_schema.field(index))
        for index in range(metadata.num_columns)
    )
    _check_unique([field.name for field in fields])
    _check_unique([field.ordinal for field in fields if field.ordinal is not None])
    groups = [metadata.row_group(index).num_rows for index in range(metadata.num_row_groups)]
    if metadata.num_rows < 0 or any(rows < 0 for rows in groups):
        raise ValueError("negative row count")
    if sum(groups) != metadata.num_rows:
        raise ValueError("row groups do not add up to the row count")
    return ChunkFooter(metadata.num_rows, fields)


def matches(footer: ChunkFooter, schema: TableSchema) -> str | None:
    """Return why a chunk does not fit this version of a table, None when it fits.

    Columns are compared by ordinal (by name when the chunk has no field ids), physical type and
    nullability; a column the chunk lacks must be nullable, a column the table lacks is a reason.
    """
    found = fields_by_ordinal(footer, schema)
    for column in schema.columns:
        field = found.get(column.ordinal)
        if field is None and not column.nullable:
            return f"column {column.display_name} is missing and not nullable"
        reason = field and misfit(field, column)
        if reason:
            return reason
    if len(found) < len(footer.fields):
        known = set(found.values())
        strangers = [field.name for field in footer.fields if field not in known]
        return f"the table has no column {', '.join(strangers[:5])}"
    return None


def fields_by_ordinal(footer: ChunkFooter, schema: TableSchema) -> dict[int, FooterField]:
    """Return the chunk's fields that are columns of the schema, by the columns' ordinals."""
    if all(field.ordinal is None for field in footer.fields):
        names = {column.name: column.ordinal for column in schema.columns}
        return {names[field.name]: field for field in footer.fields if field.name in names}
    ordinals = {column.ordinal for column in schema.columns}
    return {
        field.ordinal: field
        for field in footer.fields
        if field.ordinal is not None and field.ordinal in ordinals
    }


def misfit(field: FooterField, column: Column) -> str | None:
    """Return why a chunk's field cannot hold the values of this column, None when it can."""
    name = column.display_name
    if field.nullable and not column.nullable:
        return f"column {name} is nullable in the chunk, but not in the table"
    if not _holds(field, column):
        length = "" if field.type_length is None else f"({field.type_length})"
        return (
            f"column {name} is {field.physical_type}{length} {field.meaning} in the chunk, "
            f"which does not hold {column.sql_type}"
        )
    arrow_type = chunk_type(column)
    if not pa.types.is_decimal(arrow_type):
        return None
    # Times and timestamps may come as bare integers; of a bare NUMBER the scale is unknown.
    bare = arrow_type.scale if column.kind is not Kind.FIXED else 0
    scale = field.scale if field.meaning == "DECIMAL" else bare
    if scale != arrow_type.scale:
        return f"column {name} has scale {scale} in the chunk, not {arrow_type.scale}"
    return None


def _holds(field: FooterField, column: Column) -> bool:
    if column.kind in _PHYSICAL:
        meanings = {"NONE", "DATE"} if column.kind is Kind.DATE else {"NONE"}
        return field.physical_type == _PHYSICAL[column.kind] and field.meaning in meanings
    if column.kind in SEMI_STRUCTURED or column.kind in {Kind.TEXT, Kind.BINARY}:
        return field.physical_type == "BYTE_ARRAY" and field.meaning in _TEXT_MEANINGS
    if field.physical_type in _INTEGERS:
        return field.meaning in _NUMBER_MEANINGS
    if field.physical_type not in _NUMBERS or field.meaning != "DECIMAL":
        return False
    return (field.type_length or 0) <= _FLBA_MAX_BYTES


def _field(column: pq.ColumnSchema, arrow_field: pa.Field) -> FooterField:
    if column.max_repetition_level or column.max_definition_level > 1:
        raise ValueError("columns are nested or repeated")
    meaning = column.logical_type.type
    is_decimal = meaning == "DECIMAL"
    return FooterField(
        ordinal=_ordinal(arrow_field),
        name=column.name,
        physical_type=column.physical_type,
        type_length=column.length if column.physical_type == "FIXED_LEN_BYTE_ARRAY" else None,
        nullable=column.max_definition_level == 1,
        meaning=meaning,
        precision=column.precision if is_decimal else None,
        scale=column.scale if is_decimal else None,
    )


def _ordinal(arrow_field: pa.Field) -> int | None:
    text = (arrow_field.metadata or {}).get(FIELD_ID)
    ordinal = None if text is None else int(text)
    return ordinal if ordinal is not None and ordinal > 0 else None


def _check_unique(values: Sequence[object]) -> None:
    if len(set(values)) != len(values):
        raise ValueError("two columns have the same name or field id")

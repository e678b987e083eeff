"""Full check of a decrypted chunk: values, column types and statistics.

Runs in a child process and needs no catalog. Queries skip chunks by their statistics, so a bound
that is too narrow would hide rows. A value that a reader cannot represent would make every query of
the table fail. The module also determines from the footer the schema version that a chunk was
written for.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from snowmelt.blob import chunk_table_reader
from snowmelt.blob.encryption import BytesLike
from snowmelt.blob.parquet_footer import (
    ChunkFooter,
    ColumnChunkLocation,
    RowGroup,
    fields_by_ordinal,
    find_schema_mismatch,
)
from snowmelt.errors import BlobInvalid, InvalidRow, InvalidValue
from snowmelt.ingest.registration_structure_check import MAX_CHUNK_BYTES, RequestRejection
from snowmelt.schema import statistics
from snowmelt.schema.conversion.json_text import (
    MAX_DEPTH,
    MAX_DIGITS,
    MAX_NAME_CHARACTERS,
    InvalidJson,
    JsonLimitExceeded,
    normalize_json,
)
from snowmelt.schema.conversion.timestamps import (
    LIMITED_TYPES,
    describe_limits,
    out_of_range_mask,
)
from snowmelt.schema.iceberg_table_form import native_fields, to_native_table
from snowmelt.schema.statistics import ColumnStatistics
from snowmelt.schema.types import (
    MAX_BINARY_BYTES,
    MAX_TEXT_BYTES,
    SEMI_STRUCTURED_TYPES,
    Column,
    LogicalType,
    TableSchema,
)
from snowmelt.wire import column_statistics
from snowmelt.wire.streaming import ChunkStatisticsMessage, ResponseCode

if TYPE_CHECKING:
    Value: TypeAlias = int | float | bytes

# Larger chunks are decoded column by column, to limit the memory that a decompression bomb can use.
_MAX_WHOLE_DECODE_BYTES = 64 * 1024 * 1024
# A column of a chunk cannot be larger than the chunk.
_MAX_COLUMN_DECODE_BYTES = MAX_CHUNK_BYTES
# Only documents that match these patterns can exceed the readers' limits, so only they are parsed.
_NESTING_BRACKETS = ("[", "{")
_LARGE_NUMBER_PATTERN = r"[eE]\+?[0-9]{3}|[0-9]{200}"


@dataclass(frozen=True, slots=True)
class DecryptedChunk:
    """A decrypted chunk whose footer fits `schema`. `blob_path` is used in error messages."""

    parquet: BytesLike
    footer: ChunkFooter
    schema: TableSchema
    claimed_statistics: ChunkStatisticsMessage
    blob_path: str


def validate_and_derive_statistics(chunk: DecryptedChunk) -> bytes | RequestRejection:
    """Decode a chunk, and compute its statistics in stored form from its rows.

    Rejects a chunk whose rows contradict the statistics that its client claims.
    """
    bounds = column_statistics.bounds_from_message(chunk.schema, chunk.claimed_statistics)
    collected: list[ColumnStatistics] = []
    try:
        for part, table in _decode_columns(chunk):
            check_temporal_values(table, part)
            found = _collect_and_check_statistics(table, part, bounds)
            if isinstance(found, RequestRejection):
                return found
            collected.extend(found)
    except (BlobInvalid, InvalidRow, pa.ArrowException) as error:
        return RequestRejection(ResponseCode.BLOB_FORMAT_WRONG, str(error))
    whole = statistics.ChunkStatistics(chunk.footer.rows, tuple(collected))
    return column_statistics.encode_stored_statistics(chunk.schema, whole)


def validate_and_derive_statistics_batch(
    chunks: Sequence[DecryptedChunk],
) -> list[bytes | RequestRejection]:
    """Apply `validate_and_derive_statistics` to many small chunks.

    Chunks with equal columns are decoded as row groups of one file. For chunks of 100 rows, the
    decoder's calls take three times as long as its work.
    """
    alike: dict[object, list[int]] = {}
    for number, chunk in enumerate(chunks):
        alike.setdefault((id(chunk.schema), chunk.footer.fields), []).append(number)
    answers: dict[int, bytes | RequestRejection] = {}
    for numbers in alike.values():
        group = [chunks[number] for number in numbers]
        found = _derive_combined_statistics(group) if len(group) > 1 else None
        answers.update(
            zip(numbers, found or map(validate_and_derive_statistics, group), strict=True)
        )
    return [answers[number] for number in range(len(chunks))]


def _derive_combined_statistics(
    chunks: Sequence[DecryptedChunk],
) -> list[bytes | RequestRejection] | None:
    """Return the results of chunks with equal columns, or None if they cannot be decoded together."""
    schema = chunks[0].schema
    groups: list[RowGroup] = []
    at = 0
    for chunk in chunks:
        for group in chunk.footer.groups:
            places = tuple(
                ColumnChunkLocation(each.codec, each.start + at, each.length)
                for each in group.column_locations
            )
            groups.append(RowGroup(group.rows, places))
        at += len(chunk.parquet)
    rows = sum(chunk.footer.rows for chunk in chunks)
    footer = ChunkFooter(rows, chunks[0].footer.fields, tuple(groups))
    data = b"".join(chunk.parquet for chunk in chunks)
    try:
        table = chunk_table_reader.read_chunk(
            data, schema, max_bytes=_MAX_WHOLE_DECODE_BYTES, footer=footer
        )
        check_temporal_values(table, schema)
    except (BlobInvalid, InvalidRow, pa.ArrowException):
        return None
    answers: list[bytes | RequestRejection] = []
    first = 0
    for chunk in chunks:
        part = table.slice(first, chunk.footer.rows)
        first += chunk.footer.rows
        found = _collect_and_check_statistics(
            part, schema, column_statistics.bounds_from_message(schema, chunk.claimed_statistics)
        )
        answers.append(
            found
            if isinstance(found, RequestRejection)
            else column_statistics.encode_stored_statistics(
                schema, statistics.ChunkStatistics(chunk.footer.rows, found)
            )
        )
    return answers


def _collect_and_check_statistics(
    table: pa.Table,
    schema: TableSchema,
    claimed_bounds: Mapping[int, column_statistics.StatisticBounds],
) -> tuple[ColumnStatistics, ...] | RequestRejection:
    """Compute the statistics of decoded columns. Return them, or a rejection."""
    found = statistics.collect_statistics(table, schema).columns
    for column, actual in zip(schema.columns, found, strict=True):
        refusal = _find_oversized_value(
            table.column(column.name), column, actual
        ) or _find_statistics_mismatch(column, claimed_bounds[column.ordinal], actual)
        if refusal is not None:
            return refusal
    return found


def _decode_columns(chunk: DecryptedChunk) -> Iterator[tuple[TableSchema, pa.Table]]:
    """Yield the columns of a chunk, all together if the chunk is small, else one by one.

    Raises:
        BlobInvalid: If they cannot be decoded, or their total size exceeds the limit of a reader.
    """
    parquet, footer, schema, path = chunk.parquet, chunk.footer, chunk.schema, chunk.blob_path
    try:
        whole = chunk_table_reader.read_chunk(
            parquet, schema, path=path, max_bytes=_MAX_WHOLE_DECODE_BYTES, footer=footer
        )
    except BlobInvalid as error:
        if not isinstance(error.__cause__, chunk_table_reader.ChunkTooLarge):
            raise
    else:
        yield schema, whole
        return
    total = chunk_table_reader.uncompressed_chunk_bytes(parquet, footer, schema, path=path)
    for column in schema.columns:
        _check_decoded_size(total, path)
        table = chunk_table_reader.read_chunk(
            parquet,
            schema,
            columns=[column.name],
            path=path,
            max_bytes=_MAX_COLUMN_DECODE_BYTES,
            footer=footer,
        )
        total += table.nbytes
        yield TableSchema(schema.version, (column,)), table
    _check_decoded_size(total, path)


def _check_decoded_size(size: int, path: str) -> None:
    limit = chunk_table_reader.MAX_DECODED_BYTES
    if size > limit:
        raise BlobInvalid(
            path=path,
            reason=f"it decodes to at least {size:,} bytes, expected at most {limit:,}. Send"
            " smaller chunks",
        )


def check_temporal_values(table: pa.Table, schema: TableSchema) -> None:
    """Convert dates, times and timestamps to the types that queries return, to check their ranges.

    Raises:
        InvalidRow: If a value is outside the range of its type or of the readers.
    """
    timed = tuple(
        each for each in schema.columns if each.kind in LIMITED_TYPES | {LogicalType.TIME}
    )
    if not timed:
        return
    native = to_native_table(table, TableSchema(schema.version, timed))
    for column in timed:
        parts = [native.column(field.name) for field in native_fields(column)]
        if out_of_range_mask(column, parts) is not None:
            raise InvalidValue(
                reason=f"column {column.display_name} of type {column.sql_type}: a value is outside"
                f" {describe_limits(column.kind)}"
            )


def _find_oversized_value(
    array: pa.ChunkedArray, column: Column, actual_statistics: ColumnStatistics
) -> RequestRejection | None:
    """Return a rejection for the first value that exceeds its column's type, or None."""
    match column.kind:
        case LogicalType.TEXT:
            reason = _find_text_length_error(array, column, actual_statistics.max_length)
        case LogicalType.BINARY:
            limit = min(column.byte_length or MAX_BINARY_BYTES, MAX_BINARY_BYTES)
            is_longer = actual_statistics.max_length > limit
            reason = (
                f"a value has {actual_statistics.max_length:,} bytes, expected at most {limit:,}"
                if is_longer
                else None
            )
        case kind if kind in SEMI_STRUCTURED_TYPES:
            reason = _find_document_limit_error(array)
        case _:
            reason = None
    if reason is None:
        return None
    return RequestRejection(
        ResponseCode.BLOB_FORMAT_WRONG,
        f"column {column.display_name} of type {column.sql_type}: {reason}",
    )


def _find_text_length_error(array: pa.ChunkedArray, column: Column, max_bytes: int) -> str | None:
    if max_bytes > MAX_TEXT_BYTES:
        return f"a value has {max_bytes:,} bytes, expected at most {MAX_TEXT_BYTES:,}"
    if column.length is None or max_bytes <= column.length:
        return None
    characters = pc.max(pc.utf8_length(array)).as_py() or 0
    if characters <= column.length:
        return None
    return f"a value has {characters:,} characters, expected at most {column.length:,}"


def _find_document_limit_error(array: pa.ChunkedArray) -> str | None:
    """Return why a reader cannot represent a document, or None. Accepts text that is not JSON."""
    longest = pc.max(pc.binary_length(array)).as_py() or 0
    if longest > MAX_TEXT_BYTES:
        return f"a value has {longest:,} bytes, expected at most {MAX_TEXT_BYTES:,}"
    opened = reduce(pc.add, [pc.count_substring(array, mark) for mark in _NESTING_BRACKETS])
    doubtful = pc.or_(
        pc.greater(opened, MAX_DEPTH), pc.match_substring_regex(array, _LARGE_NUMBER_PATTERN)
    )
    for document in array.filter(doubtful).to_pylist():
        try:
            normalize_json(document)
        except JsonLimitExceeded:
            return (
                f"a document exceeds a limit. Expected at most {MAX_DEPTH} levels, {MAX_DIGITS}"
                f" digits in a number, {MAX_NAME_CHARACTERS} characters in a name, and numbers in"
                " the range of a double"
            )
        except InvalidJson:
            continue
    return None


def _find_statistics_mismatch(
    column: Column, claimed: column_statistics.StatisticBounds, actual: ColumnStatistics
) -> RequestRejection | None:
    """Return a rejection if a column's values contradict the client's statistics, or None."""
    if claimed.null_count is not None and claimed.null_count != actual.null_count:
        return RequestRejection(
            ResponseCode.EP_INVALID,
            f"column {column.display_name} has {actual.null_count:,} nulls, but its statistics"
            f" state {claimed.null_count:,}",
        )
    if _is_below(actual.minimum, claimed.minimum) or _is_below(claimed.maximum, actual.maximum):
        return RequestRejection(
            ResponseCode.EP_VALUE_INVALID,
            f"column {column.display_name} has values outside of its statistics",
        )
    return None


def _is_below(lower: Value | None, upper: Value | None) -> bool:
    """Return True if `lower` is less than `upper`. Return False if either is unknown."""
    if lower is None or upper is None:
        return False
    return bool(_make_sort_key(lower) < _make_sort_key(upper))


def _make_sort_key(value: Value) -> tuple[int, Value, float]:
    # Java's order of doubles: -0.0 is less than 0.0, and NaN is the greatest value (specification
    # of v1, §6).
    if isinstance(value, float):
        is_nan = math.isnan(value)
        return (int(is_nan), 0.0 if is_nan else value, math.copysign(1.0, value) * (not is_nan))
    return (0, value, 0.0)


def find_written_schema(
    footer: ChunkFooter, schemas: Mapping[int, TableSchema]
) -> TableSchema | None:
    """Return the newest version with exactly the columns of a chunk, by name.

    Return None if there is none: the version may be newer than the cached ones, or the writer omits
    columns.
    """
    newest_first = sorted(schemas.values(), key=lambda schema: -schema.version)
    return next((schema for schema in newest_first if _has_all_columns(footer, schema)), None)


def find_newest_matching_schema(
    footer: ChunkFooter, schemas: Mapping[int, TableSchema]
) -> TableSchema | str:
    """Return the newest version that a chunk fits, or the reason why it does not fit the current one."""
    reason = "the table is gone"
    for version in sorted(schemas, reverse=True):
        found = find_schema_mismatch(footer, schemas[version])
        if found is None:
            return schemas[version]
        if version == max(schemas):
            reason = found
    return reason


def _has_all_columns(footer: ChunkFooter, schema: TableSchema) -> bool:
    if len(footer.fields) != len(schema.columns):
        return False
    present = fields_by_ordinal(footer, schema)
    return all(
        column.ordinal in present and present[column.ordinal].name == column.name
        for column in schema.columns
    ) and not find_schema_mismatch(footer, schema)

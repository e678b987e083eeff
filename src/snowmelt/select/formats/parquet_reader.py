"""Parquet reader: reads the needed columns and skips row groups by their statistics.

Skipping a row group must not hide an error. Pruning therefore uses only comparisons of a column
with a literal of its own type, which cannot fail. It ignores comparisons after the first other
condition of WHERE. Arrow arrays become vectors without a copy if the layouts agree.
"""

from __future__ import annotations

import datetime as dt
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pt

from snowmelt.kernels.slices import Mask, StringSlices, view_bytes
from snowmelt.schema.conversion.arrow_input import has_int96, unwrap_int96
from snowmelt.select.errors import SelectError
from snowmelt.select.formats.byte_streams import ObjectSource
from snowmelt.select.kernels.strings import mask_containing_byte
from snowmelt.select.kernels.timestamps import pack_epoch_micros
from snowmelt.select.request import SelectRequest
from snowmelt.select.resource_limits import EngineSettings
from snowmelt.select.scalar.paths import follow_path
from snowmelt.select.sql.ast import BetweenPredicate, BinaryOp, ColumnRef, Expression, LiteralExpr
from snowmelt.select.sql.bound_query import BoundQuery, ObjectFields, ParquetFields
from snowmelt.select.timestamps import (
    NANOS_PER_SECOND,
    Timestamp,
    TimestampPrecision,
    date_to_epoch_days,
)
from snowmelt.select.values import MISSING
from snowmelt.select.vectors import TimestampFormat, TimestampVector, ValueVector, VectorKind
from snowmelt.storage.object_file import ObjectFile

_MIRRORED_OPERATORS = {"=": "=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}

# One condition: column index, comparison operator and literal.
ColumnBound: TypeAlias = tuple[int, str, object]


def extract_column_bounds(
    where: Expression | None, schema: pa.Schema
) -> tuple[list[ColumnBound], bool]:
    """Return the conditions usable for pruning, and True if they are all conditions of WHERE."""
    found: list[ColumnBound] = []
    for condition in _split_conjuncts(where):
        bounds = _extract_condition_bounds(condition, schema)
        if bounds is None:
            return found, False
        found += bounds
    return found, True


def can_match_row_group(
    row_group: pq.RowGroupMetaData,
    bounds: list[ColumnBound],
    leaf_indexes: dict[int, int],
    *,
    bounds_are_complete: bool,
) -> bool:
    """Return True if a record of a row group may satisfy all conditions.

    `leaf_indexes` maps a top-level column to its leaf column. If WHERE has other conditions (not
    `bounds_are_complete`), columns that may contain NULL are not used for pruning: for their
    records, the other conditions are evaluated and may fail.
    """
    for column, relation, literal in bounds:
        place = leaf_indexes.get(column)
        statistics = None if place is None else row_group.column(place).statistics
        if statistics is None or not statistics.has_min_max:
            continue
        if not bounds_are_complete and statistics.null_count != 0:
            continue
        if not _can_match_range(relation, literal, statistics.min, statistics.max):
            return False
    return True


def _can_match_range(op: str, literal: Any, minimum: Any, maximum: Any) -> bool:
    if isinstance(literal, str) != isinstance(minimum, str):
        return True
    if isinstance(literal, str):
        # Statistics order strings by their bytes.
        low, high, wanted = (str(each).encode() for each in (minimum, maximum, literal))
        return _range_overlaps(op, low < wanted, low == wanted, high > wanted, high == wanted)
    if not all(isinstance(each, int | float | Decimal) for each in (literal, minimum, maximum)):
        return True
    if isinstance(minimum, float):
        if math.isnan(minimum) or math.isnan(maximum):
            return True
        # As in a record, a decimal and a float compare as floats.
        literal = float(literal) if isinstance(literal, Decimal) else literal
    return _range_overlaps(
        op,
        minimum < literal,
        minimum == literal,
        maximum > literal,
        maximum == literal,
    )


def _range_overlaps(
    op: str, min_is_below: bool, min_is_equal: bool, max_is_above: bool, max_is_equal: bool
) -> bool:
    return {
        "=": (min_is_below or min_is_equal) and (max_is_above or max_is_equal),
        "<": min_is_below,
        "<=": min_is_below or min_is_equal,
        ">": max_is_above,
        ">=": max_is_above or max_is_equal,
    }[op]


def _split_conjuncts(where: Expression | None) -> list[Expression]:
    if where is None:
        return []
    if isinstance(where, BinaryOp) and where.operator == "AND":
        return [*_split_conjuncts(where.left), *_split_conjuncts(where.right)]
    return [where]


def _extract_condition_bounds(condition: Expression, schema: pa.Schema) -> list[ColumnBound] | None:
    if isinstance(condition, BetweenPredicate) and not condition.negated:
        low = _extract_bound(condition.value, ">=", condition.low, schema)
        high = _extract_bound(condition.value, "<=", condition.high, schema)
        return None if low is None or high is None else [low, high]
    if not isinstance(condition, BinaryOp) or condition.operator not in _MIRRORED_OPERATORS:
        return None
    bound = _extract_bound(condition.left, condition.operator, condition.right, schema)
    if bound is None:
        mirrored = _MIRRORED_OPERATORS[condition.operator]
        bound = _extract_bound(condition.right, mirrored, condition.left, schema)
    return None if bound is None else [bound]


def _extract_bound(
    column: Expression, op: str, literal: Expression, schema: pa.Schema
) -> ColumnBound | None:
    if not isinstance(column, ColumnRef) or column.steps or column.index is None:
        return None
    if not isinstance(literal, LiteralExpr) or isinstance(literal.value, bool):
        return None
    kind = schema.field(column.index).type
    numeric = pt.is_integer(kind) or pt.is_float32(kind) or pt.is_float64(kind)
    if numeric and isinstance(literal.value, int | float | Decimal):
        return column.index, op, literal.value
    textual = pt.is_string(kind) or pt.is_large_string(kind)
    if textual and isinstance(literal.value, str):
        return column.index, op, literal.value
    return None


_TIMESTAMP_UNITS = {"s": (0, NANOS_PER_SECOND), "ms": (3, 10**6), "us": (6, 1000), "ns": (9, 1)}
_DAY_NANOS = 86_400 * NANOS_PER_SECOND
_DAY_MICROS = 86_400_000_000
_FIRST_DAY, _LAST_DAY = date_to_epoch_days(1, 1, 1), date_to_epoch_days(9999, 12, 31)
_EXPONENT_BYTE = ord("E")
_INT64_END = 2**63


def arrow_to_value(scalar: pa.Scalar) -> object:
    """Convert an Arrow scalar to an SQL value.

    Dates and timestamps become UTC timestamps of their precision. Binary values are decoded as UTF-8.
    Times and other types that SQL lacks become strings.

    Raises:
        SelectError: If a binary value is not UTF-8.
    """
    if not scalar.is_valid:
        return None
    kind = scalar.type
    if pt.is_timestamp(kind):
        digits, nanos = _TIMESTAMP_UNITS[kind.unit]
        return Timestamp(scalar.value * nanos, 0, TimestampPrecision.SECOND, digits)
    if pt.is_date(kind):
        days = scalar.value if pt.is_date32(kind) else scalar.value // 86_400_000
        return Timestamp(days * _DAY_NANOS, 0, TimestampPrecision.DAY)
    return (
        _nested_arrow_to_value(scalar, kind)
        if pt.is_nested(kind)
        else _python_to_value(scalar.as_py())
    )


def _nested_arrow_to_value(scalar: pa.Scalar, arrow_type: pa.DataType) -> object:
    if pt.is_struct(arrow_type):
        return {name: arrow_to_value(scalar[name]) for name in scalar}
    if pt.is_map(arrow_type):
        return {str(key): _python_to_value(item) for key, item in scalar.as_py()}
    return [arrow_to_value(item) for item in scalar.values]


def _python_to_value(value: Any) -> object:
    if value is None or isinstance(value, bool | int | float | str | Decimal):
        return value
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError as error:
            raise SelectError(
                "InvalidTextEncoding",
                f"A value of a binary column is not valid UTF-8 at byte {error.start}. "
                "Remove the column from the statement.",
            ) from None
    if isinstance(value, dict):
        return {str(name): _python_to_value(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_python_to_value(item) for item in value]
    return value.isoformat() if isinstance(value, dt.time) else str(value)


def arrow_to_vector(array: pa.Array) -> ValueVector | None:
    """Return an array as a vector, without a copy if the layouts agree. None: unsupported type."""
    kind = array.type
    null = _make_null_mask(array)
    none = np.zeros(len(array), np.bool_)
    if pt.is_boolean(kind):
        values = array.fill_null(False).to_numpy(zero_copy_only=False)
        return ValueVector(VectorKind.BOOL, values, null, none)
    if pt.is_integer(kind):
        numbers = _view_numbers(array, kind)
        too_large = numbers >= _INT64_END if kind == pa.uint64() else none
        return ValueVector(VectorKind.INT, numbers.astype(np.int64, copy=False), null, too_large)
    if pt.is_float32(kind) or pt.is_float64(kind):
        return ValueVector(
            VectorKind.FLOAT, _view_numbers(array, kind).astype(np.float64, copy=False), null, none
        )
    return _non_numeric_to_vector(array, null)


def _non_numeric_to_vector(array: pa.Array, null: Mask) -> ValueVector | None:
    """Convert strings, timestamps and decimals to a vector."""
    kind = array.type
    if pt.is_string(kind) or pt.is_large_string(kind):
        return ValueVector(
            VectorKind.TEXT, _view_strings(array), null, np.zeros(len(array), np.bool_)
        )
    if pt.is_timestamp(kind) or pt.is_date(kind):
        instants, odd = _arrow_to_timestamps(array)
        return ValueVector(VectorKind.TIMESTAMP, instants, null, odd & ~null)
    if pt.is_decimal(kind) and kind.scale > 0:
        # With a positive scale the text has a decimal point, so the evaluator reads a decimal.
        texts = _view_strings(array.cast(pa.string()))
        odd = mask_containing_byte(texts.buffer, texts.start, texts.end, _EXPONENT_BYTE)
        return ValueVector(VectorKind.NUMERIC_TEXT, texts, null, odd & ~null)
    return None


def _arrow_to_timestamps(array: pa.Array) -> tuple[TimestampVector, Mask]:
    """Return dates or timestamps, and the mask of those finer than 1 µs or outside years 1 to 9999."""
    kind = array.type
    form = TimestampFormat(TimestampPrecision.DAY, 0)
    if pt.is_timestamp(kind):
        digits, nanos = _TIMESTAMP_UNITS[kind.unit]
        form, per_day = TimestampFormat(TimestampPrecision.SECOND, digits), _DAY_NANOS // nanos
    else:
        per_day = 1 if pt.is_date32(kind) else 86_400_000
    numbers = _view_numbers(array, pa.int32() if pt.is_date32(kind) else pa.int64()).astype(
        np.int64
    )
    days, rest = np.divmod(numbers, per_day)
    odd = (days < _FIRST_DAY) | (days > _LAST_DAY)
    if pt.is_date(kind):
        rest = np.zeros_like(rest)
    # Microseconds of the day. Values with a finer part are deferred.
    factor, divisor = max(_DAY_MICROS // per_day, 1), max(per_day // _DAY_MICROS, 1)
    odd |= rest % divisor != 0
    micros = np.where(odd, 0, days) * _DAY_MICROS + rest * factor // divisor
    offset = np.zeros(len(array), np.int16)
    return TimestampVector(pack_epoch_micros(micros), offset, form), odd


def _make_null_mask(array: pa.Array) -> Mask:
    if not array.null_count:
        return np.zeros(len(array), np.bool_)
    mask: Mask = array.is_null().to_numpy(zero_copy_only=False)
    return mask


def _view_numbers(array: pa.Array, arrow_type: pa.DataType) -> np.ndarray[Any, Any]:
    whole = np.frombuffer(array.buffers()[1], arrow_type.to_pandas_dtype())
    return whole[array.offset : array.offset + len(array)]


def _view_strings(array: pa.Array) -> StringSlices:
    offset_type = np.int64 if pt.is_large_string(array.type) else np.int32
    _, places, data = array.buffers()
    if not len(array):
        empty = np.zeros(0, np.int32)
        return StringSlices(empty.astype(np.uint8), empty, empty, empty.astype(np.uint8))
    offsets = np.frombuffer(places, offset_type)[array.offset : array.offset + len(array) + 1]
    first = int(offsets[0])
    # The buffer may be larger than the slice. Use only the slice's range.
    buffer = view_bytes(data) if data is not None else np.zeros(1, np.uint8)
    buffer = buffer[first : int(offsets[-1])]
    offsets = offsets - first
    flags = np.zeros(len(array), np.uint8)
    starts, ends = offsets[:-1].astype(np.int32), offsets[1:].astype(np.int32)
    return StringSlices(buffer, starts, ends, flags)


_BATCH_ROWS = 32_768
_MIB = 1024 * 1024


class ParquetObjectReader:
    """Reader of one Parquet object. Its footer is read on construction."""

    def __init__(
        self, request: SelectRequest, source: ObjectSource, settings: EngineSettings
    ) -> None:
        """Open the object and read its footer.

        Raises:
            SelectError: If the object is not Parquet or is a pipe, or if the request has a ScanRange or
                a compression of the whole object.
        """
        if request.compression != "NONE":
            raise SelectError(
                "InvalidCompressionFormat",
                "Parquet compresses its own pages; use CompressionType NONE",
            )
        if request.scan_range is not None:
            raise SelectError("UnsupportedScanRangeInput", "A ScanRange needs CSV or JSON lines.")
        if source.size < 0:
            raise SelectError("InvalidDataSource", "Parquet cannot be read from a pipe.")
        self._settings = settings
        self._file = _CountedFile(source)
        self._processed_bytes = 0
        try:
            opened = pa.PythonFile(self._file, mode="r")
            self._parquet = pq.ParquetFile(opened)
            self._micros = (
                pq.ParquetFile(opened, coerce_int96_timestamp_unit="us")
                if has_int96(self._parquet)
                else None
            )
        except (pa.ArrowException, OSError) as error:
            raise _parquet_read_error(error) from error
        schema = self._parquet.schema_arrow
        self.fields: ObjectFields = ParquetFields(tuple(schema.names), schema)

    @property
    def scanned_bytes(self) -> int:
        """Bytes read from the object."""
        return self._file.scanned_bytes

    @property
    def processed_bytes(self) -> int:
        """Decompressed bytes of the columns read."""
        return self._processed_bytes

    def read_units(self, query: BoundQuery, *, all_fields: bool) -> Iterator[ParquetReadUnit]:
        """Yield the needed columns of the row groups that may contain matching records.

        Raises:
            SelectError: If a row group exceeds `select_row_group_bytes` or cannot be read.
        """
        parquet = self._parquet
        schema = parquet.schema_arrow
        every = tuple(range(len(schema.names)))
        columns = every if all_fields or query.star else query.columns
        leaves = _list_leaf_indexes(schema)
        bounds, all_known = extract_column_bounds(query.where, schema)
        places = {at: leaf[0] for at, leaf in enumerate(leaves) if len(leaf) == 1}
        for number in range(parquet.metadata.num_row_groups):
            group = parquet.metadata.row_group(number)
            if not can_match_row_group(group, bounds, places, bounds_are_complete=all_known):
                continue
            if not columns:
                yield ParquetReadUnit(group.num_rows, None, ())
                continue
            needed = [leaf for at in columns for leaf in leaves[at]]
            self._check_row_group_size(
                number, sum(group.column(at).total_uncompressed_size for at in needed)
            )
            yield from self._read_row_group(number, columns, needed)

    def close(self) -> None:
        """Stop reading."""
        self._file.closing = True

    def _read_row_group(
        self, row_group_index: int, column_indexes: Sequence[int], leaf_indexes: list[int]
    ) -> Iterator[ParquetReadUnit]:
        try:
            # Select by index: several columns may share a name, and a name may equal a nested path.
            micros: Iterator[pa.RecordBatch | None] = (
                itertools.repeat(None)
                if self._micros is None
                else self._iterate_batches(self._micros, row_group_index, leaf_indexes)
            )
            batches = self._iterate_batches(self._parquet, row_group_index, leaf_indexes)
            for batch, other in zip(batches, micros, strict=False):
                self._processed_bytes += batch.nbytes
                exact = batch if other is None else unwrap_int96(batch, other)
                yield ParquetReadUnit(batch.num_rows, exact, column_indexes)
        except (OverflowError, pa.ArrowException, OSError) as error:
            raise _parquet_read_error(error) from error

    def _iterate_batches(
        self, file: pq.ParquetFile, row_group_index: int, leaf_indexes: list[int]
    ) -> Iterator[pa.RecordBatch]:
        found: Iterator[pa.RecordBatch] = file.reader.iter_batches(
            _BATCH_ROWS,
            row_groups=[row_group_index],
            column_indices=leaf_indexes,
            use_threads=self._settings.threads != 1,
        )
        return found

    def _check_row_group_size(self, row_group_index: int, size_bytes: int) -> None:
        limit = self._settings.row_group_bytes
        if size_bytes > limit:
            raise SelectError(
                "OverMaxParquetBlockSize",
                f"The needed columns of row group {row_group_index} take {size_bytes // _MIB} MiB; the setting "
                f"select_row_group_bytes allows {limit} bytes.",
            )


class ParquetReadUnit:
    """Consecutive records of one row group."""

    def __init__(
        self, row_count: int, batch: pa.RecordBatch | None, column_indexes: Sequence[int]
    ) -> None:
        self._rows = row_count
        self._batch = batch
        self._columns = tuple(column_indexes)

    def count_records(self) -> int | None:
        """Return the number of records."""
        return self._rows

    def decode(self) -> ParquetBatch:
        """Return the records."""
        return ParquetBatch(self._rows, self._batch, self._columns)

    def release(self) -> None:
        """Release the columns."""
        self._batch = None


@dataclass(frozen=True, slots=True)
class ParquetBatch:
    """Arrow columns and their indexes in the file."""

    row_count: int
    batch: pa.RecordBatch | None
    column_indexes: tuple[int, ...]
    failure: SelectError | None = None

    def read_arrow_column(self, index: int) -> pa.Array:
        """Return a column by its index in the file."""
        if self.batch is None:
            raise KeyError(index)
        return self.batch.column(self.column_indexes.index(index))

    def read_column(self, column: ColumnRef, *, for_output: bool = False) -> ValueVector | None:  # noqa: ARG002  output omits no field
        """Return the values of a column, or None for a nested column or a type without kernels."""
        if column.steps or column.index is None:
            return None
        return arrow_to_vector(self.read_arrow_column(column.index))

    def read_all_columns(self) -> tuple[tuple[str, ...], list[ValueVector]] | None:
        """Return names and values of all columns, or None if the scalar evaluator must read some."""
        vectors: list[ValueVector] = []
        for column in () if self.batch is None else self.batch.columns:
            vector = arrow_to_vector(column)
            if vector is None or vector.deferred.any():
                return None
            vectors.append(vector)
        return (tuple(self.batch.schema.names), vectors) if self.batch is not None else None

    def read_row(self, row_index: int) -> ParquetRow:
        """Return one record."""
        return ParquetRow(self, row_index)

    def record_offset(self, row_index: int) -> None:
        """Return None: records of Parquet have no offset."""


@dataclass(frozen=True, slots=True)
class ParquetRow:
    """One record, for the scalar evaluator."""

    batch: ParquetBatch
    row_index: int

    def field(self, column: ColumnRef) -> object:
        """Return the value of a column, or the value at its path in that column."""
        if column.index is None:
            return MISSING
        value = arrow_to_value(self.batch.read_arrow_column(column.index)[self.row_index])
        return follow_path(value, column.steps) if column.steps else value

    def fields(self) -> Sequence[object]:
        """Return the values of all columns."""
        batch = self.batch.batch
        return (
            []
            if batch is None
            else [arrow_to_value(column[self.row_index]) for column in batch.columns]
        )

    def field_names(self) -> Sequence[str]:
        """Return the names of all columns."""
        batch = self.batch.batch
        return [] if batch is None else batch.schema.names


class _CountedFile(ObjectFile):
    """Object that Arrow reads. Counts the bytes, and stops when the query is closed."""

    def __init__(self, source: ObjectSource) -> None:
        super().__init__(source)
        self.scanned_bytes = 0
        self.closing = False

    def readinto(self, buffer: Any) -> int:
        if self.closing:
            raise OSError("the query was closed")
        count = super().readinto(buffer)
        self.scanned_bytes += count
        return count


def _list_leaf_indexes(schema: pa.Schema) -> list[list[int]]:
    """Return the leaf column indexes of each top-level column."""
    found: list[list[int]] = []
    end = 0
    for field in schema:
        start, end = end, end + _count_leaves(field.type)
        found.append(list(range(start, end)))
    return found


def _count_leaves(arrow_type: pa.DataType) -> int:
    if isinstance(arrow_type, pa.BaseExtensionType):
        return _count_leaves(arrow_type.storage_type)
    children = [arrow_type.field(at) for at in range(arrow_type.num_fields)]
    return sum(_count_leaves(child.type) for child in children) if children else 1


def _parquet_read_error(error: Exception) -> SelectError:
    text = str(error)
    if "codec" in text.lower():
        return SelectError("ParquetUnsupportedCompressionCodec", text)
    return SelectError("ParquetParsingError", f"The object cannot be read as Parquet: {text}")

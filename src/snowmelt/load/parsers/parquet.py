"""Parsers of Parquet and ORC files. Columns are matched by name.

Arrow casts a column if the types permit it. Otherwise its values are converted one by one.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.orc as po
import pyarrow.parquet as pq

from snowmelt.errors import PhaseFailed
from snowmelt.load.column_converter import TextColumnConverter
from snowmelt.load.parsers.record_columns import RecordRowBuilder, display_record
from snowmelt.load.phase_protocols import ByteReader, ParsedBatch, ParseTarget
from snowmelt.load.portion import Portion
from snowmelt.schema.conversion.arrow_input import cast_decimals, has_int96, unwrap_int96
from snowmelt.schema.conversion.arrow_to_python import to_python_values
from snowmelt.schema.conversion.timestamps import out_of_range_mask
from snowmelt.schema.iceberg_table_form import needs_nanosecond_companion
from snowmelt.schema.types import TIMESTAMP_TYPES, LogicalType

_BATCH_ROWS = 16_384
# Both formats require random access. A file above this size is buffered on disk.
_MAX_MEMORY_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class ParquetOptions:
    """Options of PARQUET: columns match by name in any case. A missing column has its default."""

    reject_on_materialized_type_error: bool = True

    def parser(self) -> ColumnFileParser:
        """Return the parser."""
        return ColumnFileParser(
            "a Parquet", _ParquetFile, strict=self.reject_on_materialized_type_error
        )


@dataclass(frozen=True, slots=True)
class OrcOptions:
    """Options of ORC: columns match by name in any case. A missing column has its default."""

    reject_on_materialized_type_error: bool = True

    def parser(self) -> ColumnFileParser:
        """Return the parser."""
        return ColumnFileParser("an ORC", _OrcFile, strict=self.reject_on_materialized_type_error)


# Open files. `read` yields batches of up to 16,384 rows with the given columns.


class _ParquetFile:
    def __init__(self, file: BinaryIO) -> None:
        self._file = pq.ParquetFile(file)
        self.schema = self._file.schema_arrow
        # Arrow reads INT96 as nanoseconds, which wrap around outside of 1677 to 2262.
        self._micros = (
            pq.ParquetFile(file, coerce_int96_timestamp_unit="us")
            if has_int96(self._file)
            else None
        )

    def read(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        batches = self._iterate_batches(self._file, columns)
        if self._micros is None:
            yield from batches
            return
        for batch, micros in zip(
            batches, self._iterate_batches(self._micros, columns), strict=True
        ):
            yield unwrap_int96(batch, micros)

    @staticmethod
    def _iterate_batches(file: pq.ParquetFile, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        yield from file.iter_batches(_BATCH_ROWS, columns=list(columns), use_threads=False)


class _OrcFile:
    def __init__(self, file: BinaryIO) -> None:
        self._file = po.ORCFile(file)
        self.schema = self._file.schema

    def read(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        for number in range(self._file.nstripes):
            stripe = self._file.read_stripe(number, columns=list(columns)).select(list(columns))
            for start in range(0, stripe.num_rows, _BATCH_ROWS):
                yield stripe.slice(start, _BATCH_ROWS)


class ColumnFileParser:
    """Parser of a columnar format. Buffers the whole file, because reading starts at its end."""

    splittable = False

    def __init__(
        self, format_name: str, file_type: type[_ParquetFile | _OrcFile], *, strict: bool
    ) -> None:
        self._format_name = format_name
        self._file_type = file_type
        self._strict = strict

    def parse(
        self,
        reader: ByteReader,
        target: ParseTarget,
        portion: Portion,  # noqa: ARG002
    ) -> Iterator[ParsedBatch]:
        """Yield parsed batches of up to 16,384 rows.

        Raises:
            PhaseFailed: If the input has another format, or none of its columns matches a column.
        """
        with tempfile.SpooledTemporaryFile(_MAX_MEMORY_BYTES) as held:
            for piece in reader:
                held.write(piece)
            if not held.tell():
                return
            held.seek(0)
            objects = RecordRowBuilder(
                target,
                strict=self._strict,
                flatten_maps=False,
                flatten_arrays=False,
                key_separator=".",
            )
            try:
                file = self._file_type(cast("BinaryIO", held))
                names = _match_columns(file.schema, objects.converter.columns)
                for batch in file.read([name for name in names if name is not None]):
                    yield self._parse_batch(batch, names, objects)
            except OverflowError as error:
                raise PhaseFailed(reason=str(error)) from None
            except (pa.ArrowException, OSError) as error:
                reason = str(error)
                if not reason.startswith("ORC timestamp"):  # A value that Arrow cannot represent.
                    reason = f"not {self._format_name} file, or broken: {reason}"
                raise PhaseFailed(reason=reason) from None

    def _parse_batch(
        self, batch: pa.RecordBatch, names: list[str | None], row_builder: RecordRowBuilder
    ) -> ParsedBatch:
        arrays: list[pa.Array] = []
        refused: dict[int, tuple[str | None, str]] = {}
        for column, name in zip(row_builder.converter.columns, names, strict=True):
            if name is None and column.column.default is not None:
                arrays.extend(column.make_missing_arrays(batch.num_rows)[0])
                continue
            given = pa.nulls(batch.num_rows) if name is None else _normalize(batch.column(name))
            parts = _convert_with_arrow(given, column)
            if parts is None:
                parts, found = column.convert_values(to_python_values(given))
                if self._strict or not column.column.nullable:
                    label = column.column.display_name
                    refused |= {row: (label, reason) for row, reason in found.items()}
            arrays.extend(parts)
        table = row_builder.converter.drop_rejected_rows(
            row_builder.converter.make_table(arrays), refused
        )
        return row_builder.batches.build(
            table,
            refused,
            batch.num_rows,
            lambda row: (0, display_record(_get_row(batch, row))),
        )


def _normalize(array: pa.Array) -> pa.Array:
    """Return the values that the format itself stores, whatever types the writer's Arrow had.

    Instants are in UTC: the zone of an Arrow writer is not part of the format. Floats of 16 and 32
    bits become doubles of the same value.
    """
    target = _normalize_type(array.type)
    return array if target == array.type else array.cast(target)


def _normalize_type(kind: pa.DataType) -> pa.DataType:
    types = pa.types
    if types.is_dictionary(kind):
        return _normalize_type(kind.value_type)
    if types.is_float16(kind) or types.is_float32(kind):
        return pa.float64()
    if types.is_timestamp(kind) and kind.tz is not None:
        return pa.timestamp(kind.unit, "UTC")
    if types.is_map(kind):
        return pa.map_(_normalize_type(kind.key_type), _normalize_type(kind.item_type))
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return pa.list_(_normalize_field(kind.value_field))
    if types.is_struct(kind):
        return pa.struct([_normalize_field(field) for field in kind])
    return kind


def _normalize_field(field: pa.Field) -> pa.Field:
    return field.with_type(_normalize_type(field.type))


def _get_row(batch: pa.RecordBatch, row_index: int) -> dict[str, object]:
    """Return one row. Dates and timestamps outside Python's range are text."""
    values = (
        to_python_values(_normalize(column.slice(row_index, 1)))[0] for column in batch.columns
    )
    return {
        name: _display_scalar(value) if isinstance(value, (np.datetime64, pa.Scalar)) else value
        for name, value in zip(batch.schema.names, values, strict=True)
    }


def _display_scalar(value: np.datetime64 | pa.Scalar) -> str:
    # `str` of a timestamp with a zone raises OverflowError outside of Python's range.
    if isinstance(value, pa.TimestampScalar):
        return str(value.cast(pa.string()).as_py())
    return str(value)


def _match_columns(schema: pa.Schema, columns: list[TextColumnConverter]) -> list[str | None]:
    names: list[str | None] = []
    for column in columns:
        wanted = column.column.name
        found = [name for name in schema.names if name == wanted] or [
            name for name in schema.names if name.upper() == wanted.upper()
        ]
        if len(found) > 1:
            raise PhaseFailed(
                reason=f"{len(found)} columns of the file match {column.column.display_name}: "
                f"{', '.join(found)}"
            )
        names.append(found[0] if found else None)
    if all(name is None for name in names):
        listed = ", ".join(schema.names[:20])
        raise PhaseFailed(reason=f"the file has none of the columns; it has {listed}")
    return names


def _convert_with_arrow(array: pa.Array, column: TextColumnConverter) -> list[pa.Array] | None:
    """Convert a whole column, or return None if its values must be converted one by one."""
    kind = column.column.kind
    if pa.types.is_timestamp(array.type) and kind in TIMESTAMP_TYPES:
        parts = _convert_timestamps(array, column)
        return (
            None if parts is None or out_of_range_mask(column.column, parts) is not None else parts
        )
    if pa.types.is_time(array.type) and kind is LogicalType.TIME:
        return _convert_timestamps(array.cast(pa.time64("ns")).view(pa.timestamp("ns")), column)
    direct = column.csv_reader_arrow_type
    if direct is None or not _is_exact_cast(array.type, kind):
        return None
    try:
        is_decimal = pa.types.is_decimal(array.type)
        cast = cast_decimals(array, direct) if is_decimal else array.cast(direct)
        return None if cast is None else column.convert_csv_reader_values(cast)
    except pa.ArrowException:
        return None


def _is_exact_cast(arrow_type: pa.DataType, kind: LogicalType) -> bool:
    """Return True if Arrow's cast gives the same result as converting the values one by one."""
    types = pa.types
    checks = {
        LogicalType.FIXED: (types.is_integer, types.is_decimal),
        LogicalType.REAL: (types.is_float64,),
        LogicalType.BOOLEAN: (types.is_boolean,),
        LogicalType.TEXT: (types.is_string, types.is_large_string),
        LogicalType.DATE: (types.is_date32,),
    }
    return any(check(arrow_type) for check in checks.get(kind, ()))


def _convert_timestamps(array: pa.Array, column: TextColumnConverter) -> list[pa.Array] | None:
    """Convert timestamps, truncated to the column's precision, or return None if not possible."""
    if array.null_count and not column.column.nullable:
        return None
    unit = array.type.unit
    micros = array
    try:
        if unit == "ns":
            nanos = array.view(pa.int64())
            # Divide first: near the lowest count, subtracting the remainder wraps around.
            whole = pc.divide(nanos, 1000)
            is_above = pc.greater(pc.multiply(whole, 1000), nanos)
            whole = pc.subtract(whole, is_above.cast(pa.int64()))
            micros = whole.view(pa.timestamp("us"))
        else:
            micros = array.view(pa.timestamp(unit)).cast(pa.timestamp("us"))
    except pa.ArrowException:
        return None
    own = column.csv_reader_arrow_type or pa.timestamp("us", "UTC")
    scale = column.column.scale or 0
    if scale < 6:
        values = micros.view(pa.int64())
        micros = pc.subtract(values, _floor_remainder(values, 10 ** (6 - scale)))
    parts = [micros.view(pa.int64()).view(own)]
    if needs_nanosecond_companion(column.column):
        rest = (
            _floor_remainder(array.view(pa.int64()), 1000)
            if unit == "ns"
            else pc.multiply(parts[0].view(pa.int64()), 0)
        )
        step = 10 ** (9 - scale)
        parts.append(pc.subtract(rest, _floor_remainder(rest, step)).cast(pa.int32()))
    if column.column.kind is LogicalType.TIMESTAMP_TZ:
        parts.append(pc.multiply(parts[0].view(pa.int64()), 0).cast(pa.int32()))
    return parts


def _floor_remainder(values: pa.Array, divisor: int) -> pa.Array:
    """Return the remainder of floor division."""
    found = pc.subtract(values, pc.multiply(pc.divide(values, divisor), divisor))
    return pc.if_else(pc.less(found, 0), pc.add(found, divisor), found)

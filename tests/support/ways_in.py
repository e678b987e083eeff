"""Every way in for values, with the converters that it uses: what each stores of one value.

A way is asked by `stored`: it returns the native values (bit for bit), that the value is rejected,
or that the way cannot write such a value at all.
"""

from __future__ import annotations

import csv
import datetime as dt
import io
import json
import math
from decimal import Decimal
from types import SimpleNamespace
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

import pyarrow as pa

from snowmelt.client.line_source import CsvLineParser, parse_json_row
from snowmelt.clock import SystemClock
from snowmelt.errors import InvalidRow, LoadFailed
from snowmelt.ingest.rows.row_converter import ConverterPool
from snowmelt.json.exact import parse_row
from snowmelt.load.parsers import definition
from snowmelt.load.phase_protocols import ByteReader, ParseTarget
from snowmelt.load.portion import InputFile, Portion
from snowmelt.schema.conversion.row_converter import RowConverter
from snowmelt.schema.iceberg_table_form import to_native_table
from snowmelt.schema.types import Column, Compatibility, LogicalType, TableSchema
from snowmelt.spark.datasource.write_task import cast_column

if TYPE_CHECKING:
    from collections.abc import Callable

UTC = ZoneInfo("UTC")
REJECTED = "rejected"
UNWRITABLE = "cannot be written"
# Calls of so many rows are converted by columns.
_MANY = 128
_POOL = ConverterPool(UTC, SystemClock())
_SPARK_TYPES = (
    pa.types.is_boolean,
    pa.types.is_int64,
    pa.types.is_float64,
    pa.types.is_decimal128,
    pa.types.is_string,
    pa.types.is_binary,
    pa.types.is_date32,
    pa.types.is_timestamp,
    pa.types.is_time,
)


def _bits(table: pa.Table) -> str:
    """Return the one value of a table's first row, with what companions say of it."""
    values = [array[0].as_py() for array in table.columns]
    return " ".join(
        "nan" if isinstance(each, float) and math.isnan(each) else repr(each) for each in values
    )


def _from_rows(done: object, schema: TableSchema) -> str:
    if done.errors:
        return REJECTED
    return _bits(to_native_table(done.table, schema))


def _converter(column: Column, mode: Compatibility = Compatibility.STRICT) -> RowConverter:
    return RowConverter(TableSchema(1, (column,)), zone=UTC, compatibility=mode)


def _insert_row(column: Column, value: object) -> str:
    converter = _converter(column)
    checker = converter.fast_checker
    checked = checker.try_check({column.name: value})
    try:
        table = (
            converter.build_table([converter.convert_row({column.name: value})])
            if checked is None
            else checker.build_table(list(checked))
        )
    except InvalidRow:
        return REJECTED
    return _bits(to_native_table(table, converter.schema))


def _insert_rows(column: Column, value: object) -> str:
    converter = _converter(column)
    rows = [{column.name: value}] * _MANY
    packed = converter.try_defer(rows)
    if packed is not None:
        return _bits(to_native_table(packed.to_table(), converter.schema))
    return _from_rows(converter.convert(rows), converter.schema)


def _arrow(value: object) -> pa.Array | None:
    if isinstance(value, Decimal) and value.is_finite() and value.as_tuple().exponent > 0:
        # Arrow's decimals have all digits before the point.
        return None
    try:
        return pa.array([value])
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        return None


def _insert_arrow(column: Column, value: object) -> str:
    array = _arrow(value)
    if array is None:
        return UNWRITABLE
    converter = _converter(column)
    table = pa.table({column.name: array})
    return _from_rows(converter.convert_arrow_table(table), converter.schema)


def _is_of_spark(kind: pa.DataType) -> bool:
    if pa.types.is_null(kind) or any(is_kind(kind) for is_kind in _SPARK_TYPES):
        return not pa.types.is_decimal(kind) or 0 <= kind.scale <= kind.precision
    if pa.types.is_list(kind):
        return _is_of_spark(kind.value_type)
    return pa.types.is_struct(kind) and all(_is_of_spark(each.type) for each in kind)


def _frame(column: Column, value: object) -> str:
    array = _arrow(value)
    if array is None or not _is_of_spark(array.type):
        return UNWRITABLE
    if pa.types.is_timestamp(array.type) and array.type.tz not in {None, "UTC"}:
        # An instant of Spark has no offset of its own.
        return UNWRITABLE
    try:
        arrays = cast_column(column, array, UTC)
    except LoadFailed:
        return REJECTED
    return _bits(pa.table(arrays, names=[str(at) for at in range(len(arrays))]))


class Json(str):
    """JSON as it is written, which only a way that reads JSON can be given."""


def written_json(value: object) -> str | None:
    """Return a value as JSON, numbers as they are written; None if JSON has no such value."""
    if isinstance(value, Json):
        return value
    if isinstance(value, Decimal):
        return str(value) if value.is_finite() else None
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, list | tuple):
        items = list(map(written_json, value))
        return None if None in items else f"[{','.join(items)}]"
    if isinstance(value, dict):
        items = [(json.dumps(key), written_json(each)) for key, each in value.items()]
        if any(each is None for _, each in items):
            return None
        return "{" + ",".join(f"{key}:{each}" for key, each in items) + "}"
    try:
        return json.dumps(value, ensure_ascii=False)
    except TypeError:
        return None


def _line(column: Column, value: object) -> bytes | None:
    text = written_json(value)
    if text is None:
        return None
    return f"{{{json.dumps(column.name)}:{text}}}".encode("utf-8", "surrogatepass")


def _row_api(column: Column, value: object) -> str:
    line = _line(column, value)
    if line is None:
        return UNWRITABLE
    schema = TableSchema(1, (column,))
    # The key of the pool's converters.
    table = SimpleNamespace(
        table_id=repr(column), schema=schema, schema_evolution=False, error_table_id=None
    )
    found = set()
    for count in (1, _MANY * 2):
        done = _POOL.convert(b"\n".join([line] * count), table, None)
        found.add(REJECTED if done.rejected_count else _bits(to_native_table(done.table, schema)))
    assert len(found) == 1, (column, value, found)
    return found.pop()


def _parsed(parser: str, data: bytes, column: Column, **options: object) -> str:
    number = Column("NUMBER", LogicalType.TEXT, 2, length=1)
    columns = (number, column) if parser == "delimited" else (column,)
    target = ParseTarget(TableSchema(1, columns), enforce_length=True)
    phase = definition(parser).build_phase(options)
    for part in phase.parse(ByteReader([data]), target, Portion(InputFile("x"))):
        if part.rows.num_rows:
            return _bits(part.rows.drop_columns(["NUMBER"] if number in columns else []))
        assert part.rejects
    return REJECTED


def _copy_json(column: Column, value: object) -> str:
    line = _line(column, value)
    return UNWRITABLE if line is None else _parsed("json", line + b"\n", column, flatten_maps=False)


def written_text(value: object) -> str | None:
    """Return a value as a field of a file; None if it has no form there that means the same."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    return None


def _field(value: object) -> bytes | None:
    text = written_text(value)
    if text is None:
        return None
    made = io.StringIO()
    csv.writer(made, lineterminator="\n").writerow([text])
    written = made.getvalue()
    if value == "":
        written = '""\n'
    elif value is None:
        written = "\n"
    return written.encode("utf-8", "surrogatepass")


def _copy_csv(column: Column, value: object) -> str:
    field = _field(value)
    if field is None:
        return UNWRITABLE
    return _parsed("delimited", b"1," + field, column, delimiter=",", enclosed_by='"')


def _tail_json(column: Column, value: object) -> str:
    line = _line(column, value)
    return UNWRITABLE if line is None else _from_line(column, parse_json_row(line, 1))


def _tail_csv(column: Column, value: object) -> str:
    field = _field(value)
    if field is None or b"\n" in field[:-1]:
        return UNWRITABLE
    parse = CsvLineParser(["number", column.name])
    row = parse(b"1," + field[:-1], 1)
    if isinstance(row, dict):
        row.pop("number")
    return _from_line(column, row)


def _from_line(column: Column, row: object) -> str:
    return REJECTED if not isinstance(row, dict) else _insert_row(column, row[column.name])


def _kafka(column: Column, value: object) -> str:
    line = _line(column, value)
    return UNWRITABLE if line is None else _from_line(column, parse_row(line))


WAYS: dict[str, Callable[[Column, object], str]] = {
    "insert_row": _insert_row,
    "insert_rows": _insert_rows,
    "insert_arrow": _insert_arrow,
    "row API": _row_api,
    "COPY CSV": _copy_csv,
    "COPY JSON": _copy_json,
    "INSERT, df.write": _frame,
    "tail JSON": _tail_json,
    "tail CSV": _tail_csv,
    "Kafka": _kafka,
}

JSON_WAYS = ("row API", "COPY JSON", "tail JSON", "Kafka")


def stored(column: Column, value: object) -> dict[str, str]:
    """Return what each way that can write a value makes of it."""
    ways = WAYS.items()
    if isinstance(value, Json):
        ways = [(name, way) for name, way in ways if name in JSON_WAYS]
    found = {name: way(column, value) for name, way in ways}
    return {name: each for name, each in found.items() if each != UNWRITABLE}


MOMENT = dt.datetime(2026, 11, 21, 10, 30, 1, 250_000)

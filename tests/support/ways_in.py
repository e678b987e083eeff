"""Result of each interface for one value, computed with the converters of that interface.

For each interface, `stored` returns the exact native values, or that the value is rejected, or that
the interface cannot write such a value.
"""

from __future__ import annotations

import csv
import datetime as dt
import io
import json
import math
import uuid
from collections import Counter
from decimal import Decimal
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast
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
from snowmelt.loaders.arrow_conversion import cast_column
from snowmelt.schema.conversion.row_converter import RowConverter
from snowmelt.schema.iceberg_table_form import to_native_table
from snowmelt.schema.types import (
    SEMI_STRUCTURED_TYPES,
    TIMESTAMP_TYPES,
    Column,
    Compatibility,
    LogicalType,
    TableSchema,
)
from support.sdk_values_page import COLUMNS

if TYPE_CHECKING:
    from collections.abc import Callable

    from snowmelt.load.phase_definition import PhaseDefinition

UTC = ZoneInfo("UTC")
REJECTED = "rejected"
UNWRITABLE = "cannot be written"
# Number of rows per call from which values are converted by columns.
_MANY = 128
_POOL = ConverterPool(UTC, SystemClock())
_SPARK_TYPES = (
    pa.types.is_boolean,
    pa.types.is_signed_integer,
    pa.types.is_floating,
    pa.types.is_decimal128,
    pa.types.is_string,
    pa.types.is_binary,
    pa.types.is_date32,
    pa.types.is_timestamp,
    pa.types.is_time,
)


def _bits(table: pa.Table) -> str:
    """Return the value of a table's first row, with its companions."""
    values = [array[0].as_py() for array in table.columns]
    return " ".join(
        "nan" if isinstance(each, float) and math.isnan(each) else repr(each) for each in values
    )


def _from_rows(done: Any, schema: TableSchema) -> str:
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
    if (
        isinstance(value, Decimal)
        and value.is_finite()
        and cast("int", value.as_tuple().exponent) > 0
    ):
        # Arrow's decimals store every digit before the point, so they have no positive exponent.
        return None
    try:
        array = pa.array([value])
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        return None
    # Arrow converts the items of a list to one type.
    is_same = not isinstance(value, list | dict) or repr(array.to_pylist()[0]) == repr(value)
    return array if is_same else None


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
        # Spark's timestamps have no offset.
        return UNWRITABLE
    try:
        arrays = cast_column(column, array, UTC)
    except LoadFailed:
        return REJECTED
    return _bits(pa.table(arrays, names=[str(at) for at in range(len(arrays))]))


class Json(str):
    """JSON text, for interfaces that read JSON."""


def written_json(value: object) -> str | None:
    """Return a value as JSON, with numbers as written, or None if JSON has no such value."""
    if isinstance(value, Json):
        return value
    if isinstance(value, Decimal):
        # JSON has a negative zero, but decimals do not.
        return str(value or value.copy_abs()) if value.is_finite() else None
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, list | tuple):
        items = list(map(written_json, value))
        return None if None in items else f"[{','.join(cast('list[str]', items))}]"
    if isinstance(value, dict):
        pairs = [(json.dumps(key), written_json(each)) for key, each in value.items()]
        if any(each is None for _, each in pairs):
            return None
        return "{" + ",".join(f"{key}:{each}" for key, each in pairs) + "}"
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
    # Key of the converters in the pool.
    table: Any = SimpleNamespace(
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
    phase = cast("PhaseDefinition[Any]", definition(parser)).build_phase(options)
    for part in phase.parse(ByteReader([data]), target, Portion(InputFile("x"))):
        if part.rows.num_rows:
            return _bits(part.rows.drop_columns(["NUMBER"] if number in columns else []))
        assert part.rejects
    return REJECTED


def _copy_json(column: Column, value: object) -> str:
    line = _line(column, value)
    return UNWRITABLE if line is None else _parsed("json", line + b"\n", column, flatten_maps=False)


def _field(value: object) -> bytes | None:
    """Return a text or None as a field of a file, with the line end."""
    if value is None:
        return b"\n"
    if not isinstance(value, str):
        return None
    made = io.StringIO()
    csv.writer(made, lineterminator="\n", quoting=csv.QUOTE_ALL).writerow([value])
    return made.getvalue().encode("utf-8", "surrogatepass")


def _copy_csv(column: Column, value: object) -> str:
    field = _field(value)
    if field is None:
        return UNWRITABLE
    return _parsed("delimited", b"1," + field, column, delimiter=",", enclosed_by='"', escape="")


def _tail_json(column: Column, value: object) -> str:
    line = _line(column, value)
    return UNWRITABLE if line is None else _from_line(column, parse_json_row(line, 1))


def _tail_csv(column: Column, value: object) -> str:
    field = _field(value)
    if field is None or len(field.splitlines()) > 1:
        # A record is one line in this format.
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
    """Return the result of each interface that can write a value."""
    ways = list(WAYS.items())
    if isinstance(value, Json):
        ways = [(name, way) for name, way in ways if name in JSON_WAYS]
    found = {name: way(column, value) for name, way in ways}
    return {name: each for name, each in found.items() if each != UNWRITABLE}


# --- Intended differences between an interface and `insert_row`


def as_read(way: str, value: object) -> object:
    """Return the Python value that an interface parses from JSON. Number types may differ."""
    if isinstance(value, list | tuple):
        return [as_read(way, each) for each in value]
    if isinstance(value, dict):
        return {key: as_read(way, each) for key, each in value.items()}
    if way == "row API" and isinstance(value, Decimal):
        text = str(value)
        return value if text.lstrip("-").isdecimal() else float(value or value.copy_abs())
    if way in JSON_WAYS and way != "row API" and isinstance(value, float):
        return Decimal(repr(value)) if value or math.copysign(1, value) > 0 else value
    return value


_TIMES = TIMESTAMP_TYPES | {LogicalType.DATE, LogicalType.TIME}
DIFFERENCES: list[tuple[tuple[str, ...], str, Callable[[Column, object], bool]]] = [
    (
        ("COPY CSV", "COPY JSON"),
        "A column of whole numbers rejects a number with a fraction, and does not round it.",
        lambda column, _: column.kind is LogicalType.FIXED and not column.scale,
    ),
    (
        ("COPY CSV", "COPY JSON"),
        "Text is read as a date or time in Vertica's formats, without integers since 1970.",
        lambda column, value: column.kind in _TIMES and isinstance(value, str | int),
    ),
    (
        ("COPY CSV", "COPY JSON"),
        "Hexadecimal digits may begin with `0x`.",
        lambda column, value: column.kind is LogicalType.BINARY and isinstance(value, str),
    ),
    (
        ("COPY JSON",),
        "Text in a VARIANT, ARRAY or OBJECT is stored as a string, and is not read as JSON.",
        lambda column, value: column.kind in SEMI_STRUCTURED_TYPES and isinstance(value, str),
    ),
    (
        ("COPY JSON",),
        "A list or an object is written into VARCHAR as JSON.",
        lambda column, value: column.kind is LogicalType.TEXT and isinstance(value, list | dict),
    ),
    (
        ("COPY CSV",),
        "A text of blanks is rejected by ARRAY.",
        lambda column, value: (
            column.kind is LogicalType.ARRAY and isinstance(value, str) and not value.strip()
        ),
    ),
    (("tail CSV",), "An empty field is NULL, quoted or not.", lambda _, value: value == ""),
]
"""The ways, the sentence of the page, and where it holds; numbers of JSON are in `as_read`."""


def is_meant(way: str, column: Column, value: object) -> bool:
    """Return True if the page documents that this interface may store another value, or reject it."""
    return any(way in ways and holds(column, value) for ways, _, holds in DIFFERENCES)


# --- Table of `docs/reference/values-by-interface.md`

_MOMENT = dt.datetime(2026, 11, 21, 10, 30, 1, 250_000)
KINDS: dict[str, object] = {
    "NULL": None,
    "boolean": True,
    "0 or 1": 1,
    "another integer": 12,
    "number with a fraction": Decimal("1.5"),
    "float": 2.5,
    "NaN": math.nan,
    "infinity": math.inf,
    "`12`": "12",
    "`1.5`": "1.5",
    "`1e2`": "1e2",
    "`true`, `yes`": "yes",
    "`NaN`, `inf`": "NaN",
    "`ab` (hexadecimal)": "ab",
    "`0xab`": "0xab",
    "`x y`": "x y",
    "empty text": "",
    "`2026-11-21`": "2026-11-21",
    "`20261121`": "20261121",
    "`11/21/2026`": "11/21/2026",
    "`21-NOV-2026`": "21-NOV-2026",
    "`10:30:01.25`": "10:30:01.25",
    "`08:57 PM`": "08:57 PM",
    "`2026-11-21T10:30:01`": "2026-11-21T10:30:01",
    "`2026-11-21 10:30:01`": "2026-11-21 10:30:01",
    "`2026-11-21T10:30:01+05:30`": "2026-11-21T10:30:01+05:30",
    "`1795257001` (since 1970)": "1795257001",
    "`[1]`": "[1]",
    '`{"a":1}`': '{"a":1}',
    "bytes": b"\xab",
    "list": [1, "a"],
    "mapping, struct": {"a": 1},
    "date": _MOMENT.date(),
    "time": _MOMENT.time(),
    "date with time": _MOMENT,
    "date with time and zone": _MOMENT.replace(tzinfo=dt.UTC),
    "UUID": uuid.UUID(int=1),
}


def _cell(column: Column, value: object) -> str:
    found = {
        name: "–" if each == REJECTED else "NULL" if set(each.split()) == {"None"} else "yes"
        for name, each in stored(column, value).items()
    }
    counts = Counter(found.values())
    usual = found["insert_row"] if len(counts) > 1 else next(iter(counts))
    others = [f"{name} {each}" for name, each in found.items() if each != usual]
    return ", ".join([usual, *others])


def table() -> str:
    """Run each value through each interface. Return the table in Markdown with its exceptions."""
    head = ["| value | " + " | ".join(COLUMNS) + " |", "|" + " --- |" * (len(COLUMNS) + 1)]
    rows = [
        f"| {name} | " + " | ".join(_cell(column, value) for column in COLUMNS.values()) + " |"
        for name, value in KINDS.items()
    ]
    said = [f"* {', '.join(ways)}: {sentence}" for ways, sentence, _ in DIFFERENCES]
    return "\n".join([*head, *rows, "", *said]) + "\n"

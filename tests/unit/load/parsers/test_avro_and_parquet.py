"""Avro and Parquet: columns by name, values by the rules of their columns, broken files located."""

from __future__ import annotations

import datetime as dt
import http.server
import io
import json
import threading
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.orc as po
import pyarrow.parquet as pq
import pytest

from snowmelt.errors import LoadRefused, PhaseFailed
from snowmelt.load.parsers import definition
from snowmelt.schema.types import Column, LogicalType, TableSchema
from support.int96_parquet import int96_parquet
from support.parser_runs import load, load_records
from support.phases import built

SCHEMA = TableSchema(
    1,
    (
        Column("A", LogicalType.FIXED, 1, precision=6, scale=2),
        Column("B", LogicalType.TEXT, 2, length=10),
        Column("T", LogicalType.TIMESTAMP_NTZ, 3, scale=9),
        Column("O.X", LogicalType.REAL, 4),
    ),
)
AVRO = {
    "type": "record",
    "name": "r",
    "fields": [
        {
            "name": "a",
            "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
        },
        {"name": "b", "type": ["null", "string"]},
        {"name": "t", "type": {"type": "long", "logicalType": "local-timestamp-micros"}},
        {"name": "o", "type": {"type": "map", "values": "double"}},
    ],
}
AT = dt.datetime(2013, 1, 1, 5, 6, 7, 123)
GOOD = {"a": Decimal("1.50"), "b": "x", "t": AT, "o": {"x": 2.5}}
BAD = {**GOOD, "a": Decimal("12345.00")}


def avro(*records: dict[str, Any], codec: str = "deflate") -> bytes:
    file = io.BytesIO()
    fastavro.writer(file, AVRO, records, codec=codec)
    return file.getvalue()


def message(record: dict[str, Any]) -> bytes:
    file = io.BytesIO()
    fastavro.schemaless_writer(file, fastavro.parse_schema(AVRO), record)
    return file.getvalue()


def test_an_avro_file_fills_columns_by_name_and_nested_ones_by_path() -> None:
    data = avro(GOOD, {**GOOD, "b": None})
    expected = [(Decimal("1.50"), "x", AT, 0, 2.5), (Decimal("1.50"), None, AT, 0, 2.5)]
    for size in (None, 3):
        assert load("avro", data, SCHEMA, size=size) == (expected, [])
    assert load("avro", b"", SCHEMA) == ([], [])


def test_an_avro_value_that_does_not_fit_rejects_or_is_null() -> None:
    rows, rejects = load("avro", avro(GOOD, BAD), SCHEMA)
    assert len(rows) == 1
    assert (rejects[0].record, rejects[0].column) == (2, "A")
    assert b'"a":12345.00' in rejects[0].data
    rows, rejects = load("favroparser", avro(GOOD, BAD), SCHEMA)
    assert ([row[0] for row in rows], rejects) == ([Decimal("1.50"), None], [])


def encode_long(number: int) -> bytes:
    """Return Avro's variable-length form of an integer, independent of fastavro."""
    number = (number << 1) ^ (number >> 63)
    pieces = bytearray()
    while number > 127:
        pieces.append(number & 127 | 128)
        number >>= 7
    return bytes([*pieces, number])


def load_avro_value(kind: dict[str, Any], data: bytes, column: Column) -> tuple[list[Any], str]:
    """Load a message with one field, written by hand. Return the row or the reason."""
    schema = {"type": "record", "name": "r", "fields": [{"name": "x", "type": kind}]}
    rows, rejects = load_records(
        "kafkaavroparser", [data], TableSchema(1, (column,)), external_schema=json.dumps(schema)
    )
    return [list(row) for row in rows], rejects[0].reason if rejects else ""


@pytest.mark.parametrize("unscaled", [12345678, -12345678, 0, 10**37, -1])
def test_an_avro_decimal_keeps_digits_beyond_its_precision(unscaled: int) -> None:
    data = unscaled.to_bytes(16, "big", signed=True)
    column = Column("X", LogicalType.FIXED, 1, precision=38, scale=2)
    decimal = {"logicalType": "decimal", "precision": 5, "scale": 2}
    expected = ([[Decimal(unscaled) / 100]], "")
    assert load_avro_value({"type": "bytes", **decimal}, encode_long(16) + data, column) == expected
    fixed = {"type": "fixed", "name": "f", "size": 16, **decimal}
    assert load_avro_value(fixed, data, column) == expected


def test_avro_times_are_exact_or_rejected() -> None:
    at = {"type": "long", "logicalType": "timestamp-nanos"}
    local = {"type": "long", "logicalType": "local-timestamp-nanos"}
    stamp = Column("X", LogicalType.TIMESTAMP_NTZ, 1, scale=9)
    for nanos in (1, -1, 1_700_000_000_123_456_789):
        clock = dt.datetime(1970, 1, 1) + dt.timedelta(microseconds=nanos // 1000)
        for kind in (at, local):
            found = load_avro_value(kind, encode_long(nanos), stamp)
            assert found == ([[clock, nanos % 1000]], "")
    time = Column("X", LogicalType.TIME, 1, scale=6)
    for unit, step in (("int", 1000), ("long", 1)):
        kind = {"type": unit, "logicalType": "time-millis" if unit == "int" else "time-micros"}
        last = 86_400_000_000 // step - 1
        rows, _ = load_avro_value(kind, encode_long(last), time)
        assert rows == [[dt.time(23, 59, 59, 999_999 // step * step)]]
        for count in (-1, last + 1):
            assert load_avro_value(kind, encode_long(count), time) == ([[None]], "")


@pytest.mark.parametrize("column", ["TIME", "TEXT", "VARIANT", "FIXED", "TIMESTAMP_NTZ"])
@pytest.mark.parametrize("nested", [False, True])
def test_an_avro_time_outside_of_a_day_rejects_its_record(column: str, nested: bool) -> None:
    kind: Any = {"type": "long", "logicalType": "time-micros"}
    if nested:
        kind = {"type": "array", "items": kind}
    fields = [{"name": "n", "type": "int"}, {"name": "x", "type": kind}]
    times = enumerate((-1, 5, 86_400_000_000))
    records = [{"n": n, "x": [each] if nested else each} for n, each in times]
    schema = {"type": "record", "name": "r", "fields": fields}
    fastavro.writer(file := io.BytesIO(), schema, records, validator=False)
    data = file.getvalue()
    columns = (
        Column("N", LogicalType.FIXED, 1, precision=9, scale=0),
        Column("X", LogicalType[column], 2, precision=9, scale=6, length=99),
    )
    rows, rejects = load("avro", data, TableSchema(1, columns))
    assert {int(row[0]) for row in rows} <= {1}
    assert {0, 2} <= {each.record - 1 for each in rejects}
    # A column that is not loaded rejects nothing.
    rows, rejects = load("avro", data, TableSchema(1, columns[:1]))
    assert (len(rows), rejects) == (3, [])


@pytest.mark.parametrize(
    ("kind", "last"),
    [
        ("date", 2_932_896),
        ("timestamp-millis", 253_402_300_799_999),
        ("timestamp-micros", 253_402_300_799_999_999),
        ("local-timestamp-millis", 253_402_300_799_999),
        ("local-timestamp-micros", 253_402_300_799_999_999),
    ],
)
@pytest.mark.parametrize("column", ["NTZ", "TZ", "DATE", "TEXT", "VARIANT"])
def test_an_avro_time_beyond_the_year_9999_rejects_its_record(
    kind: str, last: int, column: str
) -> None:
    logical = {"type": "int" if kind == "date" else "long", "logicalType": kind}
    schema = {"type": "record", "name": "r", "fields": [{"name": "x", "type": logical}]}
    records = [{"x": last}, {"x": last + 1}, {"x": 0}]
    fastavro.writer(file := io.BytesIO(), schema, records, validator=False)
    kinds = {"NTZ": LogicalType.TIMESTAMP_NTZ, "TZ": LogicalType.TIMESTAMP_TZ}
    of = kinds.get(column) or LogicalType[column]
    scale = 6 if column in kinds else None
    target = TableSchema(1, (Column("X", of, 1, scale=scale, length=99),))
    rows, rejects = load("avro", file.getvalue(), target)
    assert (len(rows), {1, 2, 3} - {each.record for each in rejects}) == (
        (0, set()) if column == "TEXT" else (2, {1, 3})
    )


def test_a_negative_index_of_a_union_or_enum_is_no_value() -> None:
    text = Column("X", LogicalType.TEXT, 1)
    enum = {"type": "enum", "name": "e", "symbols": ["A", "B"]}
    array = {"type": "array", "items": ["null", enum]}
    kinds: list[tuple[Any, list[int], str]] = [
        (["null", "string"], [-1, 0], ""),
        (["null", "string"], [-2], ""),
        (enum, [-1], ""),
        (enum, [1], "B"),
        (["null", enum], [1, 0], "A"),
        (["null", enum], [1, -1], ""),
        (array, [1, -2, 0], ""),
        (array, [1, 1, 1, 0], '["B"]'),
    ]
    for kind, numbers, value in kinds:
        data = b"".join(map(encode_long, numbers))
        rows, reason = load_avro_value(kind, data, text)
        assert rows == ([[value]] if value else [])
        assert ("is negative" in reason) is not bool(value)
    broken = avro(GOOD, codec="null").replace(b"\x02\x02x", b"\x01\x02x")
    for parser in ("avro", "kafkaavroparser"):
        if parser == "avro":
            with pytest.raises(PhaseFailed, match="the index -1 of a union or enum is negative"):
                load(parser, broken, SCHEMA)
        else:
            _, rejects = load_records(parser, [broken], SCHEMA, with_metadata=True)
            assert "the index -1 of a union or enum is negative" in rejects[0].reason


def test_a_broken_avro_file_fails_with_its_reason() -> None:
    for data in (avro(GOOD)[:-5], b"garbage", avro(GOOD)[:20]):
        with pytest.raises(PhaseFailed, match="not an Avro file, or broken"):
            load("avro", data, SCHEMA)


def test_avro_messages_have_their_schema_from_outside() -> None:
    messages = [message(GOOD), b"", message(GOOD) + b"x"]
    rows, rejects = load_records(
        "kafkaavroparser", messages, SCHEMA, external_schema=json.dumps(AVRO)
    )
    assert len(rows) == 1
    assert [(reject.record, reject.data) for reject in rejects] == [(2, b""), (3, messages[2])]
    assert "bytes follow the record" in rejects[1].reason
    rows, _ = load_records("kafkaavroparser", [avro(GOOD)], SCHEMA, with_metadata=True)
    assert len(rows) == 1
    for parameters in (
        {},
        {"external_schema": "x"},
        {"external_schema": '"long"', "with_metadata": True},
    ):
        with pytest.raises(LoadRefused):
            built(definition("kafkaavroparser"), parameters)


@pytest.mark.slow
def test_avro_schemas_come_from_a_registry() -> None:
    asked = []

    class Registry(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            body = json.dumps({"schema": json.dumps(AVRO)}).encode()
            self.send_response(200 if self.path == "/schemas/ids/7" else 404)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Registry) as server:
        threading.Thread(target=server.serve_forever).start()
        try:
            url = f"http://127.0.0.1:{server.server_port}"
            framed = b"\0\0\0\0\x07" + message(GOOD)
            rows, rejects = load_records(
                "kafkaavroparser", [framed, framed, message(GOOD)], SCHEMA, schema_registry_url=url
            )
            assert (len(rows), len(rejects), asked) == (2, 1, ["/schemas/ids/7"])
            with pytest.raises(PhaseFailed, match="no schema 8 at"):
                load_records("kafkaavroparser", [b"\0\0\0\0\x08x"], SCHEMA, schema_registry_url=url)
        finally:
            server.shutdown()


MANY = TableSchema(
    1,
    (
        Column("I", LogicalType.FIXED, 1, precision=6, scale=1),
        Column("R", LogicalType.REAL, 2),
        Column("S", LogicalType.TEXT, 3, length=3),
        Column("D", LogicalType.DATE, 4),
        Column("TN", LogicalType.TIMESTAMP_NTZ, 5, scale=9),
        Column("TZ", LogicalType.TIMESTAMP_TZ, 6, scale=3),
        Column("C", LogicalType.TIME, 7, scale=9),
        Column("Y", LogicalType.BINARY, 8),
        Column("V", LogicalType.VARIANT, 9),
        Column("MISSING", LogicalType.TEXT, 10),
    ),
)


def parquet(**columns: Any) -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.table(columns), file)
    return file.getvalue()


def test_a_parquet_file_fills_columns_by_name() -> None:
    data = parquet(
        i=pa.array([1, None], pa.int64()),
        r=pa.array([1.5, None], pa.float32()),
        s=pa.array(["x", None]).dictionary_encode(),
        d=pa.array([dt.date(2013, 1, 1), None]),
        tn=pa.array([-1, None], pa.timestamp("ns")),
        tz=pa.array([1_234_567, None], pa.timestamp("us", "Europe/Berlin")),
        c=pa.array([1_234, None], pa.time64("ns")),
        y=pa.array([b"\xff", None]),
        v=pa.array([{"k": [1]}, None]),
    )
    first, second = load("parquet", data, MANY, size=100)[0]
    before = dt.datetime(1969, 12, 31, 23, 59, 59, 999_999)
    instant = dt.datetime(1970, 1, 1, 0, 0, 1, 234_000, tzinfo=dt.UTC)
    assert first == (
        Decimal("1.0"), 1.5, "x", dt.date(2013, 1, 1), before, 999, instant, 0,
        dt.time(0, 0, 0, 1), 234, b"\xff", '{"k":[1]}', None,
    )  # fmt: skip
    assert set(second) == {None}


def test_a_parquet_value_that_does_not_fit_rejects_its_row() -> None:
    rows, rejects = load("parquet", parquet(i=[1, 10**7, 3], s=["abcd", "b", "c"]), MANY)
    assert [row[:3:2] for row in rows] == [(1, "abc"), (3, "c")]
    assert (rejects[0].record, rejects[0].column) == (2, "I")
    assert rejects[0].data == b'{"i":10000000,"s":"b"}'


def test_an_orc_file_gives_the_rows_of_a_parquet_file() -> None:
    columns: dict[str, Any] = {
        "S": ["a", None, "abcdef"],
        "i": [1, 10**7, 3],
        "f": [0.5, None, 2.5],
        "b": [True, None, False],
        "d": [dt.date(2026, 1, 31), None, dt.date(1, 1, 1)],
    }
    file = io.BytesIO()
    po.write_table(pa.table(columns), file)
    assert load("orc", file.getvalue(), MANY, size=100) == load("parquet", parquet(**columns), MANY)
    with pytest.raises(PhaseFailed, match="not an ORC file"):
        load("orc", file.getvalue()[:-9], MANY)
    po.write_table(pa.table({"q": [1]}), other := io.BytesIO())
    with pytest.raises(PhaseFailed, match="none of the columns"):
        load("orc", other.getvalue(), MANY)


def test_an_orc_timestamp_that_arrow_cannot_represent_fails_the_file_with_its_reason() -> None:
    days = pa.array([dt.datetime(2026, 1, 31), dt.datetime(1600, 1, 1)], pa.timestamp("us"))
    po.write_table(pa.table({"i": [1, 2], "at": days}), file := io.BytesIO())
    stamp = Column("AT", LogicalType.TIMESTAMP_NTZ, 1, scale=6)
    with pytest.raises(PhaseFailed, match=r"ORC timestamp .* is out of range") as caught:
        load("orc", file.getvalue(), TableSchema(1, (stamp,)))
    assert "broken" not in str(caught.value)
    number = Column("I", LogicalType.FIXED, 1, precision=9, scale=0)
    assert load("orc", file.getvalue(), TableSchema(1, (number,))) == ([(1,), (2,)], [])


INSTANTS = [1_593_565_323_000_001, -1, 0, 253_402_214_400_000_000]
FIRST_NANOSECONDS = [1, 86_399_999_999_999, 0, 1_234]
UNITS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


@pytest.mark.parametrize("zone", [None, "UTC", "America/New_York", "Asia/Kolkata", "+05:30"])
@pytest.mark.parametrize("unit", UNITS)
def test_a_rejected_row_changes_no_other_row(zone: str | None, unit: str) -> None:
    counts = [count * UNITS[unit] // 10**6 for count in INSTANTS[: 3 if unit == "ns" else 4]]
    instants = [
        dt.datetime(1970, 1, 1) + dt.timedelta(microseconds=count * 10**6 // UNITS[unit])
        for count in counts
    ]
    values = pa.array([*counts, None], pa.int64()).cast(pa.timestamp(unit, zone))
    for nullable in (True, False):
        columns = (
            Column("NTZ", LogicalType.TIMESTAMP_NTZ, 1, scale=6),
            Column("TZ", LogicalType.TIMESTAMP_TZ, 2, scale=6, nullable=nullable),
            Column("D", LogicalType.DATE, 3),
            Column("N", LogicalType.TIMESTAMP_NTZ, 4, scale=6, nullable=nullable),
        )
        data = parquet(ntz=values, tz=values, d=values, n=values)
        rows, rejects = load("parquet", data, TableSchema(1, columns))
        expected = [(at, at.replace(tzinfo=dt.UTC), 0, at.date(), at) for at in instants]
        assert rows[: len(instants)] == expected
        assert [each.record for each in rejects] == ([] if nullable else [len(instants) + 1])


@pytest.mark.parametrize("zone", [None, "UTC"])
def test_a_timestamp_beyond_the_year_9999_rejects_its_row(zone: str | None) -> None:
    counts = [0, 253_402_300_800_000_000, -62_135_596_800_000_001]
    values = pa.array(counts, pa.timestamp("us", zone))
    schema = TableSchema(1, (Column("C", LogicalType.TIMESTAMP_NTZ, 1, scale=6),))
    rows, rejects = load("parquet", parquet(c=values), schema)
    assert rows == [(dt.datetime(1970, 1, 1),)]
    assert [each.record for each in rejects] == [2, 3]
    assert b"10000-01-01" in rejects[0].data


@pytest.mark.parametrize("zone", [None, "UTC"])
def test_the_lowest_count_of_nanoseconds_does_not_wrap_around(zone: str | None) -> None:
    values = pa.array([-(2**63) + 1], pa.int64()).view(pa.timestamp("ns", zone))
    schema = TableSchema(1, (Column("C", LogicalType.TIMESTAMP_NTZ, 1, scale=9),))
    rows, _ = load("parquet", parquet(c=values), schema)
    assert rows == [(dt.datetime(1677, 9, 21, 0, 12, 43, 145_224), 193)]


def test_int96_timestamps_are_exact_in_all_years_or_fail() -> None:
    schema = TableSchema(1, (Column("C", LogicalType.TIMESTAMP_NTZ, 1, scale=9),))
    first, epoch, last = dt.date(1, 1, 1), dt.date(1970, 1, 1), dt.date(9999, 12, 31)
    assert load("parquet", int96_parquet([(epoch, 1)]), schema)[0] == [(dt.datetime(1970, 1, 1), 1)]
    rows, _ = load("parquet", int96_parquet([(last, 0), (first, 3_000)]), schema)
    assert rows == [(dt.datetime(9999, 12, 31), 0), (dt.datetime(1, 1, 1, 0, 0, 0, 3), 0)]
    with pytest.raises(PhaseFailed, match="nanoseconds that would be lost"):
        load("parquet", int96_parquet([(last, 0), (epoch, 1)]), schema)
    array = TableSchema(1, (Column("C", LogicalType.ARRAY, 1),))
    rows, _ = load("parquet", int96_parquet([(last, 0), (first, 3_000)], is_list=True), array)
    assert json.loads(rows[0][0]) == ["9999-12-31T00:00", "0001-01-01T00:00:00.000003"]
    with pytest.raises(PhaseFailed, match="nanoseconds that would be lost"):
        load("parquet", int96_parquet([(last, 0), (epoch, 1)], is_list=True), array)


def test_nanoseconds_of_times_are_kept_beside_a_rejected_row() -> None:
    column = Column("C", LogicalType.TIME, 1, scale=9, nullable=False)
    data = parquet(c=pa.array([*FIRST_NANOSECONDS, None], pa.int64()).cast(pa.time64("ns")))
    rows, rejects = load("parquet", data, TableSchema(1, (column,)))
    assert [fine for _, fine in rows] == [each % 1000 for each in FIRST_NANOSECONDS]
    assert len(rejects) == 1


@pytest.mark.parametrize("kind", [LogicalType.VARIANT, LogicalType.TEXT])
def test_nested_values_become_json(kind: LogicalType) -> None:
    schema = TableSchema(1, (Column("V", kind, 1, length=100),))
    cases = [
        (pa.array([[("a", 1), ("b", None)]], pa.map_(pa.string(), pa.int8())), '{"a":1,"b":null}'),
        (pa.array([[1]], pa.list_(pa.time64("ns"))), '["00:00:00.000000001"]'),
        (pa.array([[1]], pa.list_(pa.timestamp("ns", "Asia/Kolkata"))), '["1970-01-01T00:00:00.000000001Z"]'),
        (pa.array([{"f": 0.1}], pa.struct({"f": pa.float32()})), '{"f":0.10000000149011612}'),
        (pa.array([[b"\xff"]]), None),
        (pa.array([[("a", 1), ("a", 2)]], pa.map_(pa.string(), pa.int8())), None),
    ]  # fmt: skip
    for values, expected in cases:
        rows, rejects = load("parquet", parquet(v=values), schema)
        assert [row[0] for row in rows] == ([] if expected is None else [expected])
        assert len(rejects) == (expected is None)


def test_a_broken_parquet_file_fails_with_its_reason() -> None:
    for data in (parquet(i=[1])[:-9], b"garbage"):
        with pytest.raises(PhaseFailed, match="not a Parquet file, or broken"):
            load("parquet", data, MANY)
    for names in (["i", "I", "I"], ["s", "S ", "s"]):
        pq.write_table(pa.table([[1]] * 3, names), file := io.BytesIO())
        with pytest.raises(PhaseFailed, match="2 columns of the file match"):
            load("parquet", file.getvalue(), MANY)
    with pytest.raises(PhaseFailed, match="none of the columns; it has q"):
        load("parquet", parquet(q=[1]), MANY)

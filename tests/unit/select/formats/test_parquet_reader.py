"""Columns of every type give what their values give one by one."""

from __future__ import annotations

import datetime as dt
import decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snowmelt.select.dialect import Dialect
from snowmelt.select.errors import SelectError
from snowmelt.select.local_query import open_local_select
from snowmelt.select.request import CsvInput, CsvOutput, JsonOutput, ParquetInput, SelectRequest
from support.int96_parquet import int96_parquet

TYPES = {
    "bool": (pa.bool_(), st.booleans()),
    "int8": (pa.int8(), st.integers(-128, 127)),
    "int64": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "uint32": (pa.uint32(), st.integers(0, 2**32 - 1)),
    "uint64": (pa.uint64(), st.integers(0, 2**64 - 1)),
    "float": (pa.float32(), st.floats(width=32, allow_nan=False, allow_infinity=False)),
    "double": (pa.float64(), st.floats() | st.floats(-1e17, 1e17) | st.decimals(-1000, 1000, places=2, allow_nan=False).map(float)),
    "text": (pa.string(), st.text("aé,\"\n'", max_size=5)),
    "long": (pa.large_string(), st.text(max_size=5)),
    "word": (pa.dictionary(pa.int32(), pa.string()), st.sampled_from(["x", "yy", ""])),
    "date": (pa.date32(), st.dates(dt.date(1900, 1, 1), dt.date(2100, 1, 1))),
    "at": (pa.timestamp("us"), st.datetimes(dt.datetime(1900, 1, 1), dt.datetime(2100, 1, 1))),
    "seconds": (pa.timestamp("s"), st.datetimes(dt.datetime(1, 1, 1), dt.datetime(9999, 1, 1)).map(lambda t: t.replace(microsecond=0))),
    "zoned": (pa.timestamp("ms", "UTC"), st.datetimes(dt.datetime(1, 1, 1), dt.datetime(9999, 1, 1), timezones=st.just(dt.UTC)).map(lambda t: t.replace(microsecond=t.microsecond // 1000 * 1000))),
    "nanos": (pa.timestamp("ns"), st.integers(-(2**62), 2**62)),
    "day64": (pa.date64(), st.dates()),
    "tiny": (pa.decimal128(38, 20), st.integers(-10, 10).map(lambda n: decimal.Decimal(n).scaleb(-20))),
    "whole": (pa.decimal128(12, 0), st.integers(-99, 99).map(decimal.Decimal)),
    "price": (pa.decimal128(12, 2), st.integers(-(10**11), 10**11).map(lambda n: decimal.Decimal(n) / 100)),
    "list": (pa.list_(pa.int32()), st.lists(st.integers(-5, 5), max_size=3)),
    "a.b": (pa.int32(), st.integers(0, 3)),
    "nothing": (pa.null(), st.none()),
}  # fmt: skip
ROWS = st.lists(st.fixed_dictionaries({name: st.none() | s for name, (_, s) in TYPES.items()}))


JSON = JsonOutput()
MOMENTS = ("seconds", "zoned", "nanos", "day64", "date", "at")


def answer(
    path: Path, sql: str, output: JsonOutput = JSON, dialect: Dialect = Dialect.AWS
) -> bytes:
    execution = open_local_select(SelectRequest(sql, ParquetInput(), output, dialect=dialect), path)
    return b"".join(execution.stream_payloads())


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("parquet") / "a.parquet"


@pytest.mark.slow
@settings(max_examples=settings().max_examples // 5)
@given(rows=ROWS, group=st.integers(1, 5))
def test_a_column_is_what_the_same_values_in_a_struct_are(
    file: Path, rows: list[dict[str, Any]], group: int
) -> None:
    schema = pa.schema([(name, kind) for name, (kind, _) in TYPES.items()])
    flat = pa.Table.from_pylist(rows, schema)
    # No kernel reads what lies in a struct: its fields come one by one.
    kinds = [field.type for field in schema]
    kinds[schema.names.index("word")] = pa.string()
    plain = pa.schema(zip(schema.names, kinds, strict=True))
    inside = pa.array(rows, pa.struct(list(plain)))
    pq.write_table(flat.append_column("w", inside), file, row_group_size=group)
    for shape in ("{0}", "{0} is null", "{0} = {0}", "count({0})", "{0} in ({0}, 1)"):
        one = ", ".join(shape.format(f's."{name}"') for name in TYPES)
        other = ", ".join(shape.format(f's.w."{name}"') for name in TYPES)
        expected = answer(file, f"select {other} from s3object s")
        assert answer(file, f"select {one} from s3object s") == expected
    for condition in ('{}."bool"', "{}.int8 > 1 or {}.text < 'b'", "{}.uint64 / 2 > {}.price"):
        expected = answer(
            file, f"select s.w.int8 from s3object s where {condition.replace('{}', 's.w')}"
        )
        one = f"select s.int8 from s3object s where {condition.replace('{}', 's')}"
        assert answer(file, one) == expected
    for name in MOMENTS:
        for shape in (
            "extract(year from {0}), extract(second from {0})",
            "max({0}), min({0})",
            "coalesce({0}, {0})",
        ):
            one, other = shape.format(f's."{name}"'), shape.format(f's.w."{name}"')
            expected = answer(file, f"select {other} from s3object s")
            assert answer(file, f"select {one} from s3object s") == expected
        one, other = f's."{name}"', f's.w."{name}"'
        expected = answer(file, f"select {other}, count(*) from s3object s group by {other}")
        assert answer(file, f"select {one}, count(*) from s3object s group by {one}") == expected
    everything = ", ".join(f's.w."{name}"' for name in TYPES)
    outputs = [(JSON, Dialect.AWS)] + [(CsvOutput(), each) for each in Dialect]
    wanted = [answer(file, f"select {everything} from s3object s", *each) for each in outputs]
    pq.write_table(flat, file, row_group_size=group)
    assert [answer(file, "select * from s3object", *each) for each in outputs] == wanted


def test_timestamps_read_from_text_are_shown_as_they_were_written(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("2020-01-02T03:04:05Z,1\n2020-01-02T03:04:05.250+01:00,2\n")

    def lines(sql: str) -> list[str]:
        execution = open_local_select(SelectRequest(sql, CsvInput(), CsvOutput()), path)
        return b"".join(execution.stream_payloads()).decode().splitlines()

    assert lines("select to_timestamp(_1), _2 from s3object") == path.read_text().splitlines()
    assert lines("select max(to_timestamp(_1)) from s3object") == ["2020-01-02T03:04:05Z"]
    grouped = "select to_timestamp(_1), count(*) from s3object group by to_timestamp(_1)"
    assert [line.rpartition(",")[2] for line in lines(grouped)] == ["1", "1"]


def test_int96_timestamps_are_exact_in_all_years_or_fail(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    sql = "SELECT c FROM S3Object s"
    path.write_bytes(int96_parquet([(dt.date(9999, 12, 31), 0), (dt.date(1, 1, 1), 3_000)]))
    lines = answer(path, sql).decode().splitlines()
    assert lines == ['{"c":"9999-12-31T00:00:00.000000Z"}', '{"c":"0001-01-01T00:00:00.000003Z"}']
    path.write_bytes(int96_parquet([(dt.date(9999, 12, 31), 0), (dt.date(1970, 1, 1), 1)]))
    with pytest.raises(SelectError, match="nanoseconds that would be lost"):
        answer(path, sql)


def test_decimals_have_no_negative_zero_and_keep_their_digits(tmp_path: Path) -> None:
    digits = decimal.Decimal("12345678901234567890123456789.012345678")
    values = [digits, decimal.Decimal("-3.000000000"), decimal.Decimal(0)]
    pq.write_table(pa.table({"d": pa.array(values, pa.decimal128(38, 9))}), tmp_path / "d.parquet")
    found = answer(
        tmp_path / "d.parquet", "select s.d * 0 as z, -s.d as n, s.d % 1 as r from s3object s"
    )
    assert found.splitlines() == [
        b'{"z":0.000000000,"n":-12345678901234567890123456789.012345678,"r":0.012345678}',
        b'{"z":0.000000000,"n":3.000000000,"r":0.000000000}',
        b'{"z":0.000000000,"n":0.000000000,"r":0.000000000}',
    ]
    grouped = "select count(*) as n from s3object s group by string(s.d * 0)"
    assert answer(tmp_path / "d.parquet", grouped).splitlines() == [b'{"n":3}']


def test_binary_values_are_texts_or_refused(tmp_path: Path) -> None:
    for name, values in (("text", [b"abc", "é".encode(), None]), ("bytes", [b"\x00\xff"])):
        column = pa.array(values, pa.binary())
        pq.write_table(pa.table({"b": column}), tmp_path / f"{name}.parquet")
    found = answer(tmp_path / "text.parquet", "select * from s3object s")
    assert found.decode().splitlines() == ['{"b":"abc"}', '{"b":"é"}', '{"b":null}']
    for statement in ("select * from s3object s", "select s.b from s3object s"):
        with pytest.raises(
            SelectError, match="A value of a binary column is not valid UTF-8 at byte 1"
        ):
            answer(tmp_path / "bytes.parquet", statement)


def test_row_groups_are_skipped_only_if_no_record_would_match(tmp_path: Path) -> None:
    values = [0.1, 0.3, -0.0, 1e300, float("nan"), 2.0]
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"x": values, "n": range(len(values))}), path, row_group_size=1)
    for literal in ("0.1", "0.3", "0", "0.0", "2", "2.0", "1e300", "0.30000000000000001"):
        for sign in ("=", "<", "<=", ">", ">="):
            for condition in (f"s.x {sign} {literal}", f"{literal} {sign} s.x"):
                pruned = answer(path, f"select s.n from s3object s where {condition}")
                every = answer(path, f"select s.n from s3object s where ({condition}) or s.n < 0")
                assert pruned == every, condition


def test_columns_are_found_whatever_the_names_of_others(tmp_path: Path) -> None:
    columns = {
        "s": pa.array([{"x": 1, "l": [{"y": 2}]}]),
        "s.x": pa.array([3]),
        "m": pa.array([[("k", 4)]], pa.map_(pa.string(), pa.int64())),
        "s.l.list.element": pa.array([5]),
        "z": pa.array([6]),
    }
    arrays, names = [*columns.values(), pa.array([7]), pa.array([8])], [*columns, "z", "q"]
    path = tmp_path / "a.parquet"
    pq.write_table(pa.Table.from_arrays(arrays, names=names), path)
    for place, wanted in {2: 3, 4: 5, 5: 6, 6: 7, 7: 8}.items():
        found = answer(path, f"select s._{place} as a, s._7 as b from s3object s")
        assert found == f'{{"a":{wanted},"b":8}}\n'.encode()
    found = answer(
        path, 'select s."s.x" as a, s.s.l[0].y as b, s.m.k as c, s.q as d from s3object s'
    )
    assert found == b'{"a":3,"b":2,"c":4,"d":8}\n'

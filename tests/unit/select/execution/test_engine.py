"""What an execution does beside its answer: limits, stopping, counters, formats."""

from __future__ import annotations

import decimal
import gzip
import io
import os
import threading
from pathlib import Path
from typing import Any, cast

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from snowmelt.select.dialect import Dialect
from snowmelt.select.errors import SelectError
from snowmelt.select.execution.engine import (
    PAYLOAD_BYTES,
    EngineSettings,
    PayloadCutter,
    SelectExecution,
    open_select,
)
from snowmelt.select.local_query import LocalFileSource, open_local_select
from snowmelt.select.request import (
    CsvInput,
    CsvOutput,
    HeaderMode,
    JsonInput,
    JsonOutput,
    ObjectCompression,
    ParquetInput,
    SelectRequest,
)


def answer(request: SelectRequest, data: bytes, **limits: int) -> bytes:
    execution = open_local_select(request, io.BytesIO(data), settings=EngineSettings(**limits))
    return b"".join(execution.stream_payloads())


class Counting(io.BytesIO):
    """A stream that knows how much was taken from it."""

    taken = 0

    def read(self, size: int | None = -1) -> bytes:
        part = super().read(size)
        self.taken += len(part)
        return part


@given(
    st.lists(st.integers(0, 40), max_size=60),
    st.integers(1, 30),
    st.lists(st.integers(1, 20), max_size=8),
)
def test_payloads_end_with_records_that_fit(
    sizes: list[Any], limit: int, splits: list[Any]
) -> None:
    records = [b"x" * size + b"\n" for size in sizes]
    cutter = PayloadCutter(limit)
    found: list[Any] = []
    at = 0
    for split in [*splits, len(records)]:
        part = records[at : at + split]
        ends = np.cumsum([len(record) for record in part], dtype=np.int64)
        found += cutter.add(b"".join(part), ends)
        at += split
    found += cutter.flush()
    assert b"".join(found) == b"".join(records)
    assert all(0 < len(payload) <= limit for payload in found)
    if all(len(record) <= limit for record in records):
        assert all(payload.endswith(b"\n") for payload in found)


@pytest.mark.parametrize("order", ["", " order by _1"])
def test_payloads_come_in_small_batches(order: str) -> None:
    def execute() -> SelectExecution:
        data = io.BytesIO(b"1,22222222222222222222222222222222\n" * 100_000)
        return open_local_select(SelectRequest("select * from s3object" + order), data)

    payloads = list(execute().stream_payloads())
    batches = list(execute().stream_payload_batches())
    assert [payload for batch in batches for payload in batch] == payloads
    assert 1 < len(batches) < len(payloads)
    assert max(map(len, batches)) <= 8
    assert all(type(payload) is bytes for payload in payloads)


def test_a_limit_stops_the_reader() -> None:
    stream = Counting(b"1,2,3\n" * 2_000_000)
    request = SelectRequest("select _2 from s3object limit 3")
    execution = open_local_select(request, stream)
    assert b"".join(execution.stream_payloads()) == b"2\n2\n2\n"
    assert stream.taken < 8 * 1024 * 1024


def test_counters_tell_what_was_read_and_given() -> None:
    data = b"a,b\n" * 1000
    packed = gzip.compress(data)
    request = SelectRequest("select _1 from s3object", compression=ObjectCompression.GZIP)
    execution = open_local_select(request, io.BytesIO(packed))
    out = b"".join(execution.stream_payloads())
    assert (execution.scanned_bytes, execution.processed_bytes) == (len(packed), len(data))
    assert execution.returned_bytes == len(out) == 2000


@pytest.mark.slow
def test_closing_ends_the_payloads_and_closes_the_source(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"1,2,3\n" * 5_000_000)
    source = LocalFileSource(path)
    execution = open_select(SelectRequest("select * from s3object"), source)
    payloads = execution.stream_payloads()
    assert len(next(payloads)) <= PAYLOAD_BYTES
    closing = threading.Thread(target=execution.close)
    closing.start()
    closing.join()
    # Of more than two hundred; those of the block that was under way still come.
    assert sum(1 for _ in payloads) < 100
    execution.close()
    with pytest.raises(OSError, match="descriptor"):
        source.read_into(0, memoryview(bytearray(1)))


def test_a_file_that_is_written_into_ends_the_query(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"1,2,3\n" * 2_000_000)
    execution = open_local_select(SelectRequest("select * from s3object"), path)
    payloads = execution.stream_payloads()
    next(payloads)
    with path.open("r+b") as file:
        file.write(b"9")
    os.utime(path, ns=(1, 1))
    with pytest.raises(SelectError, match="changed during the query"):
        list(payloads)


def test_a_refused_statement_closes_the_source(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"1\n")
    source = LocalFileSource(path)
    with pytest.raises(SelectError):
        open_select(SelectRequest("select from"), source)
    with pytest.raises(OSError, match="descriptor"):
        source.read_into(0, memoryview(bytearray(1)))


@pytest.mark.parametrize(
    ("sql", "setting"),
    [
        ("select _1, count(*) from s3object group by _1", "group_memory_bytes"),
        ("select distinct _1 from s3object", "group_memory_bytes"),
        ("select _1 from s3object order by _1", "sort_memory_bytes"),
    ],
)
def test_what_does_not_fit_in_memory_names_its_setting(sql: str, setting: str) -> None:
    data = b"".join(b"%d\n" % n for n in range(20_000))
    with pytest.raises(SelectError, match=setting):
        answer(SelectRequest(sql), data, group_memory_bytes=100_000, sort_memory_bytes=100_000)


def test_the_first_of_an_order_need_little_memory() -> None:
    data = b"".join(b"%d\n" % (n * 7919 % 20_011) for n in range(20_000))
    sql = "select _1 from s3object order by cast(_1 as int) desc limit 3"
    out = answer(SelectRequest(sql), data, sort_memory_bytes=4_000_000, block_bytes=4096)
    assert out == b"20010\n20009\n20008\n"


@pytest.mark.parametrize(
    ("order", "wanted"),
    [
        ("_1", b"1,2,null,null"),
        ("_1 desc", b"2,1,null,null"),
        ("_1 nulls first", b"null,null,1,2"),
        ("_1 desc nulls first limit 3", b"null,null,2"),
        ("_1 asc nulls last, _2", b"1,2,null,null"),
    ],
)
def test_nulls_stand_where_the_order_says(order: str, wanted: bytes) -> None:
    request = SelectRequest(f"select _1 from s3object order by {order}", dialect=Dialect.CEPH)
    assert answer(request, b",a\n2,b\n,c\n1,d\n") == wanted.replace(b",", b"\n") + b"\n"


def test_only_the_rows_that_a_limit_keeps_count_against_the_memory_of_an_order() -> None:
    data = b"".join(b"%d,%s\n" % (n * 7919 % 20_011, b"x" * 1000) for n in range(2_000))
    sql = "select _1, _2 from s3object order by cast(_1 as int) limit 3"
    out = answer(SelectRequest(sql), data, sort_memory_bytes=20_000)
    assert [line[:5] for line in out.splitlines()] == [b"0,xxx", b"1,xxx", b"20,xx"]
    with pytest.raises(SelectError, match="select_sort_memory_bytes"):
        answer(SelectRequest(sql.replace("limit 3", "limit 30")), data, sort_memory_bytes=20_000)


SHAPES = [
    (Dialect.AWS, "_1, _2", b"1,\n"),
    (Dialect.CEPH, "_1, _2", b"1,null\n"),
    (Dialect.CEPH_2020, "_1, _2", b"1,,\n"),
    (Dialect.AWS, "count(*), 2.5", b"1,2.5\n"),
    (Dialect.CEPH, "count(*), 2.5", b"1,2.5"),
    (Dialect.CEPH_2020, "count(*), 2.5", b"1,2.5,"),
]


@pytest.mark.parametrize(("dialect", "shown", "wanted"), SHAPES)
def test_each_dialect_has_its_own_shape_of_output(
    dialect: Dialect, shown: str, wanted: bytes
) -> None:
    request = SelectRequest(f"select {shown} from s3object;", dialect=dialect)
    assert answer(request, b"1,\n") == wanted


def test_output_quotes_what_needs_it() -> None:
    data = b'a,"x,y","q""q",";"\n'
    shown = "_4, _2, _3, _1"
    request = SelectRequest(f"select {shown} from s3object")
    assert answer(request, data) == b';,"x,y","q""q",a\n'
    output = CsvOutput(field_delimiter=b";", escape=b"\\")
    request = SelectRequest(f"select {shown} from s3object", output=output)
    assert answer(request, data) == b'";";x,y;"q\\"q";a\n'
    request = SelectRequest("select * from s3object", output=CsvOutput(quote_always=True))
    assert answer(request, data) == b'"a","x,y","q""q",";"\n'


@pytest.mark.slow
def test_json_numbers_keep_every_digit() -> None:
    line = b'{"a":123456789012345678901234567890,"b":0.1000000000000000000001,"c":{"d":[1,2.50]}}\n'
    request = SelectRequest("select * from s3object", JsonInput(lines=True), JsonOutput())
    assert answer(request, line) == line
    request = SelectRequest("select s.c.d[1] from s3object s", JsonInput(lines=True))
    assert answer(request, line) == b"2.50\n"
    request = SelectRequest("select s.a from s3object s", JsonInput(lines=True), JsonOutput())
    assert answer(request, b'{"a":-2.5e999}\n') == b'{"a":-2.5E+999}\n'


@pytest.mark.parametrize("size", [64, 1 << 20])
@pytest.mark.parametrize("lines", [True, False])
def test_json_is_utf_8_with_or_without_its_mark(lines: bool, size: int) -> None:
    request = SelectRequest("select s.a from s3object s", JsonInput(lines=lines))
    data = b"\xef\xbb\xbf" + b'{"a":1}\r\n' * 20
    assert answer(request, data, block_bytes=size) == b"1\n" * 20
    assert answer(request, b"\xef\xbb\xbf", block_bytes=size) == b""
    for broken, place in [(data + b'{"a":"\xff"}\n', 189), ('{"a":1}'.encode("utf-16"), 0)]:
        with pytest.raises(SelectError, match=f"UTF-8.* byte {place}\\.") as caught:
            answer(request, broken, block_bytes=size)
        assert caught.value.s3_code == "InvalidTextEncoding"


@pytest.mark.parametrize("size", [64, 100, 1 << 20])
def test_a_document_is_a_sequence_of_values(size: int) -> None:
    data = b'[1, 2]\n{"a":\n [{"b": "x}"}, {"b": null}, {"c": 3}]}  {"a": []} 7 "s" '
    request = SelectRequest("select * from s3object[*].a[*]", JsonInput(lines=False), JsonOutput())
    assert answer(request, data, block_bytes=size) == (
        b'{}\n{"b":"x}"}\n{"b":null}\n{"c":3}\n{}\n{}\n'
    )
    request = SelectRequest("select count(*) from s3object", JsonInput(lines=False))
    assert answer(request, data, block_bytes=size) == b"5\n"


@pytest.mark.parametrize("size", [64, 1 << 20])
@pytest.mark.parametrize("keys", ["", " group by _2"])
def test_what_an_aggregate_cannot_take_tells_its_record(keys: str, size: int) -> None:
    data = b"17,a\n" * 999 + b"x,a\n"
    request = SelectRequest(f"select sum(_1) from s3object where _2 <> 'b'{keys}")
    with pytest.raises(SelectError, match=r"'x'.* \(in record 1000\)"):
        answer(request, b"1,b\n" + data.replace(b"17,a\n", b"", 1), block_bytes=size)


@pytest.mark.parametrize("dialect", list(Dialect))
def test_an_empty_object_has_no_records_whatever_is_asked(dialect: Dialect) -> None:
    options = CsvInput(header=HeaderMode.USE)
    for sql, wanted in [
        ("select name, s.age from s3object s where name = 'x'", b""),
        ("select count(name) from s3object", b"0"),
        ("select name, count(*) from s3object group by name", b""),
    ]:
        out = answer(SelectRequest(sql, options, dialect=dialect), b"")
        assert out.strip(b",\n") == wanted


# The two roots of Amazon's own page about FROM.
RULES = b"""{"Rules": [{"id": "1"}, {"expr": "y > x"}, {"id": "2", "expr": "z = DEBUG"}]}
{"created": "June 27", "modified": "July 6"}"""


@pytest.mark.parametrize(
    ("sql", "wanted"),
    [
        ("select id from s3object[*].Rules[*].id", b'{"id":"1"}\n{}\n{"id":"2"}\n{}\n'),
        (
            "select id from s3object[*].Rules[*].id where id is not missing",
            b'{"id":"1"}\n{"id":"2"}\n',
        ),
        ("select Rules[1].expr from s3object.Rules", b'{"expr":"y > x"}\n{}\n'),
        ("select s3object[0].id from s3object.Rules", b'{"id":"1"}\n{}\n'),
        ("select id from s3object[*].Rules[*] r", b'{"id":"1"}\n{}\n{"id":"2"}\n{}\n'),
    ],
)
def test_the_name_that_ends_a_path_stands_for_what_it_leads_to(sql: str, wanted: bytes) -> None:
    assert answer(SelectRequest(sql, JsonInput(lines=False), JsonOutput()), RULES) == wanted


def test_broken_json_is_told_behind_the_records_before_it() -> None:
    data = b'{"a":1}\n{"a":2}\n{"a":\n{"a":4}\n'
    request = SelectRequest("select s.a from s3object s", JsonInput(lines=True))
    payloads = open_local_select(request, io.BytesIO(data)).stream_payloads()
    assert next(payloads) == b"1\n2\n"
    with pytest.raises(SelectError, match="byte 16"):
        next(payloads)


@pytest.mark.parametrize("size", [64, 1 << 20])
@pytest.mark.parametrize(
    ("options", "data", "where"),
    [
        (CsvInput(header=HeaderMode.USE), b"a\n" + b"17\n" * 999 + b"x\n", ", .* byte 2999"),
        (JsonInput(lines=True), b'{"a":17}\n' * 999 + b'{"a":"x"}\n', ", .* byte 8991"),
        (JsonInput(lines=False), b'{"a":17}\n' * 999 + b'{"a":"x"}\n', ", .* byte 8991"),
    ],
)
def test_an_error_tells_the_record(
    options: CsvInput | JsonInput, data: bytes, where: str, size: int
) -> None:
    request = SelectRequest("select sum(cast(s.a as int)) from s3object s", options)
    with pytest.raises(SelectError, match=rf"'x'.* \(in record 1000{where}\)"):
        answer(request, data, block_bytes=size)


@pytest.mark.slow
@pytest.mark.parametrize("info", [HeaderMode.USE, HeaderMode.IGNORE])
def test_a_header_without_end_is_refused_before_it_is_read(info: HeaderMode) -> None:
    """The exact state machine would hold the interpreter for a minute."""
    request = SelectRequest("select * from s3object", CsvInput(header=info))
    names = b",".join(b"n%d" % number for number in range(1_000_000))
    for header in (names, b'"' + names + b'"'):
        with pytest.raises(SelectError, match="header does not end within 1,048,576") as caught:
            answer(request, header + b"\n1\n")
        assert caught.value.s3_code == "OverMaxRecordSize"


def test_a_document_that_is_too_large_names_its_setting() -> None:
    request = SelectRequest("select * from s3object", JsonInput(lines=False))
    with pytest.raises(SelectError, match="document_bytes"):
        answer(request, b"[" + b"1," * 50_000 + b"1]", document_bytes=10_000, block_bytes=1000)


@pytest.mark.parametrize("source", ["", "[*].a"])
@pytest.mark.parametrize("lines", [True, False])
def test_a_json_value_beyond_a_limit_below_a_block_is_refused_behind_those_before(
    lines: bool, source: str
) -> None:
    data = b'{"a": "1"}\n{"a": "22"}\n{"a": "' + b"3" * 1000 + b'"}\n{"a": "4"}\n'
    request = SelectRequest(f"select * from s3object{source} s", JsonInput(lines=lines))
    setting = "record_bytes" if lines else "document_bytes"
    assert len(answer(request, data, **{setting: 1010}).splitlines()) == 4
    execution = open_local_select(
        request, io.BytesIO(data), settings=EngineSettings(**{setting: 900})
    )
    payloads = execution.stream_payloads()
    assert next(payloads) == b"1\n22\n"
    with pytest.raises(SelectError, match=f"select_{setting}") as caught:
        next(payloads)
    assert caught.value.s3_code == "OverMaxRecordSize"


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dialect", list(Dialect))
def test_counting_does_not_depend_on_workers(dialect: Dialect, threads: int) -> None:
    request = SelectRequest("select count(*) from s3object;", CsvInput(), dialect=dialect)
    data = b'1,2\n\n3,"4"\n"5",6\n' * 30 + b"7"
    wanted = 91 if dialect is Dialect.AWS else 121
    for size in (64, 1 << 20):
        out = answer(request, data, threads=threads, block_bytes=size)
        assert out.strip(b",\n") == b"%d" % wanted
    bad = SelectRequest("select count(*) from s3object")
    with pytest.raises(SelectError, match="byte 510"):
        answer(bad, data[:-1] + b"\xff\n", threads=threads, block_bytes=64)


@pytest.fixture
def parquet(tmp_path: Path) -> Path:
    table = pa.table(
        {
            "n": pa.array([1, None, 3, 4, 5, 6]),
            "x": pa.array([0.5, 1.5, None, 2.5, 3.5, 4.5]),
            "s": ["a", "b,c", None, 'q"', "é", ""],
            "d": pa.array([decimal.Decimal("1.10")] * 6),
            "t": pa.array([1_500_000_000_123] * 6, pa.timestamp("ms")),
            "l": [[1, 2]] * 6,
        }
    )
    path = tmp_path / "a.parquet"
    pq.write_table(table, path, row_group_size=2)
    return path


def parquet_answer(path: Path, sql: str, **limits: Any) -> tuple[bytes, SelectExecution]:
    request = SelectRequest(sql, ParquetInput(), limits.pop("output", CsvOutput()))
    execution = open_local_select(request, path, settings=EngineSettings(**limits))
    return b"".join(execution.stream_payloads()), execution


@pytest.mark.slow
def test_parquet_reads_needed_columns_of_row_groups_that_matter(parquet: Path) -> None:
    out, some = parquet_answer(parquet, "select n, s, d from s3object where n >= 5")
    assert out == "5,é,1.10\n6,,1.10\n".encode()
    out, every = parquet_answer(parquet, "select * from s3object where n >= 0 limit 1")
    assert out == b'1,0.5,a,1.10,2017-07-14T02:40:00.123Z,"[1,2]"\n'
    assert some.processed_bytes < every.processed_bytes
    assert parquet_answer(parquet, "select count(*) from s3object")[0] == b"6\n"
    out, _ = parquet_answer(
        parquet, "select s.n, s.l[1] as e from s3object s where s.s = 'b,c'", output=JsonOutput()
    )
    assert out == b'{"n":null,"e":2}\n'


def test_a_row_group_that_is_too_large_names_its_setting(parquet: Path) -> None:
    with pytest.raises(SelectError, match="row_group_bytes"):
        parquet_answer(parquet, "select n, s from s3object", row_group_bytes=10)


def test_what_is_no_parquet_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "b.parquet"
    path.write_bytes(b"no parquet at all, but long enough")
    with pytest.raises(SelectError, match="Parquet"):
        parquet_answer(path, "select * from s3object")


def test_distinct_values_are_folded_once_as_duckdb_does() -> None:
    rng = np.random.default_rng(5)
    rows = [f"{n},{n % 3},{w}" for n, w in zip(rng.integers(0, 9, 300), "xyzaüx" * 50, strict=True)]
    data = "n,g,w\n" + "\n".join(rows) + "\n,0,\n"
    numbers = "count(distinct {0}), sum(distinct {0}), count({0}), max(distinct {0})"
    shown = f"g, count(distinct w), {numbers}"
    sql = (
        f"select {shown.format('cast(n as int)')} from s3object where n <> '' group by g order by g"
    )
    request = SelectRequest(sql, CsvInput(header=HeaderMode.USE))
    lines = pa.table({"line": [row.split(",") for row in rows]})
    found = cast(
        "duckdb.DuckDBPyRelation",
        duckdb.from_arrow(lines).query(
            "lines",
            f"select {shown.format('n::int')} from (select line[1] n, line[2] g, line[3] w from lines) "
            "group by g order by g",
        ),
    ).fetchall()
    wanted = "".join(",".join(map(str, row)) + "\n" for row in found)
    for size in (64, 1 << 20):
        assert answer(request, data.encode(), block_bytes=size).decode() == wanted
    request = SelectRequest(
        "select count(distinct n), count(distinct 7) from s3object", request.input
    )
    assert answer(request, data.encode()) == b"10,1\n"
    with pytest.raises(SelectError, match="select_group_memory_bytes"):
        answer(request, data.encode(), group_memory_bytes=1000)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("cast(a as int) > 50", "a::int > 50"),
        ("b like '%x%' and cast(c as float) between 0.2 and 0.7", None),
        ("b in ('xy', 'zz') or b is null or char_length(b) = 1", "b in ('xy','zz') or length(b)=1"),
    ],
)
def test_filters_agree_with_duckdb(tmp_path: Path, ours: str, theirs: str | None) -> None:
    rng = np.random.default_rng(3)
    path = tmp_path / "a.csv"
    texts = ["x", "xy", "zz", '"a,x"']
    rows = [f"{rng.integers(0, 100)},{rng.choice(texts)},{rng.random():.3f}" for _ in range(3000)]
    path.write_text("a,b,c\n" + "\n".join(rows) + "\n")
    request = SelectRequest(
        f"select a, c from s3object where {ours}", CsvInput(header=HeaderMode.USE)
    )
    out = b"".join(
        open_local_select(request, path, settings=EngineSettings(block_bytes=997)).stream_payloads()
    )
    condition = theirs or ours.replace("cast(c as float)", "c::double")
    relation = duckdb.sql(
        f"select a, c from read_csv('{path}', all_varchar=true, header=true) where {condition}"
    )
    assert relation is not None
    found = relation.fetchall()
    assert out.decode() == "".join(f"{a},{c}\n" for a, c in found)

"""`spark.read.format("snowmelt-select")` against the S3 endpoint of a service process."""

from __future__ import annotations

import datetime as dt
import gzip
import io
import json
import re
from collections.abc import Callable
from decimal import Decimal
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.types import Row, StringType, StructField, StructType

from fixtures.s3 import S3Process
from snowmelt.errors import UserError
from snowmelt.spark.select import SelectSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


pytestmark = pytest.mark.spark

PEOPLE = b"id,name,score,born,seen,paid,ok\n" + b"".join(
    b"%d,n%d,%d.5,19%02d-03-04,2026-01-31T12:%02d:00Z,%d.25,%s\n"
    % (n, n, n, n % 100, n % 60, n, b"true" if n % 2 else b"false")
    for n in range(1000)
)


EXACT = [Decimal("12345678901234567890.123456789"), Decimal(9007199254740993), None]
INNER = pa.struct([("d", pa.decimal128(38, 9)), ("f", pa.float64())])


@pytest.fixture(scope="module")
def lake(s3: S3Process) -> SimpleNamespace:
    """A bucket with objects of every form, and the calls that read them."""
    client = s3.client()
    client.create_bucket(Bucket="sparked")
    lines = [json.dumps({"id": n, "d": {"x": n}, "t": f"t{n}"}) for n in range(500)]
    parquet = io.BytesIO()
    pq.write_table(pa.table({"id": list(range(300)), "t": [f"t{n}" for n in range(300)]}), parquet)
    exact = io.BytesIO()
    columns = {
        "big": pa.array(EXACT, pa.decimal128(38, 9)),
        "small": pa.array([Decimal("99999999999999.9999"), Decimal("-0.5"), None]),
        "x": pa.array([1.0, 0.1, None]),
        "inner": pa.array([{"d": each, "f": 0.5} for each in EXACT], INNER),
    }
    pq.write_table(pa.table(columns), exact)
    for key, body in {
        "people.csv": PEOPLE,
        "plain.csv": b"1,one\n2,\n3,three\n",
        "odd.csv": b"n,day\n1,2026-01-31\n,\nx,2026-02-30\n",
        "quoted.csv": b'a;b\n"1;2";3\n',
        "lines.jsonl": "\n".join(lines).encode(),
        "document.json": b'{"id": 1, "t": "a"} {"id": 2}',
        "data.parquet": parquet.getvalue(),
        "exact.parquet": exact.getvalue(),
        "people.csv.gz": gzip.compress(PEOPLE),
        "exact.jsonl": b"".join(b'{"big": %s, "x": 7}\n' % str(each).encode() for each in EXACT[:2])
        + b'{"big": "1.5", "x": 0.5}\n',
        "empty.csv": b"",
        "mixed.jsonl": b'{"a": 1}\n{"a": "x"}\n',
    }.items():
        client.put_object(Bucket="sparked", Key=key, Body=body)
    return SimpleNamespace(s3=s3, client=client)


@pytest.fixture
def read(spark: SparkSession, lake: SimpleNamespace) -> Callable[..., DataFrame]:
    def load(key: str, schema: str | None = None, **options: str) -> DataFrame:
        key_pair = lake.s3.keys["admin"]
        reader = spark.read.format("snowmelt-select").options(
            endpoint=lake.s3.url,
            accessKey=key_pair.access_key_id,
            secretKey=key_pair.secret,
            **options,
        )
        return (reader if schema is None else reader.schema(schema)).load(f"s3://sparked/{key}")

    return load


def test_a_session_of_ours_knows_the_format(
    spark: SparkSession, read: Callable[..., DataFrame]
) -> None:
    assert read("plain.csv").collect() == [
        Row(_1="1", _2="one"),
        Row(_1="2", _2=""),
        Row(_1="3", _2="three"),
    ]


def test_a_header_names_the_columns_and_texts_become_what_the_schema_says(
    read: Callable[..., DataFrame],
) -> None:
    frame = read(
        "people.csv",
        "id INT, name STRING, score DOUBLE, born DATE, seen TIMESTAMP, paid DECIMAL(10,2), ok BOOLEAN",
        header="use",
        where="s.id in (1, 2)",
    )
    first, second = frame.collect()
    assert first.asDict() == {
        "id": 1,
        "name": "n1",
        "score": 1.5,
        "born": dt.date(1901, 3, 4),
        "seen": first.seen,
        "paid": Decimal("1.25"),
        "ok": True,
    }
    seconds = frame.selectExpr("unix_timestamp(seen)").first()
    assert seconds is not None
    assert seconds[0] == 1769860860
    assert second.ok is False


def test_columns_and_where_are_asked_of_the_endpoint(
    read: Callable[..., DataFrame], lake: SimpleNamespace
) -> None:
    whole = returned(lake, lambda: read("people.csv", header="use").collect())
    some = returned(lake, lambda: read("people.csv", "name STRING", header="use").collect())
    few = returned(
        lake,
        lambda: read("people.csv", "name STRING", header="use", where="s.id < 10").collect(),
    )
    named = returned(
        lake, lambda: read("people.csv", header="use", columns="name, id").select("id").collect()
    )
    assert few < some / 20
    assert some < named < whole / 2
    assert some < whole / 4


def returned(lake: SimpleNamespace, run: Callable[[], list[Row]]) -> int:
    """How many bytes the endpoint sent meanwhile for queries of Spark's tasks."""
    before = len(lake.s3.service.log)
    run()
    told = re.findall(r"returned (\d+) bytes", lake.s3.service.log[before:])
    return sum(map(int, told))


@pytest.mark.parametrize("size", ["7777", "50000", "1000000"])
def test_ranges_share_the_records_among_them(read: Callable[..., DataFrame], size: str) -> None:
    frame = read("people.csv", "id INT", header="use", rangeBytes=size)
    assert frame.rdd.getNumPartitions() == -(-len(PEOPLE) // int(size))
    assert sorted(row.id for row in frame.collect()) == list(range(1000))
    lines = read("lines.jsonl", "id INT", input="lines", rangeBytes=size)
    assert sorted(row.id for row in lines.collect()) == list(range(500))


def test_lines_documents_and_parquet_are_read(read: Callable[..., DataFrame]) -> None:
    lines = read("lines.jsonl", input="lines", where="s.d.x >= 498")
    assert [(row.id, row.t, json.loads(row.d)) for row in lines.collect()] == [
        (498, "t498", {"x": 498}),
        (499, "t499", {"x": 499}),
    ]
    document = read("document.json", "id BIGINT, t STRING", input="json")
    assert document.collect() == [Row(id=1, t="a"), Row(id=2, t=None)]
    parquet = read("data.parquet", input="parquet", where="s.id > 297")
    assert parquet.collect() == [Row(id=298, t="t298"), Row(id=299, t="t299")]


def test_decimals_are_exact_with_and_without_a_schema(read: Callable[..., DataFrame]) -> None:
    given = read(
        "exact.parquet",
        "big DECIMAL(38,9), small DECIMAL(18,4), x DOUBLE, inner STRUCT<d: DECIMAL(38,9), f: DOUBLE>",
        input="parquet",
    ).collect()
    assert [row.big for row in given] == EXACT
    assert [row.small for row in given] == [Decimal("99999999999999.9999"), Decimal("-0.5"), None]
    assert [row.x for row in given] == [1.0, 0.1, None]
    assert [row.inner for row in given] == [Row(d=each, f=0.5) for each in EXACT]
    found = read("exact.parquet", input="parquet")
    assert found.schema["big"].dataType.simpleString() == "decimal(38,9)"
    assert [row.big for row in found.collect()] == EXACT
    texts = read("exact.parquet", "big STRING", input="parquet").collect()
    assert [row.big for row in texts][:2] == [
        "12345678901234567890.123456789",
        "9007199254740993.000000000",
    ]
    lines = read("exact.jsonl", "big DECIMAL(38,9), x DOUBLE", input="lines").collect()
    assert [tuple(row) for row in lines] == [
        (EXACT[0], 7.0),
        (EXACT[1], 7.0),
        (Decimal("1.5"), 0.5),
    ]


def test_the_ending_of_the_key_tells_the_form(read: Callable[..., DataFrame]) -> None:
    assert read("exact.parquet", "x DOUBLE").count() == 3
    assert read("lines.jsonl", "id INT").agg({"id": "max"}).collect()[0][0] == 499
    assert read("people.csv.gz", "id INT", header="use").count() == 1000


@pytest.mark.parametrize(
    ("key", "schema", "columns", "message"),
    [
        ("lines.jsonl", "id INT", "id, t", "The option columns differs from the schema"),
        ("lines.jsonl", None, "id, nope", "have no column nope, .* they have id"),
        ("lines.jsonl", None, "d.x", "have no column d.x"),
        ("*.jsonl", None, "", "not patterns here"),
    ],
)
def test_columns_that_would_be_left_out_are_named(
    read: Callable[..., DataFrame], key: str, schema: str | None, columns: str, message: str
) -> None:
    with pytest.raises(Exception, match=message):
        read(key, schema, columns=columns).collect()


def test_a_decimal_that_would_be_rounded_is_refused(read: Callable[..., DataFrame]) -> None:
    with pytest.raises(Exception, match=r"Column big does not fit decimal128\(38, 2\)"):
        read("exact.parquet", "big DECIMAL(38,2)", input="parquet").collect()


def test_empty_fields_are_null_where_they_are_no_text(read: Callable[..., DataFrame]) -> None:
    frame = read("odd.csv", "n INT, day DATE", header="use", where="s.n <> 'x'")
    assert frame.collect() == [Row(n=1, day=dt.date(2026, 1, 31)), Row(n=None, day=None)]
    texts = read("odd.csv", "n STRING", header="use", where="s.n = ''")
    assert texts.collect() == [Row(n="")]


def test_options_of_csv_travel(read: Callable[..., DataFrame]) -> None:
    frame = read("quoted.csv", header="use", delimiter=";")
    assert frame.collect() == [Row(a="1;2", b="3")]
    old = read("plain.csv", dialect="ceph-2020", where="int(_1) == 3")
    assert old.collect() == [Row(_1="3", _2="three")]


def test_records_are_counted_without_columns(read: Callable[..., DataFrame]) -> None:
    assert read("people.csv", header="use").count() == 1000
    assert read("people.csv", header="use", where="s.id < 5", rangeBytes="9000").count() == 5


@pytest.mark.parametrize(
    ("key", "schema", "options", "sentence"),
    [
        ("odd.csv", "n INT", {"header": "use"}, "Column n does not fit int32"),
        ("odd.csv", "day DATE", {"header": "use"}, "Column day does not fit date32"),
        ("people.csv", "nope STRING", {"header": "use"}, "nope"),
        ("people.csv", "id INT", {"header": "use", "where": "s.id <"}, "people.csv"),
        ("gone.csv", "id INT", {}, "gone.csv"),
    ],
)
def test_what_does_not_fit_is_told_in_a_sentence(
    read: Callable[..., DataFrame], key: str, schema: str, options: dict[str, str], sentence: str
) -> None:
    with pytest.raises(Exception, match=re.escape(sentence)):
        read(key, schema, **options).collect()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"colour": "red"}, "has no option colour"),
        ({"header": "perhaps"}, "Valid values: none, use, ignore"),
        ({"compression": "rar"}, "Valid values: none, gzip"),
        ({"input": "xml"}, "Valid values: csv, lines, json, parquet"),
        ({"rangeBytes": "-1"}, "Expected a number of bytes"),
        ({"dialect": "klingon"}, "Valid values: aws, ceph, ceph-2020"),
    ],
)
def test_options_that_are_wrong_are_named(
    read: Callable[..., DataFrame], options: dict[str, str], sentence: str
) -> None:
    with pytest.raises(Exception, match=re.escape(sentence)):
        read("plain.csv", **options).collect()


def test_an_object_without_records_needs_a_schema(
    read: Callable[..., DataFrame], spark: SparkSession
) -> None:
    with pytest.raises(Exception, match="no records to infer a schema from"):
        read("empty.csv").collect()
    assert read("empty.csv", "_1 STRING").collect() == []


def test_columns_of_several_types_need_a_schema(read: Callable[..., DataFrame]) -> None:
    with pytest.raises(Exception, match="values of several types"):
        read("mixed.jsonl", input="lines").collect()
    mixed = read("mixed.jsonl", "a STRING", input="lines")
    assert mixed.collect() == [Row(a="1"), Row(a="x")]


def test_a_path_must_name_an_object(spark: SparkSession) -> None:
    for path in ("people.csv", "s3://bucket", "http://a/b"):
        with pytest.raises(Exception, match=re.escape("it must be s3://bucket/key")):
            spark.read.format("snowmelt-select").load(path).collect()


def test_an_object_that_is_replaced_between_two_ranges_is_not_mixed(lake: SimpleNamespace) -> None:
    key_pair = lake.s3.keys["admin"]
    options = {
        "path": "s3://sparked/replaced.csv",
        "endpoint": lake.s3.url,
        "accessKey": key_pair.access_key_id,
        "secretKey": key_pair.secret,
        "rangeBytes": "1000",
    }
    lake.client.put_object(Bucket="sparked", Key="replaced.csv", Body=b"old\n" * 1000)
    reader = SelectSource(options).reader(StructType([StructField("_1", StringType())]))
    first, *others = reader.partitions()
    batches = [each for each in reader.read(first) if isinstance(each, pa.RecordBatch)]
    assert sum(batch.num_rows for batch in batches) == 250
    lake.client.put_object(Bucket="sparked", Key="replaced.csv", Body=b"new\n" * 1000)
    with pytest.raises(UserError, match=r"replaced\.csv was replaced while tasks read its ranges"):
        list(reader.read(others[0]))

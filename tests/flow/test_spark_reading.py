"""Tables in Spark SQL: chunks and native files as one table, with the SQL types."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest

from fixtures.chunks import NUMBERS, Lakehouse, numbers
from snowmelt.clock import ManualClock
from snowmelt.errors import (
    ColumnNotFound,
    DatabaseNotFound,
    StatementError,
    TableNotFound,
    Unsupported,
)
from snowmelt.schema.conversion.row_converter import RowConverter
from snowmelt.schema.types import Column, LogicalType, TableSchema
from snowmelt.spark import Snowmelt
from snowmelt.table.migration import MigrationSettings, migrate_table
from support.typed_rows import ROWS, TYPED, TYPES, typed_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession


pytestmark = pytest.mark.spark

UTC = dt.UTC


def expected_rows() -> list[Any]:
    first = (
        1,
        Decimal("1234567890123456789012345678.0123456789"),
        2.5,
        True,
        "Grüße, 雪",
        bytearray(b"\x00\xff"),
        dt.date(2013, 1, 31),
        dt.time(23, 59, 59, 123_000),
        dt.time(1, 2, 3, 123_456),
        789,
        dt.datetime(2013, 1, 31, 10, 11, 12, 123_456),
        dt.datetime(1969, 12, 31, 23, 59, 59, 999_999),
        999,
        dt.datetime(2013, 1, 31, 8, 11, 12, 500_000, UTC),
        dt.datetime(2013, 1, 31, 13, 41, 12, 0, UTC),
        1,
        -210,
        '{"at":[1,2.5,null],"city":"K\\u00f6ln"}',
        "[1,2]",
        '{"a":{"b":"c"}}',
        "x",
        "low",
    )
    second = (
        2,
        Decimal("-0.0000000001"),
        "nan",
        False,
        "",
        bytearray(b""),
        dt.date(1, 1, 1),
        dt.time(0),
        dt.time(0),
        0,
        dt.datetime(1, 1, 1),
        dt.datetime(1500, 6, 15, 12),
        0,
        dt.datetime(9999, 12, 31, 23, 59, 59, 999_999, UTC),
        dt.datetime(1500, 6, 15, 12, 0, 0, 0, UTC),
        0,
        0,
        "1234567890123456789012",
        "[]",
        "{}",
        "",
        "",
    )
    return [first, second, (3,) + (None,) * 21]


def seen(frame: DataFrame) -> list[tuple[Any, ...]]:
    """Return rows with variants as JSON text, timezone-aware timestamps, and NaN as text."""
    import pyspark.sql.types as st

    rows = []
    for row in sorted(frame.collect(), key=lambda row: row[0]):
        values: list[Any] = []
        for field, value in zip(frame.schema.fields, row, strict=True):
            if value is None:
                values.append(None)
            elif isinstance(field.dataType, st.VariantType):
                values.append(value.toJson())
            elif isinstance(field.dataType, st.TimestampType):
                values.append(value.astimezone(UTC))
            elif isinstance(value, float) and value != value:
                values.append("nan")
            else:
                values.append(value)
        rows.append(tuple(values))
    return rows


@pytest.fixture
def typed(lakehouse: Lakehouse) -> Lakehouse:
    lakehouse.create(TYPES, TYPED)
    return lakehouse


def ids(frame: DataFrame) -> list[Any]:
    return sorted(int(row[0]) for row in frame.collect())


def test_every_type_is_the_same_from_chunks_and_from_native_files(
    typed: Lakehouse, lake: Snowmelt
) -> None:
    typed.put(typed_rows(ROWS), TYPES)
    from_chunks = lake.sql("SELECT * FROM demo.public.types")
    assert seen(from_chunks) == expected_rows()
    typed.migrate(TYPES)
    from_files = lake.sql("SELECT * FROM demo.public.types")
    assert lake.explain_files("SELECT * FROM demo.public.types")[0].chunks_total == 0
    assert from_files.schema == from_chunks.schema
    assert seen(from_files) == expected_rows()
    typed.put(typed_rows(ROWS), TYPES)
    twice = [row for row in expected_rows() for _ in range(2)]
    assert seen(lake.table("demo.public.types")) == twice


def test_types_are_those_that_sql_means(typed: Lakehouse, lake: Snowmelt) -> None:
    types = dict(lake.table("demo.public.types").dtypes)
    assert types == {
        "ID": "decimal(5,0)",
        "NUM": "decimal(38,10)",
        "REAL": "double",
        "FLAG": "boolean",
        "TEXT": "string",
        "BYTES": "binary",
        "DAY": "date",
        "CLOCK3": "time(3)",
        "CLOCK9": "time(6)",
        "CLOCK9$ns": "int",
        "NTZ": "timestamp_ntz",
        "NTZ9": "timestamp_ntz",
        "NTZ9$ns": "int",
        "LTZ": "timestamp",
        "TZ9": "timestamp",
        "TZ9$ns": "int",
        "TZ9$tz": "int",
        "V": "variant",
        "A": "variant",
        "O": "variant",
        "odd. `name": "string",
        "text_18": "string",
    }


def test_columns_are_read_alone_and_in_any_order(typed: Lakehouse, lake: Snowmelt) -> None:
    typed.put(typed_rows(ROWS), TYPES)
    typed.migrate(TYPES)
    typed.put(typed_rows([{**ROWS[0], "ID": 4}]), TYPES)
    rows = lake.sql(
        "SELECT v:city::string, `TZ9$tz`, id, `odd. ``name` FROM demo.public.types "
        "WHERE a:[1]::int = 2 AND v:at[1]::double = 2.5 ORDER BY id"
    )
    assert [tuple(row) for row in rows.collect()] == [
        ("Köln", -210, 1, "x"),
        ("Köln", -210, 4, "x"),
    ]


def test_a_document_that_spark_cannot_parse_is_a_text(typed: Lakehouse, lake: Snowmelt) -> None:
    deep = "[" * 1200 + "]" * 1200
    odd = [deep, '{"a": 1, "a": 2}', "1" * 1500, "{oops", "[1] [2]", '{"a": 1} {}']
    texts = [*odd, '{"a": 1}', None]
    rows = typed_rows([{"ID": number} for number in range(len(texts))])
    typed.put(rows.set_column(13, rows.schema.field("V"), pa.array(texts)), TYPES)
    seen_types = lake.sql(
        "SELECT schema_of_variant(v), v::string FROM demo.public.types ORDER BY id"
    ).collect()
    assert [row[0] for row in seen_types] == ["STRING"] * len(odd) + ["OBJECT<a: BIGINT>", None]
    assert [row[1] for row in seen_types[: len(odd)]] == odd


def test_columns_whose_names_differ_only_in_case_keep_their_types_and_values(
    lakehouse: Lakehouse, lake: Snowmelt
) -> None:
    columns = (
        Column("ID", LogicalType.FIXED, 1, precision=9, scale=0),
        Column("Id", LogicalType.TEXT, 2, length=100, byte_length=400),
        Column("id", LogicalType.FIXED, 3, precision=9, scale=0),
        Column("ID_2", LogicalType.REAL, 4),
    )
    lakehouse.create(NUMBERS, columns)
    row = {"ID": 1, '"Id"': "two", '"id"': 3, "ID_2": 4.5}
    converter = RowConverter(TableSchema(1, columns), zone=ZoneInfo("UTC"))
    lakehouse.put(converter.convert([row]).table)
    text = "SELECT * FROM demo.public.numbers WHERE id = 1 AND id_3 > 2"
    [wanted] = lake.sql(text).collect()
    assert tuple(wanted) == (1, "two", 3, 4.5)
    lakehouse.migrate()
    assert lake.sql(text).collect() == [wanted]


@pytest.mark.parametrize("is_migrated", [False, True], ids=["chunks", "native"])
def test_conditions_find_nan_above_every_number(
    lakehouse: Lakehouse, lake: Snowmelt, is_migrated: bool
) -> None:
    columns = (Column("ID", LogicalType.FIXED, 1, precision=9), Column("X", LogicalType.REAL, 2))
    lakehouse.create(NUMBERS, columns)
    rows = [{"ID": 1, "X": 1.0}, {"ID": 2, "X": float("nan")}]
    lakehouse.put(RowConverter(TableSchema(1, columns), zone=ZoneInfo("UTC")).convert(rows).table)
    if is_migrated:
        lakehouse.migrate()
    conditions = ("x > 5", "x >= 1e300", "x <> 1", "NOT (x <= 1)", "x = double('NaN')")
    parts = [f"SELECT id FROM demo.public.numbers WHERE {each}" for each in conditions]
    assert ids(lake.sql(" UNION ALL ".join(parts))) == [2] * len(conditions)


def test_names_are_folded_as_in_snowflake(numbers_table: Lakehouse, lake: Snowmelt) -> None:
    numbers_table.put_numbers(0, 3)
    for name in ("demo.public.numbers", "DEMO.Public.NUMBERS", "`DEMO`.public.`NUMBERS`"):
        assert ids(lake.sql(f"SELECT n FROM {name}")) == [0, 1, 2]
    assert ids(lake.sql("SELECT demo.public.numbers.n FROM demo.public.numbers")) == [0, 1, 2]
    assert ids(lake.table('demo.public."NUMBERS"').select("n")) == [0, 1, 2]


@pytest.mark.parametrize(
    "text",
    [
        "WITH c AS (SELECT n FROM demo.public.numbers) SELECT n FROM c",
        "SELECT x.n FROM (SELECT * FROM demo.public.numbers) x",
        "SELECT a.n FROM demo.public.numbers a JOIN demo.public.numbers b ON a.n = b.n",
        "SELECT n FROM range(4) r JOIN demo.public.numbers ON n = r.id",
        "FROM demo.public.numbers |> SELECT n |> WHERE n >= 0",
        "SELECT n FROM demo.public.numbers TABLESAMPLE (100 PERCENT)",
        "SELECT id AS n FROM range(4) WHERE id IN (SELECT n FROM demo.public.numbers)",
        "SELECT n FROM demo.public.numbers WHERE '{x}' <> '{{y}}'",
        "SELECT DISTINCT n FROM demo.public.numbers LATERAL VIEW explode(array(1, 2)) e AS k",
    ],
)
def test_spark_sql_around_a_table_works(
    numbers_table: Lakehouse, lake: Snowmelt, text: str
) -> None:
    numbers_table.put_numbers(0, 2)
    numbers_table.migrate()
    numbers_table.put_numbers(2, 2)
    assert ids(lake.sql(text)) == [0, 1, 2, 3]


def test_a_query_opens_only_the_files_and_chunks_that_it_can_need(
    numbers_table: Lakehouse, lake: Snowmelt
) -> None:
    for start in range(0, 50, 10):
        numbers_table.put_numbers(start, 10)
        numbers_table.migrate()
    for start in range(50, 100, 10):
        numbers_table.put_numbers(start, 10)
    text = "SELECT n FROM demo.public.numbers WHERE n BETWEEN {} AND {}"
    [opened] = lake.explain_files(text.format(35, 61))
    assert (opened.native_files, opened.native_files_total) == (2, 5)
    assert (opened.chunks, opened.chunks_total) == (2, 5)
    assert opened.columns == ("N",)
    assert ids(lake.sql(text.format(35, 61))) == list(range(35, 62))
    assert ids(lake.sql(text.format(200, 300))) == []


def test_pruned_files_are_not_opened(numbers_table: Lakehouse, lake: Snowmelt) -> None:
    numbers_table.is_damaged = True
    first = numbers_table.put_numbers(0, 10)
    numbers_table.put_numbers(10, 10)
    numbers_table.stage.delete(first)
    assert ids(lake.sql("SELECT n FROM demo.public.numbers WHERE n >= 10")) == list(range(10, 20))
    with pytest.raises(Exception, match=first.partition("/")[2]):
        lake.sql("SELECT n FROM demo.public.numbers").collect()


def test_counting_opens_nothing(numbers_table: Lakehouse, lake: Snowmelt) -> None:
    numbers_table.is_damaged = True
    numbers_table.put_numbers(0, 10)
    numbers_table.migrate()
    path = numbers_table.put_numbers(10, 5)
    numbers_table.stage.delete(path)
    [row] = lake.sql("SELECT count(*) AS rows FROM demo.public.numbers").collect()
    assert row.rows == 15


def test_a_dataframe_gives_the_same_rows_each_time(
    numbers_table: Lakehouse, lake: Snowmelt
) -> None:
    numbers_table.put_numbers(0, 10)
    numbers_table.migrate()
    numbers_table.put_numbers(10, 10)
    frame = lake.table("demo.public.numbers")
    assert ids(frame.where("n > 17").select("n")) == [18, 19]
    assert frame.count() == 20
    numbers_table.migrate()
    numbers_table.put_numbers(20, 10)
    assert ids(frame.select("n")) == list(range(20))
    assert ids(frame.union(frame).where("n < 1").select("n")) == [0, 0]
    assert lake.table("demo.public.numbers").count() == 30


def test_tables_of_one_query_are_of_one_instant(numbers_table: Lakehouse, lake: Snowmelt) -> None:
    numbers_table.put_numbers(0, 10)
    frame = lake.sql(
        "SELECT (SELECT count(*) FROM demo.public.numbers), "
        "(SELECT sum(n) FROM demo.public.numbers WHERE n < 1000)"
    )
    numbers_table.put_numbers(10, 10)
    assert tuple(cast("Row", frame.first())) == (10, 45)


def test_a_table_without_rows_is_empty(numbers_table: Lakehouse, lake: Snowmelt) -> None:
    assert lake.sql("SELECT * FROM demo.public.numbers").collect() == []
    assert lake.table("demo.public.numbers").columns == ["N", "WORD"]
    assert cast("Row", lake.sql("SELECT count(*), max(n) FROM demo.public.numbers").first())[0] == 0


def test_a_plan_that_is_too_old_fails_with_a_sentence(
    tmp_path: Path, lakehouse: Lakehouse, spark: SparkSession
) -> None:
    clock = ManualClock(dt.datetime(2020, 1, 1, tzinfo=UTC))
    lakehouse.clock = clock
    lakehouse.create()
    lake = Snowmelt(
        spark,
        catalog=lakehouse.database,
        stage=lakehouse.stage.url,
        warehouse=lakehouse.warehouse.url,
        keys=lakehouse.keyring,
        clock=clock,
    )
    lakehouse.put(numbers(0, 10))
    sentence = "Query plan of table DEMO.PUBLIC.NUMBERS expired: its files may be deleted. Run the query again"
    with pytest.raises(Exception, match=sentence):
        lake.sql("SELECT n FROM demo.public.numbers").collect()
    lakehouse.migrate()
    for text in (
        "SELECT n FROM demo.public.numbers",
        "SELECT max(n) FROM demo.public.numbers WHERE n > 3",
    ):
        with pytest.raises(Exception, match=sentence):
            lake.sql(text).collect()


def test_what_does_not_exist_is_said_in_a_sentence(
    numbers_table: Lakehouse, lake: Snowmelt
) -> None:
    with pytest.raises(TableNotFound, match=r"Table DEMO\.PUBLIC\.FLIGHTS does not exist"):
        lake.sql("SELECT * FROM demo.public.flights")
    with pytest.raises(TableNotFound, match="Write the full name"):
        lake.sql("SELECT * FROM numbers")
    with pytest.raises(ColumnNotFound, match=r"Column wrd does not exist\. Columns: WORD, N"):
        lake.sql("SELECT wrd FROM demo.public.numbers")
    with pytest.raises(StatementError, match=r"Syntax error at or near '>' \(line 2, column 11\)"):
        lake.sql("SELECT n FROM demo.public.numbers\nWHERE n > > 5")
    with pytest.raises(
        StatementError, match=r"write a quoted name in backticks \(line 1, column 27\)"
    ):
        lake.sql('SELECT n FROM demo.public."numbers"')
    with pytest.raises(Unsupported, match="as a statement of its own"):
        lake.sql("EXPLAIN INSERT INTO demo.public.numbers SELECT 1, 'x'")


def test_ddl_is_done_and_answered(lakehouse: Lakehouse, lake: Snowmelt) -> None:
    lake.sql("CREATE DATABASE d")
    status = lake.sql("CREATE TABLE d.public.t (i NUMBER(9,0) NOT NULL, v VARIANT)")
    assert status.columns == ["status"]
    shown = lake.sql("SHOW TABLES")
    assert shown.count() == 1
    assert lake.sql("SELECT * FROM d.public.t").columns == ["I", "V"]


def test_migrations_are_seen_in_their_view(numbers_table: Lakehouse, lake: Snowmelt) -> None:
    numbers_table.put_numbers(0, 10)
    [run] = lake.migrate("demo.public.numbers")
    assert run.rows == 10
    for name in ("", "account_usage.", "snowmelt.account_usage."):
        rows = lake.sql(
            f"SELECT table_name, num_rows_migrated, state FROM "
            f"{name}snowpipe_streaming_file_migration_history"
        ).collect()
        assert [tuple(row) for row in rows] == [("NUMBERS", 10, "committed")]


def test_a_migration_changes_no_result(numbers_table: Lakehouse, lake: Snowmelt) -> None:
    for start in range(0, 40, 10):
        numbers_table.put_numbers(start, 10)
    before = ids(lake.sql("SELECT n FROM demo.public.numbers"))
    lake.migrate()
    assert lake.migrate() == []
    assert ids(lake.sql("SELECT n FROM demo.public.numbers")) == before == list(range(40))


def test_mentions_of_a_table_are_pruned_apart(numbers_table: Lakehouse, lake: Snowmelt) -> None:
    for start in range(0, 40, 10):
        numbers_table.put_numbers(start, 10)
    text = (
        "SELECT a.n FROM demo.public.numbers a JOIN demo.public.numbers b ON a.n = b.n - 10 "
        "WHERE a.n < 10 AND b.n BETWEEN 10 AND 14"
    )
    assert [opened.chunks for opened in lake.explain_files(text)] == [1, 1]
    assert ids(lake.sql(text)) == list(range(5))


def test_a_plan_is_explained_for_our_tables_too(numbers_table: Lakehouse, lake: Snowmelt) -> None:
    numbers_table.put_numbers(0, 10)
    [row] = lake.sql("EXPLAIN SELECT n FROM demo.public.numbers WHERE n > 5").collect()
    assert "snowmelt_chunks" in row[0]
    assert numbers_table.stage.url not in row[0]


def test_a_changed_blob_is_named_and_gives_no_rows(
    numbers_table: Lakehouse, lake: Snowmelt
) -> None:
    numbers_table.is_damaged = True
    path = numbers_table.put_numbers(0, 10)
    data = bytearray(numbers_table.stage.get(path))
    data[5] ^= 1
    numbers_table.stage.put(path, bytes(data))
    with pytest.raises(Exception, match=f"Corrupt blob {path.partition('/')[2]}.*MD5"):
        lake.sql("SELECT n FROM demo.public.numbers").collect()


@pytest.mark.parametrize("setting", ["ignoreMissingFiles", "ignoreCorruptFiles"])
def test_a_session_cannot_skip_files(
    numbers_table: Lakehouse, lake: Snowmelt, spark: SparkSession, setting: str
) -> None:
    numbers_table.is_damaged = True
    numbers_table.put_numbers(0, 10)
    numbers_table.migrate()
    numbers_table.put_numbers(10, 10)
    numbers_table.migrate()
    path = min(numbers_table.data_files())
    store = numbers_table.warehouse.store
    spark.conf.set(f"spark.sql.files.{setting}", "true")
    try:
        frame = lake.table("demo.public.numbers")
        store.delete(path) if setting == "ignoreMissingFiles" else store.put(path, b"x" * 2000)
        with pytest.raises(Exception, match=path.rpartition("/")[2]):
            frame.collect()
    finally:
        spark.conf.set(f"spark.sql.files.{setting}", "false")


def test_a_role_reads_what_it_may(
    numbers_table: Lakehouse, lake: Snowmelt, spark: SparkSession
) -> None:
    numbers_table.put_numbers(0, 3)
    lake.sql("CREATE ROLE reader")
    limited = Snowmelt(
        spark,
        catalog=numbers_table.database,
        stage=numbers_table.stage.url,
        warehouse=numbers_table.warehouse.url,
        keys=numbers_table.keyring,
        role="READER",
    )
    with pytest.raises(DatabaseNotFound):
        limited.sql("SELECT n FROM demo.public.numbers")
    lake.sql("GRANT USAGE ON DATABASE demo TO ROLE reader")
    lake.sql("GRANT USAGE ON SCHEMA demo.public TO ROLE reader")
    lake.sql("GRANT SELECT ON TABLE demo.public.numbers TO ROLE reader")
    assert ids(limited.sql("SELECT n FROM demo.public.numbers")) == [0, 1, 2]


def test_a_recreated_table_shows_nothing_of_the_old_one(
    numbers_table: Lakehouse, lake: Snowmelt
) -> None:
    numbers_table.put_numbers(0, 10)
    numbers_table.migrate()
    numbers_table.put_numbers(10, 10)
    frame = lake.table("demo.public.numbers")
    numbers_table.create(replace=True)
    assert lake.table("demo.public.numbers").collect() == []
    numbers_table.put_numbers(100, 1)
    assert ids(lake.sql("SELECT n FROM demo.public.numbers")) == [100]
    assert frame.count() == 20


@pytest.mark.slow
def test_many_files_are_listed_by_their_folder_without_others(
    numbers_table: Lakehouse, lake: Snowmelt
) -> None:
    for number in range(120):
        numbers_table.put_numbers(number * 10, 10)
    settings = MigrationSettings(
        numbers_table.stage.url, numbers_table.warehouse.url, target_bytes=1
    )
    migrate_table(numbers_table.database, numbers_table.keyring, NUMBERS, settings)
    text = "SELECT n FROM demo.public.numbers WHERE n >= {}"
    assert ids(lake.sql(text.format(0))) == list(range(1200))
    assert len(lake.sql(text.format(100)).inputFiles()) == 110
    # Files of a failed migration are in the same folder.
    files = numbers_table.warehouse.store
    some = next(iter(numbers_table.data_files()))
    files.put(some.rpartition("/")[0] + "/00000-000-left.parquet", files.get(some))
    again = Snowmelt(
        lake.spark,
        catalog=numbers_table.database,
        stage=numbers_table.stage.url,
        warehouse=numbers_table.warehouse.url,
        keys=numbers_table.keyring,
    )
    assert ids(again.sql(text.format(0))) == list(range(1200))
    assert ids(again.sql(text.format(100))) == list(range(100, 1200))


def test_a_database_may_be_given_apart(numbers_table: Lakehouse, lake: Snowmelt) -> None:
    numbers_table.put_numbers(0, 3)
    for text, where in (
        ("SELECT n FROM numbers", {"database": "demo"}),
        ("SELECT n FROM public.numbers", {"database": "demo"}),
        ("SELECT numbers.n FROM numbers WHERE n >= 0", {"database": "demo", "schema": "public"}),
        ("WITH t AS (SELECT * FROM numbers) SELECT n FROM t", {"database": "demo"}),
    ):
        assert ids(lake.sql(text, **where)) == [0, 1, 2]
    with pytest.raises(TableNotFound):
        lake.sql("SELECT n FROM numbers")

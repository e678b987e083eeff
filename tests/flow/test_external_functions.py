"""External functions in Spark SQL: calls, their number, and results."""

from __future__ import annotations

import datetime as dt
import json
import random
import re
import struct
import uuid
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
from opentelemetry import trace
from pyspark.errors import PythonException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from fixtures.functions import ECHOED, OPEN, Counted, echo_of
from snowmelt.clock import SystemClock
from snowmelt.errors import NotFound, SchemaNotFound
from snowmelt.functions.caller.plan import CallerOptions
from snowmelt.spark import Snowmelt
from snowmelt.spark.functions.call_rewriter import CallMalformed
from snowmelt.spark.functions.registry import count_executor_hosts
from support.raw_service import RawService, reply

if TYPE_CHECKING:
    from snowmelt.spark.functions.call_estimates import FunctionCallEstimate


pytestmark = pytest.mark.spark

_HERE: dict[str, Any] = {"database": "demo", "schema": "public"}
_FUNCTIONS = (
    "loud(t varchar) returns varchar {} as '{}/upper'",
    "loud_once(t varchar) returns varchar immutable {} as '{}/upper'",
    "loud_strict(t varchar) returns varchar returns null on null input {} as '{}/upper'",
    "ext_func_city_lat_long(city varchar) returns variant {} as '{}/place'",
    "middle(a float, b float default 2) returns float {} as '{}/middle'",
    "middle(a float, b float, c varchar) returns float {} as '{}/middle'",
    "seven() returns number {} as '{}/seven'",
    "slow(t varchar) returns varchar {} as '{}/slow'",
    "closed(t varchar) returns varchar {} as '{}/closed'",
    "rated(t varchar) returns varchar rate_limit = 10 {} as '{}/upper'",
    "token(t varchar) returns varchar {} as '{}/token'",
    "shaky(t varchar) returns varchar {} as '{}/shaky'",
    "shaky_null(t varchar) returns varchar row_errors = return_null {} as '{}/shaky'",
)


@pytest.fixture(scope="module")
def world(
    spark: SparkSession, counted_service: Counted, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Snowmelt]:
    """Tables, and functions that call a service with counters."""
    url = counted_service.url
    with Snowmelt.local(tmp_path_factory.mktemp("functions"), spark=spark, create=True) as lake:
        lake.sql("create database demo")
        lake.sql(
            "create api integration here api_provider = http "
            f"api_allowed_prefixes = ('{url}') enabled = true"
        )
        for text in _FUNCTIONS:
            ddl = text.format("api_integration = here", url)
            lake.sql(f"create external function demo.public.{ddl}")
        for kind in ECHOED:
            lake.sql(
                f"create external function demo.public.{echo_of(kind)}(x {kind}) returns {kind} "
                f"api_integration = here as '{url}/{echo_of(kind)}'"
            )
        yield lake


@pytest.fixture
def ask(world: Snowmelt, counted: Counted) -> Callable[..., Any]:
    """Run a query with short names. Return its rows."""

    def asked(text: Any, **options: Any) -> list[Any]:
        return [tuple(row) for row in world.sql(text, **{**_HERE, **options}).collect()]

    return asked


def test_the_published_query_runs_as_written(
    world: Snowmelt, spark: SparkSession, ask: Any
) -> None:
    world.sql("create or replace table demo.public.table_of_city_names (city_name varchar)")
    text = (
        "select val:city, val:latitude, val:longitude"
        " from (select ext_func_city_lat_long(city_name) as val from table_of_city_names)"
    )
    assert world.sql(text, **_HERE).columns == ["city", "latitude", "longitude"]
    assert ask(text) == []
    rows = "(select explode(array('Oslo', 'Bergen')) as city_name)"
    found = world.sql(text.replace("table_of_city_names", rows), **_HERE).selectExpr(
        "cast(city as string)", "cast(latitude as double)", "cast(longitude as double)"
    )
    assert [tuple(row) for row in found.collect()] == [("Oslo", 2.0, -1.5), ("Bergen", 3.0, -1.5)]


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("NUMBER", "12345678901234567890123456789012345678BD", None),
        ("NUMBER(38,10)", "1234567890123456789012345678.0123456789BD", None),
        ("NUMBER(5,0)", "'123'", Decimal(123)),
        ("FLOAT", "0.1D", 0.1),
        ("FLOAT", "cast('-Infinity' as double)", float("-inf")),
        ("BOOLEAN", "true", True),
        ("VARCHAR", "'Grüße, 雪 \\u0001'", "Grüße, 雪 \u0001"),
        ("VARCHAR", "3", "3"),
        ("BINARY", "X'00ff'", b"\x00\xff"),
        ("DATE", "DATE'0001-01-02'", dt.date(1, 1, 2)),
        ("TIME", "TIME'10:11:12.123456'", dt.time(10, 11, 12, 123456)),
        ("TIME(3)", "TIME'10:11:12.123'", dt.time(10, 11, 12, 123000)),
        ("TIMESTAMP_NTZ", "TIMESTAMP_NTZ'2020-01-02 03:04:05.000006'", None),
        ("TIMESTAMP_LTZ", "TIMESTAMP'2020-01-02 03:04:05.000006+02:00'", None),
        ("TIMESTAMP_TZ", "TIMESTAMP'2020-01-02 03:04:05.5-08:00'", None),
    ],
)
def test_values_come_back_as_they_went(ask: Any, kind: str, text: str, value: Any) -> None:
    there_and_back, direct = ask(f"select {echo_of(kind)}({text}) as a, {text} as b")[0]
    assert there_and_back == (direct if value is None else value)
    assert type(there_and_back) is type(direct if value is None else value)
    assert ask(f"select {echo_of(kind)}(null) as a") == [(None,)]


@pytest.mark.parametrize(
    ("kind", "text", "document"),
    [
        ("VARIANT", """parse_json('{"a": [1, null, {"b": 1.50}]}')""", None),
        ("VARIANT", "named_struct('a', 1, 'b', null)", '{"a":1,"b":null}'),
        ("VARIANT", "map('k', array(1, 2))", '{"k":[1,2]}'),
        ("VARIANT", "'text'", '"text"'),
        ("VARIANT", "12345678901234567890123456789012345678BD", None),
        ("VARIANT", "parse_json('0.000000048382277801338157')", None),
        ("OBJECT", """parse_json('{"a":0.00000001234567890123456789}')""", None),
        (
            "VARIANT",
            "named_struct('a', 0.00000001234567890123456789BD)",
            '{"a":0.00000001234567890123456789}',
        ),
        ("VARIANT", "TIME'10:11:12'", '"10:11:12"'),
        ("VARIANT", "cast(null as string)", None),
        ("OBJECT", "named_struct('n', 1.5BD, 'm', map('x', 1))", '{"m":{"x":1},"n":1.5}'),
        ("OBJECT", """parse_json('{"a": 1}')""", '{"a":1}'),
        ("ARRAY", "array(1, null, 3)", "[1,null,3]"),
        ("ARRAY", "parse_json('[[1], \"x\"]')", '[[1],"x"]'),
    ],
)
def test_documents_come_back_as_they_went(
    ask: Any, kind: str, text: str, document: str | None
) -> None:
    back, direct = ask(
        f"select to_json({echo_of(kind)}({text})) as a, to_json(array({text})) as b"
    )[0]
    if document is None and "null as" not in text:
        document = direct[1:-1]
    assert back == document


def test_random_values_come_back_as_python_computes_them(
    world: Snowmelt, spark: SparkSession
) -> None:
    """Compare values that went from Spark to a service and back with Python's `decimal` and `json`."""
    chance = random.Random(20240131)

    def text() -> str:
        return "".join(chance.choice('aé雪\\"\n\u00010') for _ in range(chance.randrange(6)))

    rows = [
        (
            Decimal(chance.randrange(-(10**38) + 1, 10**38)).scaleb(-10),
            Decimal(chance.randrange(-(10**38) + 1, 10**38)),
            struct.unpack("<d", struct.pack("<Q", chance.getrandbits(62)))[0],
            text(),
            dt.datetime(1, 1, 2) + dt.timedelta(microseconds=chance.randrange(3 * 10**17)),
            json.dumps({"n": chance.randrange(-(10**37), 10**37), "t": [text(), None, True]}),
        )
        for _ in range(200)
    ]
    frame = spark.createDataFrame(
        rows, "n decimal(38,10), i decimal(38,0), f double, t string, m timestamp_ntz, j string"
    )
    frame.createOrReplaceTempView("random_values")
    names = [
        echo_of(each) for each in ("NUMBER(38,10)", "NUMBER", "FLOAT", "VARCHAR", "TIMESTAMP_NTZ")
    ]
    listed = ", ".join(f"{name}({column})" for name, column in zip(names, "niftm", strict=True))
    found = world.sql(
        f"select {listed}, to_json({echo_of('VARIANT')}(parse_json(j))) from random_values", **_HERE
    ).collect()
    key = lambda row: row[1]  # noqa: E731
    for row, expected in zip(sorted(found, key=key), sorted(rows, key=key), strict=True):
        assert tuple(row)[:5] == expected[:5]
        assert json.loads(row[5]) == json.loads(expected[5])


@pytest.mark.parametrize(
    ("kind", "fragment", "reason"),
    [
        ("varchar(3)", '"toolong"', r"Row 0: the text has 7 characters, more than VARCHAR\(3\)"),
        ("number", '"1_000"', "Row 0: a number was expected, got text"),
        ("float", "1e400", "Row 0: a number in the range of FLOAT was expected"),
        ("variant", '{"a":1e400}', "Row 0: the VARIANT has a number"),
    ],
)
def test_a_result_that_its_type_does_not_hold_ends_the_query(
    world: Snowmelt, ask: Any, kind: str, fragment: str, reason: str
) -> None:
    with RawService(reply(200, f'{{"data":[[0,{fragment}]]}}'.encode())) as service:
        world.sql(
            "create or replace api integration odd api_provider = http"
            f" api_allowed_prefixes = ('{service.url}') enabled = true"
        )
        world.sql(
            f"create or replace external function demo.public.odd(t varchar) returns {kind}"
            f" api_integration = odd as '{service.url}/f'"
        )
        with pytest.raises(PythonException, match=reason):
            ask("select odd('x')")


def test_null_in_json_is_null_in_sql(ask: Any) -> None:
    assert ask(f"select {echo_of('VARIANT')}(parse_json('null')) is null as a") == [(True,)]


def test_values_that_do_not_fit_their_type_are_refused(ask: Any) -> None:
    with pytest.raises(Exception, match="NUMERIC_VALUE_OUT_OF_RANGE"):
        ask(f"select {echo_of('NUMBER(5,0)')}(123456) as a")


def test_names_defaults_and_overloads(ask: Any) -> None:
    found = ask(
        "select middle(id), middle(id, 4), middle(b => 4, a => id), demo.public.middle(id, 1),"
        " seven() from range(1)"
    )
    assert found == [(1.0, 2.0, 2.0, 0.5, Decimal(7))]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("middle()", r"it takes 1 to 2 arguments \(A FLOAT, B FLOAT DEFAULT 2\) or 3 arguments"),
        ("middle(1, 2, 3, 4)", "not 4"),
        ("middle(1, c => 2)", "it has no argument C"),
        ("middle(1, a => 2)", "A is given twice"),
        ("middle(b => 1)", "A is missing"),
        ("middle(a => 1, 2)", "positional arguments must precede named arguments"),
        ("max(loud('x'))", "an aggregate cannot call VOLATILE functions"),
        ("echo_object('text')", "pass an OBJECT or ARRAY as struct, map, array or VARIANT"),
        ("transform(array('x'), x -> loud(x))", "a lambda function cannot call"),
    ],
)
def test_wrong_calls_are_told_in_our_sentences(
    ask: Any, counted: Counted, call: str, message: str
) -> None:
    with pytest.raises(CallMalformed, match=message):
        ask(f"select {call} from range(2)")
    assert counted.calls == []


def test_unknown_functions_are_refused(ask: Any) -> None:
    with pytest.raises(NotFound, match=r"Function DEMO\.PUBLIC\.NOPE does not exist"):
        ask("select demo.public.nope(1)")
    with pytest.raises(NotFound, match="Function nope does not exist"):
        ask("select nope(1)")
    with pytest.raises(NotFound, match="Function loud does not exist"):
        ask("select loud('x')", database=None, schema=None)


def test_functions_of_spark_keep_their_names(ask: Any, counted: Counted) -> None:
    assert ask("select upper('x'), 'loud(x)' /* loud(1) */") == [("X", "loud(x)")]
    assert counted.calls == []


def test_columns_bear_the_names_that_users_wrote(world: Snowmelt) -> None:
    frame = world.sql("select loud(x), middle(1):: int, seven() s from values ('a') t(x)", **_HERE)
    assert frame.columns == ["loud(x)", "middle(1):: int", "s"]


def test_rows_with_null_of_strict_functions_never_leave(ask: Any, counted: Counted) -> None:
    rows = "values ('a'), (null), ('b'), (null) t(x)"
    assert ask(f"select loud_strict(x) from {rows}") == [("A",), (None,), ("B",), (None,)]
    assert sorted(counted.values) == ["a", "b"]


def test_immutable_functions_see_equal_inputs_once_per_batch(ask: Any, counted: Counted) -> None:
    found = ask("select loud_once(cast(id % 10 as string)) from range(0, 1000, 1, 1)")
    assert len(found) == 1000
    assert counted.rows == 10


@pytest.mark.parametrize(
    ("query", "immutable", "volatile"),
    [
        ("select {f}(s), {f}(s) from {t}", 10, 200),
        ("select v from (select {f}(s) v from {t}) where v <> 'x'", 20, 100),
        ("select v from (select n, {f}(s) v from {t}) where n < 10", 10, 100),
        ("select case when n < 10 then {f}(s) end from {t}", 10, 100),
        ("select {f}({f}(s)) from {t}", 20, 200),
        ("select count(*) from (select {f}(s) from {t})", 0, 0),
    ],
)
def test_spark_calls_as_often_as_documented(
    ask: Any, counted: Counted, query: str, immutable: int, volatile: int
) -> None:
    table = "(select id as n, cast(id % 10 as string) as s from range(0, 100, 1, 1))"
    for function, rows in (("loud_once", immutable), ("loud", volatile)):
        counted.clear()
        ask(query.format(f=function, t=table))
        assert counted.rows == rows, function


def test_limit_stops_calls(world: Snowmelt, ask: Any, counted: Counted) -> None:
    # The filter prevents Spark from applying LIMIT before the calls.
    asked = "select v from (select slow(cast(id as string)) as v from range(0, 60000, 1, 1))"
    # Run once before: in the first run, Spark compiles the query while the service responds.
    ask(f"{asked} where v <> '' limit 3")
    counted.clear()
    assert len(ask(f"{asked} where v <> '' limit 3")) == 3
    # One required batch, and the maximum number in flight.
    assert len(counted.calls) <= 1 + CallerOptions().max_in_flight


def test_errors_of_rows_end_the_query_or_become_null_or_values(ask: Any) -> None:
    rows = "(select * from values ('good'), ('bad secret') t(x))"
    with pytest.raises(Exception, match=r"DEMO\.|shaky.*batch") as raised:
        ask(f"select shaky(x) from {rows}")
    assert "secret" not in str(raised.value).partition("Traceback")[0]
    assert ask(f"select shaky_null(x) from {rows}") == [("good",), (None,)]
    found = ask(f"select try_shaky(x) from {rows}")
    assert [each.value for (each,) in found] == ["good", None]
    assert found[0][0].error is None
    assert found[1][0].error
    assert {each.status for (each,) in found} == {200}
    assert all(each.batch_id.count(":") == 4 for (each,) in found)


def test_tried_documents_have_their_types(ask: Any) -> None:
    query = "select t.value:city::string, t.error from (select try_ext_func_city_lat_long('x') t)"
    assert ask(query) == [("x", None)]


def test_context_headers_are_those_of_the_query(
    world: Snowmelt, counted: Counted, ask: Any
) -> None:
    world.sql(
        "create or replace external function demo.public.told(t varchar) returns varchar"
        " api_integration = here headers = ('unit'='km') max_batch_rows = 2"
        " context_headers = (current_timestamp, current_role, current_database, current_statement)"
        f" as '{counted.url}/upper'"
    )
    query = "select told(cast(id as string)) from range(0, 8, 1, 2)"
    ask(query)
    assert len(counted.calls) == 4
    assert counted.headers["sf-custom-unit"] == "km"
    assert counted.headers["sf-context-current-role"] == "ACCOUNTADMIN"
    assert counted.headers["sf-context-current-database"] == "DEMO"
    assert counted.headers["sf-context-current-statement"] == query
    now = counted.headers["sf-context-current-timestamp"]
    told = dt.datetime.strptime(now, "%Y-%m-%d %H:%M:%S.%f %z")
    assert abs(told - dt.datetime.now(dt.UTC)) < dt.timedelta(minutes=5)
    assert len({batch.split(":")[0] for batch in counted.ids}) == 1


def test_calls_belong_to_the_trace_of_their_query(
    world: Snowmelt, counted: Counted, ask: Any
) -> None:
    context = trace.SpanContext(7 << 64, 11, is_remote=False, trace_flags=trace.TraceFlags(1))
    with trace.use_span(trace.NonRecordingSpan(context)):
        ask("select slow('a')")
    assert counted.headers["traceparent"] == f"00-{7 << 64:032x}-{11:016x}-01"
    ask("select slow('a')")
    assert "traceparent" not in counted.headers


def test_what_is_changed_counts_at_once(world: Snowmelt, counted: Counted, ask: Any) -> None:
    create = "create or replace external function demo.public.fickle({}) returns varchar {}"
    rest = f"api_integration = here as '{counted.url}/upper'"
    world.sql(create.format("t varchar", rest))
    assert ask("select fickle('x')") == [("X",)]
    frame = world.sql("select fickle('y')", **_HERE)
    world.sql(create.format("t varchar", rest.replace("upper", "shaky")))
    assert ask("select fickle('x')") == [("x",)]
    world.sql("alter function demo.public.fickle(varchar) set max_batch_rows = 1")
    counted.clear()
    ask("select fickle(cast(id as string)) from range(0, 3, 1, 1)")
    assert len(counted.calls) == 3
    assert [tuple(row) for row in frame.collect()] == [("Y",)]
    world.sql("drop function demo.public.fickle(varchar)")
    with pytest.raises(NotFound):
        ask("select demo.public.fickle('x')")


def test_functions_need_privileges(world: Snowmelt, spark: SparkSession, tmp_path: Path) -> None:
    world.sql("create role reader")
    reader = Snowmelt(
        spark,
        catalog=world._database,
        stage=str(tmp_path),
        warehouse=str(tmp_path),
        keys=world._keyring,
        role="READER",
    )
    query = "select demo.public.loud('x')"
    with pytest.raises(NotFound):
        reader.sql(query)
    for what in ("database demo", "schema demo.public", "function demo.public.loud(varchar)"):
        world.sql(f"grant usage on {what} to role reader")
    assert reader.sql(query).collect()[0][0] == "X"
    assert [row.FUNCTION_NAME for row in reader.calls().collect()] == ["DEMO.PUBLIC.LOUD"]


def test_the_session_may_call_them_by_itself(
    world: Snowmelt, spark: SparkSession, counted: Counted
) -> None:
    attached = world.attach_functions("demo.public")
    assert {"loud", "try_loud", "middle_2", "middle_3", "seven"} <= set(attached)
    found = spark.sql(
        "select loud(t => 'x'), middle_2(1), seven(), ext_func_city_lat_long('a'):city::string"
    )
    assert tuple(found.collect()[0]) == ("X", 1.5, Decimal(7), "a")
    tried = spark.sql("select try_loud('y').value").collect()
    assert tried[0][0] == "Y"
    with pytest.raises(SchemaNotFound):
        world.attach_functions("demo.nowhere")


def test_the_session_and_the_lake_call_the_same_function_of_several_with_one_name(
    world: Snowmelt, spark: SparkSession, counted: Counted
) -> None:
    world.sql("create schema demo.twins")
    for name in ("x(t varchar)", "try_x(t varchar)", '"y"(t varchar)', "y(t varchar)", "z(t varchar)",
                 "z(t varchar, u varchar)", "z_1(t varchar)"):  # fmt: skip
        path = "shaky" if name.startswith(("try_x", "y", "z_1")) else "upper"
        world.sql(
            f"create external function demo.twins.{name} returns varchar api_integration = here"
            f" as '{counted.url}/{path}'"
        )
    with pytest.warns(UserWarning, match="is not attached") as told:
        attached = world.attach_functions("demo.twins")
    assert sorted(attached) == [
        *("try_try_x", "try_x", "try_y", "try_z_1", "try_z_2", "x", "y", "z_1", "z_2")
    ]
    variant = "the try_ variant of "
    assert sorted(str(each.message).partition(" is not attached")[0] for each in told) == [
        'DEMO.TWINS."y"(VARCHAR)',
        "DEMO.TWINS.Z(VARCHAR)",
        f'{variant}DEMO.TWINS."y"(VARCHAR)',
        f"{variant}DEMO.TWINS.X(VARCHAR)",
        f"{variant}DEMO.TWINS.Z(VARCHAR)",
    ]
    query = "select try_x('a'), y('b'), z_1('c')"
    there = world.sql(query, database="demo", schema="twins").collect()
    assert [tuple(row) for row in spark.sql(query).collect()] == [tuple(row) for row in there]
    assert tuple(there[0]) == ("a", "b", "c")


def test_functions_make_columns(world: Snowmelt, spark: SparkSession, counted: Counted) -> None:
    middle, place = (
        world.function(f"demo.public.{name}") for name in ("middle", "ext_func_city_lat_long")
    )
    tried = world.function("demo.public.loud", trying=True)
    frame = spark.range(1).select(
        middle("id"), middle(sf.col("id"), b=4), place(sf.lit("x")), tried(sf.lit("y"))
    )
    assert frame.columns == ["middle", "middle", "ext_func_city_lat_long", "loud"]
    row = frame.collect()[0]
    assert (row[0], row[1], row[3].value) == (1.0, 2.0, "Y")
    with pytest.raises(CallMalformed):
        middle()


def test_batches_are_written_down(world: Snowmelt, ask: Any, counted: Counted) -> None:
    name = f"noted_{uuid.uuid4().hex[:8]}"
    world.sql(
        f"create external function demo.public.{name}(t varchar) returns varchar immutable"
        f" max_batch_rows = 10 api_integration = here as '{counted.url}/upper'"
    )
    ask(f"select {name}(cast(id % 5 as string)) from range(0, 40, 1, 2)")
    found = ask(
        "select batch_id, row_count, rows_sent, status, attempts, outcome, bytes_sent > 0 as b"
        f" from external_function_calls where function_name = 'DEMO.PUBLIC.{name.upper()}'"
        " and status is not null"
    )
    assert {row[0] for row in found} == set(counted.ids)
    assert {row[1:] for row in found} == {(10, 5, 200, 1, "ok", True)}
    assert world.calls(days=1).count() >= len(found)


def test_plans_are_counted_and_their_doubles_named(world: Snowmelt, counted: Counted) -> None:
    def explained(text: str, **options: Any) -> list[FunctionCallEstimate]:
        return world.explain_calls(text.format(t="range(0, 3000, 1, 2)"), **_HERE, **options)

    [once] = explained("select loud(cast(id as string)) from {t}")
    assert (once.function, once.places, once.rows, once.calls) == ("DEMO.PUBLIC.LOUD", 1, 3000, 3)
    assert once.warnings == ()
    [twice] = explained(
        "select v from (select loud_once(cast(id as string)) v from {t}) where v<>''"
    )
    assert (twice.places, twice.rows) == (2, 6000)
    assert "more than once for the same rows" in twice.warnings[0]
    [ordered] = explained("select loud(cast(id as string)) v from {t} order by v")
    assert "ORDER BY" in ordered.warnings[0]
    [chosen] = explained("select case when id < 3 then loud('x') end from {t}")
    assert "CASE" in chosen.warnings[0]
    [late] = explained(
        "select v from (select id, loud(cast(id as string)) v from {t}) where id < 9"
    )
    assert "before a filter" in late.warnings[0]
    [exact] = explained("select loud(cast(id as string)) from {t} where id % 3 = 0", dry_run=True)
    assert (exact.rows, exact.calls) == (1000, 2)
    assert counted.calls == []
    assert "1000 rows in 2 calls" in str(exact)


@pytest.mark.parametrize(
    "query",
    [
        "select loud(s) from {t}",
        "select v from (select loud(s) v from {t}) order by v",
        "select v from (select loud(s) v from {t}) order by v limit 5",
        "select v from (select n, loud(s) v from {t}) sort by v",
        "select loud(s) v, n from {t} order by n",
        "select max(v) from (select loud(s) v from {t})",
    ],
)
def test_plans_count_what_spark_then_sends(
    world: Snowmelt, ask: Any, counted: Counted, query: str
) -> None:
    text = query.format(t="(select id n, cast(id as string) s from range(0, 3000, 1, 2))")
    [explained] = world.explain_calls(text, **_HERE)
    assert counted.calls == []
    ask(text)
    assert explained.rows is not None
    assert counted.rows <= explained.rows <= max(counted.rows, 3000)


def test_a_budget_counts_every_request_of_all_partitions(
    world: Snowmelt, spark: SparkSession, tmp_path: Path
) -> None:
    with RawService(reply(503, retry_after="0")) as service:
        world.sql(
            "create or replace api integration away api_provider = http"
            f" api_allowed_prefixes = ('{service.url}') enabled = true"
        )
        world.sql(
            "create or replace external function demo.public.away(t varchar) returns varchar"
            f" api_integration = away as '{service.url}/f'"
        )
        lake = Snowmelt(
            spark,
            catalog=world._database,
            stage=str(tmp_path),
            warehouse=str(tmp_path),
            keys=world._keyring,
            calling=CallerOptions(max_calls_per_query=3),
        )
        with pytest.raises(Exception, match="the budget max_calls_per_query = 3 does not allow"):
            lake.sql("select demo.public.away(cast(id as string)) from range(0, 8, 1, 4)").collect()
        assert len(service.requests) == 3


def test_an_error_says_why_before_any_traceback(world: Snowmelt, ask: Any) -> None:
    body = b'{"message":"no such model"}'
    with RawService(reply(404, body)) as service:
        world.sql(
            "create or replace api integration lost api_provider = http"
            f" api_allowed_prefixes = ('{service.url}') enabled = true"
        )
        world.sql(
            "create or replace external function demo.public.lost(t varchar) returns varchar"
            f" api_integration = lost as '{service.url}/f?code=hidden'"
        )
        with pytest.raises(PythonException) as raised:
            ask("select lost('x')")
    said = str(raised.value).strip().partition("\n")[2].partition("\n")[0]
    assert "CallFailed: lost, batch " in said
    assert f"remote service error: 404 '{body.decode()}' (status 404" in said
    assert f"{service.url}/f)." in said
    assert "Traceback" not in str(raised.value)
    assert "hidden" not in str(raised.value)


def test_sessions_are_guarded(world: Snowmelt, spark: SparkSession) -> None:
    world.sql("select loud('x')", **_HERE)
    assert int(cast("str", spark.conf.get("spark.sql.execution.pandas.udf.buffer.size"))) <= 256


def test_a_streaming_query_asks_again_with_the_same_ids(
    world: Snowmelt, spark: SparkSession, counted: Counted, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "one.txt").write_text("a\nb\nc\n")
    closed = world.function("demo.public.closed")

    def run() -> None:
        rows = spark.readStream.text(str(tmp_path / "in")).select(closed("value").alias("v"))
        query = (
            rows.writeStream.format("parquet")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(tmp_path / "out"))
        )
        query.awaitTermination()

    OPEN.clear()
    with pytest.raises(StreamingQueryException, match="batch"):
        run()
    refused = set(counted.ids)
    assert refused
    counted.clear()
    OPEN.set()
    run()
    assert set(counted.ids) == refused
    assert sorted(row.v for row in spark.read.parquet(str(tmp_path / "out")).collect()) == [*"abc"]


@pytest.mark.parametrize(
    "query",
    [
        "select token(x), token(x) from {t}",
        "select token(x), demo.public.token(x), try_token(x).value from {t}",
        "select a, token(x) from (select x, token(x) as a from {t}) distribute by x",
        "select (select max(v) from (select token('a') v)), (select max(v) from (select token('a') v))",
        "select token(x), null from {t} union all select token(x), token(x) from {t}",
        (
            "with l as (select x, token(x) v from {t} distribute by x),"
            " r as (select x, token(x) v from {t} distribute by x)"
            " select l.v, r.v from l join r on l.x = r.x"
        ),
    ],
)
def test_calls_of_a_volatile_function_in_one_statement_have_values_of_their_own(
    ask: Any, counted: Counted, query: str
) -> None:
    rows = ask(query.format(t="(select * from values ('a'), ('b') t(x))"))
    values = [value for row in rows for value in row if value is not None]
    assert len(set(values)) == len(values) >= 2
    # Each call has its own batch IDs.
    assert len(set(counted.ids)) == len(counted.ids)


def test_columns_and_attached_functions_have_values_of_their_own(
    world: Snowmelt, spark: SparkSession, counted: Counted
) -> None:
    token = world.function("demo.public.token")
    column = token("x")
    frame = spark.createDataFrame([("a",)], "x string")
    frame = frame.select(column.alias("a"), column.alias("b"), token("x").alias("c"), "x")
    frame = frame.withColumn("d", world.function("demo.public.token")("x"))
    row = frame.withColumn("e", sf.concat(*(token("x") for _ in range(2)))).drop("x").collect()[0]
    values = [*row[:4], row.e[:32], row.e[32:]]
    assert len(set(values)) == 6
    world.attach_functions("demo.public")
    rows = spark.sql("select token(x), token(x) from values ('a') t(x)").collect()
    assert rows[0][0] != rows[0][1]


def test_statements_of_a_streaming_batch_have_values_of_their_own(
    world: Snowmelt, spark: SparkSession, counted: Counted, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "one.txt").write_text("a\n")
    found: list[Any] = []

    def each(_: DataFrame, number: int) -> None:
        for name in ("one", "two"):
            row = world.sql(f"select token('a') as {name}, token('a')", **_HERE).collect()[0]
            found.extend(row)

    query = (
        spark.readStream.text(str(tmp_path / "in")).writeStream.foreachBatch(each)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True).start()
    )  # fmt: skip
    query.awaitTermination()
    assert len(set(found)) == len(found) == 4


def test_a_translator_that_crashes_ends_its_query_alone(
    world: Snowmelt, ask: Any, counted: Counted
) -> None:
    url = counted.url
    for name, source in {
        "deep": "let a = []; for (let i = 0; i < 20000; i++) a = [a]; return {body: a}",
        "kept": """
            globalThis.seen = globalThis.seen || [];
            seen.push(event.body.data[0][1]);
            Array.prototype.mine = Array.prototype.mine || seen.join();
            event.body.data[0][1] = seen.join() + '/' + Array.prototype.mine;
            return {body: event.body};
        """,
    }.items():
        world.sql(
            f"create function demo.public.{name}_ask(event object) returns object"
            f" language javascript as $$ {source} $$"
        )
        world.sql(
            f"create external function demo.public.{name}(t varchar) returns varchar"
            f" api_integration = here request_translator = demo.public.{name}_ask as '{url}/upper'"
        )
    with pytest.raises(Exception, match=r"request translator DEMO\.PUBLIC\.DEEP_ASK") as raised:
        ask("select deep('x')")
    assert re.search(r"its process crashed \(SIG\w+\)|nests too deeply", str(raised.value))
    # State that a script stored in an earlier query is gone.
    assert ask("select kept('secret')") == [("SECRET/SECRET",)]
    assert ask("select kept('other')") == [("OTHER/OTHER",)]


def test_only_headers_of_the_function_are_custom(
    world: Snowmelt, counted: Counted, ask: Any
) -> None:
    ask("select loud('x')")
    assert [name for name in counted.headers if name.startswith("sf-custom-")] == []


def test_a_rate_holds_for_all_partitions(world: Snowmelt, counted: Counted) -> None:
    clock = SystemClock()
    frame = world.sql("select rated(cast(id as string)) v from range(0, 40, 1, 40)", **_HERE)
    before = clock.monotonic()
    assert sum(row.v is not None for row in frame.collect()) == 40
    assert len(counted.calls) == 40
    # Ten requests may be sent immediately, and the others at ten per second.
    assert clock.monotonic() - before >= 2.5


def test_hosts_are_counted(spark: SparkSession) -> None:
    assert count_executor_hosts(spark) == 1


def test_a_condition_of_a_change_calls_its_function_once_for_each_row(
    world: Snowmelt, ask: Any, counted: Counted
) -> None:
    world.sql("create or replace table demo.public.changed (id number(9,0), a varchar, b varchar)")
    ask("insert into changed select id, concat('t', id), 'b' from range(40)")
    counted.clear()
    # The tokens are random, so each row has one answer only if its function is called once.
    update = "update changed set a = 'x', b = 'y' where token(a) < '8'"
    [(_, updated, _)] = ask(update)
    assert counted.rows == 40
    changed = "count_if(a = 'x'), count_if(b = 'y'), count_if(a = 'x' and b = 'y')"
    assert ask(f"select {changed} from changed") == [(updated, updated, updated)]

"""Kernels and evaluator give one answer, however the object is cut and whoever works on it."""

from __future__ import annotations

import io
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snowmelt.select.dialect import Dialect
from snowmelt.select.errors import ErrorBudget, SelectError
from snowmelt.select.execution.engine import EngineSettings
from snowmelt.select.execution.serializer import make_record_serializer
from snowmelt.select.formats.csv_reader import CsvReader
from snowmelt.select.local_query import PipeSource, open_local_select
from snowmelt.select.request import CsvInput, CsvOutput, JsonOutput, SelectRequest
from snowmelt.select.scalar.evaluator import EvaluationContext, evaluate, is_true
from snowmelt.select.sql.binder import bind_statement
from snowmelt.select.sql.bound_query import CsvFields
from snowmelt.select.sql.parser import parse_statement
from snowmelt.select.timestamps import Timestamp

VALUES = [
    *("", "0", "1", "-1", "007", "2.5", "-0.0", "36.10", "1e3", "5.", ".5", "1,5", "NaN", "inf"),
    *("9223372036854775807", "-9223372036854775808", "9223372036854775808", "12345678901234567.5"),
    *("abc", "ABC d", "a_c", "a%c", "x", "éa", "éé", "true", " 7", "7 ", "\t", "West Hill"),
    *("2018-01-02T03:04:05Z", "2018-12-31 23:59:59.25+05:30", "2019", "2019-02-30T00:00:00Z"),
    *('"q,x"', '"a""b"', '"""', 'm"id', '""'),
]

columns = st.sampled_from(["_1", "_2", "_3"])
literals = st.sampled_from(
    ["0", "1", "-2", "2.5", "9007199254740993", "'abc'", "'1'", "'2.50'", "'West%'", "''", "null"]
)


def _values(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    two = st.tuples(inner, inner)
    return st.one_of(
        inner.map(lambda a: f"cast({a} as int)"),
        inner.map(lambda a: f"cast({a} as float)"),
        inner.map(lambda a: f"cast({a} as decimal)"),
        inner.map(lambda a: f"cast({a} as string)"),
        inner.map(lambda a: f"lower({a})"),
        inner.map(lambda a: f"upper({a})"),
        inner.map(lambda a: f"char_length({a})"),
        inner.map(lambda a: f"(-{a})"),
        st.tuples(inner, st.integers(-1, 4), st.integers(0, 4)).map(
            lambda t: f"substring({t[0]}, {t[1]}, {t[2]})"
        ),
        st.tuples(inner, inner, st.sampled_from("+-*/%")).map(lambda t: f"({t[0]} {t[2]} {t[1]})"),
        two.map(lambda t: f"coalesce({t[0]}, {t[1]})"),
        two.map(lambda t: f"nullif({t[0]}, {t[1]})"),
        st.tuples(st.sampled_from(["year", "month", "day", "hour", "minute", "second"]), inner).map(
            lambda t: f"extract({t[0]} from to_timestamp({t[1]}))"
        ),
        two.map(lambda t: f"({t[0]} || {t[1]})"),
        inner.map(lambda a: f"trim({a})"),
        inner.map(lambda a: f"cast({a} as bool)"),
        columns.map(lambda a: f"case when {a} like '2018-%' then to_timestamp({a}) end"),
        columns.map(
            lambda a: f"date_add(month, 1, case when {a} like '2018-%' then to_timestamp({a}) end)"
        ),
    )


values = st.recursive(st.one_of(columns, columns, literals), _values, max_leaves=4)
comparisons = st.one_of(
    st.tuples(values, st.sampled_from(["=", "<>", "<", "<=", ">", ">="]), values).map(
        lambda t: f"{t[0]} {t[1]} {t[2]}"
    ),
    st.tuples(values, values, values).map(lambda t: f"{t[0]} between {t[1]} and {t[2]}"),
    st.tuples(values, st.lists(values, min_size=1, max_size=3)).map(
        lambda t: f"{t[0]} in ({', '.join(t[1])})"
    ),
    st.tuples(
        values,
        st.sampled_from(["a%", "%West%", "_b_", "%", "", "a!%c", "%a%c", "é%"])
        | st.sampled_from(["%[a-c]%", "[^a-z]%", "_[b_]_", "%[é0-9]", "![a]%", "[c-a]", "[a]+"]),
        st.sampled_from([" escape '!'", ""]),
    ).map(lambda t: f"{t[0]} like '{t[1]}'{t[2]}"),
    values.map(lambda a: f"{a} is null"),
    values.map(lambda a: f"{a} is not null"),
    st.tuples(columns, st.sampled_from(["<", ">"])).map(
        lambda t: f"to_timestamp({t[0]}) {t[1]} to_timestamp('2018-06-01T00:00:00Z')"
    ),
)
conditions = st.recursive(
    comparisons,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["and", "or"]), inner).map(
            lambda t: f"({t[0]} {t[1]} {t[2]})"
        ),
        inner.map(lambda a: f"not ({a})"),
    ),
    max_leaves=3,
)
cases = st.tuples(conditions, values, values).map(
    lambda t: f"case when {t[0]} then {t[1]} else {t[2]} end"
)
outputs = st.one_of(st.lists(st.one_of(values, cases), min_size=1, max_size=2), st.just(["*"]))
tables = st.lists(
    st.lists(st.sampled_from(VALUES), min_size=1, max_size=4).map(",".join), max_size=12
).map(lambda rows: "".join(row + "\n" for row in rows).encode())
dialects = st.sampled_from(list(Dialect))
NOW = Timestamp(0)


def by_rows(request: SelectRequest, data: bytes) -> tuple[bytes, str | None]:
    """Answer with the evaluator alone, record by record."""
    dialect = request.dialect
    reader = CsvReader(PipeSource(io.BytesIO(data)), cast("CsvInput", request.input), dialect)
    query = bind_statement(
        parse_statement(request.expression, dialect), dialect=dialect, fields=CsvFields(None)
    )
    writer = make_record_serializer(query, request.output)
    budget = ErrorBudget()
    scope = EvaluationContext(query, NOW)
    out = b""
    read = 0
    try:
        for block in reader.read_blocks():
            batch = reader.make_tokenizer(None)(block)
            for place in range(batch.row_count):
                row = batch.read_row(place)
                read += 1
                scope.begin_row()
                try:
                    if query.where is not None and not is_true(query.where, row, scope):
                        continue
                    if query.star:
                        shown = row.fields()
                        out += writer.serialize_record(
                            shown, [f"_{n + 1}" for n in range(len(shown))]
                        )
                    else:
                        found = [evaluate(each.expression, row, scope) for each in query.outputs]
                        out += writer.serialize_record(found)
                except SelectError as error:
                    where = f"record {read}, which begins at byte {batch.record_offset(place)}"
                    text = f"{error} (in {where})"
                    budget.count_dropped_row(SelectError(error.s3_code, text, fatal=error.fatal))
            if batch.failure is not None:
                raise batch.failure
    except SelectError as error:
        return out, str(error)
    return out, None


def engine(request: SelectRequest, data: bytes, **limits: int) -> tuple[bytes, str | None]:
    execution = open_local_select(request, io.BytesIO(data), settings=EngineSettings(**limits))
    out = b""
    try:
        for payload in execution.stream_payloads():
            out += payload
    except SelectError as error:
        return out, str(error)
    return out, None


def bound(sql: str, dialect: Dialect, output: CsvOutput | JsonOutput) -> SelectRequest | None:
    """Return a request, None where the dialect refuses the statement."""
    try:
        bind_statement(parse_statement(sql, dialect), dialect=dialect, fields=CsvFields(None))
    except SelectError:
        return None
    return SelectRequest(sql, CsvInput(), output, dialect=dialect)


@pytest.mark.slow
@settings(max_examples=settings().max_examples * 4, deadline=None)
@given(
    outputs,
    st.one_of(st.none(), conditions),
    tables,
    dialects,
    st.sampled_from([CsvOutput(), CsvOutput(quote_always=True), JsonOutput()]),
)
def test_the_plan_answers_as_the_evaluator_does(
    shown: Any, where: Any, data: bytes, dialect: Dialect, output: Any
) -> None:
    sql = f"select {', '.join(shown)} from s3object" + (f" where {where}" if where else "")
    request = bound(sql, dialect, output)
    if request is None:
        return
    wanted = by_rows(request, data)
    assert engine(request, data, threads=1) == wanted
    assert engine(request, data, threads=2, block_bytes=64, blocks_in_flight=2) == wanted


TIME = "case when _1 like '2018-%' then to_timestamp(_1) end"
FOLDS = st.sampled_from(
    [
        f"max({TIME}), min({TIME}), count({TIME})",
        f"{TIME}, count(*) from s3object group by {TIME}",
        f"distinct {TIME}, _2",
        f"_1 from s3object order by {TIME} desc, _2",
        "count(*), count(_1), sum(cast(_2 as float))",
        "min(_1), max(_3)",
        "sum(_1)",
        "avg(cast(_1 as int)), min(cast(_2 as float)), max(cast(_2 as float))",
        "_1, count(*) as n from s3object group by _1 order by n desc, 1",
        "_1, sum(cast(_2 as float)) from s3object group by _1 having count(*) > 1",
        "distinct _1, _2",
        "distinct *",
        "_1, _2 from s3object order by _2 desc, _1",
        "* from s3object order by _1 limit 3 offset 1",
        "_1 from s3object limit 4 offset 2",
    ]
)


@pytest.mark.slow
@settings(max_examples=settings().max_examples * 3 // 2, deadline=None)
@given(FOLDS, tables, dialects, st.integers(64, 200))
def test_folds_and_sorts_do_not_depend_on_where_blocks_end(
    body: str, data: bytes, dialect: Dialect, size: int
) -> None:
    sql = f"select {body}" if " from " in body else f"select {body} from s3object"
    request = bound(sql, dialect, CsvOutput())
    if request is None:
        return
    whole = engine(request, data, threads=1)
    assert engine(request, data, threads=2, block_bytes=size) == whole
    assert engine(request, data, threads=2, block_bytes=64, blocks_in_flight=1) == whole


@pytest.mark.parametrize("dialect", list(Dialect))
def test_an_error_comes_behind_the_records_before_it(dialect: Dialect) -> None:
    data = b"".join(b"%d\n" % (5 - n) for n in range(7))
    out, error = engine(SelectRequest("select 10 / int(_1) from s3object", dialect=dialect), data)
    if dialect is Dialect.CEPH_2020:
        assert (out, error) == (b"2,\n2,\n3,\n5,\n10,\n-10,\n", None)
    else:
        assert out == b"2\n2\n3\n5\n10\n"
        assert error is not None
        assert "division by zero" in error


@pytest.mark.parametrize("bad", [99, 100])
def test_the_first_engines_hundredth_dropped_row_ends_the_query(bad: int) -> None:
    data = b"1\n" * 3 + b"0\n" * bad + b"2\n"
    request = SelectRequest("select 10 / int(_1) from stdin;", dialect=Dialect.CEPH_2020)
    out, error = engine(request, data, block_bytes=64)
    assert out == b"10,\n" * 3 + (b"5,\n" if bad < 100 else b"")
    assert (error is None) == (bad < 100)


def test_a_false_left_side_hides_what_is_wrong_on_the_right() -> None:
    data = b"0,x\n1,2\n"
    sql = "select _2 from s3object where cast(_1 as int) = 1 and cast(_2 as int) = 2"
    assert engine(SelectRequest(sql), data) == (b"2\n", None)
    swapped = "select _2 from s3object where cast(_2 as int) = 2 and cast(_1 as int) = 1"
    out, error = engine(SelectRequest(swapped), data)
    assert out == b""
    assert "'x'" in str(error)

"""JSON lines by kernels say what the decoder and the evaluator say, record by record."""

from __future__ import annotations

import io
import json
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from snowmelt.json.exact import RECORD_DECODE_ERRORS, decode_record
from snowmelt.json.scanner import encode_field_names, scan_json_lines
from snowmelt.select.dialect import Dialect
from snowmelt.select.errors import ErrorBudget, SelectError
from snowmelt.select.execution.engine import EngineSettings
from snowmelt.select.execution.serializer import make_record_serializer
from snowmelt.select.formats.json_lines import JsonRow
from snowmelt.select.local_query import open_local_select
from snowmelt.select.request import CsvOutput, JsonInput, JsonOutput, SelectRequest
from snowmelt.select.scalar.evaluator import EvaluationContext, evaluate, is_true
from snowmelt.select.sql.binder import bind_statement
from snowmelt.select.sql.bound_query import JsonFields
from snowmelt.select.sql.parser import parse_statement
from snowmelt.select.timestamps import Timestamp

SCALARS = [
    *("0", "1", "-1", "-0", "7", "12", "2.5", "-0.0", "36.10", "1e3", "2.5E-1", "1e999", "0.1"),
    *("9223372036854775807", "-9223372036854775808", "9223372036854775808", "9007199254740993"),
    *("123456789012345.75", "0.100000000000000000000000000000000000000001", "true", "false"),
    *("null", '""', '"abc"', '"West Hill"', '"7"', '" 2.50 "', '"a\\"b"', '"\\u00e9"', '"é"'),
    *(
        '"\\ud83d\\ude00"',
        '"cut \\ud83d"',
        '"\\udc00x"',
        '"a_c"',
        '"2018-01-02T03:04:05Z"',
        '"true"',
        "[]",
        "[1, 2]",
        "{}",
    ),
    *('{"b": 1}', '{"b": "x", "B": 2}', '{ "b" : {"a":null} }', '{"b": 2.50, "c": [{"a": 1}]}'),
]
NAMES = ["a", "A", "b", "k", "\u212a", "a\\u0062", "\\u0061", "_1", "“"]
scalars = st.sampled_from(SCALARS)
# Most values of a name are of one sort, as in real files.
pools = st.one_of(
    st.just(SCALARS),
    st.lists(scalars, min_size=1, max_size=3),
    st.sampled_from([["1", "20", "null"], ["1", "2.5", "0.10"], ['"x"', '"West"'], ["true"]]),
)


@st.composite
def documents(draw: st.DrawFn) -> bytes:
    """Return lines of objects, few of them strange."""
    pool = draw(st.fixed_dictionaries({"a": pools, "b": pools}))
    lines = []
    for _ in range(draw(st.integers(0, 8))):
        fields = [(name, draw(st.sampled_from(pool[name]))) for name in ("a", "b")]
        if draw(st.integers(0, 3)) == 0:
            fields = draw(st.lists(st.tuples(st.sampled_from(NAMES), scalars), max_size=3))
        blank = draw(st.sampled_from(["", " ", "\t", "\r"]))
        inside = ",".join(f'{blank}"{name}"{blank}:{value}' for name, value in fields)
        lines.append("{" + inside + "}" + blank)
        if draw(st.integers(0, 15)) == 0:
            lines.append(draw(st.sampled_from(["", "7", "[1]", '{"a":1} {"a":2}', '{"a":', "{]"])))
    return "".join(line + "\n" for line in lines).encode()


COLUMNS = st.sampled_from(["s.a", "s.A", 's."a"', "s.b", "s.k", "s.b.a", "s.b.b", "s.a[0]", "s._1"])
VALUES = st.one_of(
    COLUMNS,
    COLUMNS,
    st.sampled_from(["1", "2.5", "0.1", "9007199254740993", "'abc'", "'2.50'", "null", "true"]),
    st.tuples(COLUMNS, st.sampled_from(["int", "float", "decimal", "string"])).map(
        lambda t: f"cast({t[0]} as {t[1]})"
    ),
    st.tuples(COLUMNS, st.sampled_from("+-*/%")).map(lambda t: f"({t[0]} {t[1]} 2)"),
    st.tuples(COLUMNS, COLUMNS).map(lambda t: f"coalesce({t[0]}, {t[1]})"),
    st.tuples(COLUMNS, COLUMNS).map(lambda t: f"nullif({t[0]}, {t[1]})"),
    COLUMNS.map(lambda a: f"lower({a})"),
    COLUMNS.map(lambda a: f"case when {a} is null then {a} else s.b end"),
)
COMPARISONS = st.one_of(
    st.tuples(VALUES, st.sampled_from(["=", "<>", "<", ">="]), VALUES).map(" ".join),
    st.tuples(COLUMNS, st.sampled_from(["a%", "%West%", "x"])).map(
        lambda t: f"{t[0]} like '{t[1]}'"
    ),
    st.tuples(VALUES, VALUES).map(lambda t: f"{t[0]} in ({t[1]}, 1, 'x')"),
    COLUMNS.map(lambda a: f"{a} is null"),
    COLUMNS.map(lambda a: f"{a} is not missing"),
)
CONDITIONS = st.one_of(
    st.none(),
    COMPARISONS,
    st.tuples(COMPARISONS, st.sampled_from([" and ", " or "]), COMPARISONS).map("".join),
)
OUTPUTS = st.one_of(st.lists(VALUES, min_size=1, max_size=2).map(", ".join), st.just("*"))
DIALECTS = st.sampled_from(list(Dialect))
FORMS = st.sampled_from([JsonOutput(), CsvOutput()])


def values_of(data: bytes) -> tuple[list[object], str | None]:
    """Decode line by line; a line that is not one value may be several."""
    values: list[object] = []
    at = 0
    for line in data.split(b"\n"):
        if line == b'{"a":1} {"a":2}':
            values += [{"a": 1}, {"a": 2}]
        elif line.strip():
            try:
                values.append(decode_record(memoryview(line)))
            except RECORD_DECODE_ERRORS:
                return values, f"byte {at}"
        at += len(line) + 1
    return values, None


def by_rows(request: SelectRequest, data: bytes) -> tuple[bytes, str | None]:
    """Answer with decoder and evaluator alone."""
    dialect = request.dialect
    query = bind_statement(
        parse_statement(request.expression, dialect), dialect=dialect, fields=JsonFields()
    )
    writer = make_record_serializer(query, request.output)
    budget = ErrorBudget()
    scope = EvaluationContext(query, Timestamp(0))
    out = b""
    values, bad = values_of(data)
    if dialect.is_ceph:
        # There each element of an array is a record.
        values = [each for value in values for each in (value if type(value) is list else [value])]
    for read, value in enumerate(values, 1):
        row = JsonRow(value, dialect.is_ceph)
        scope.begin_row()
        try:
            if query.where is not None and not is_true(query.where, row, scope):
                continue
            if query.star:
                out += writer.serialize_record(row.fields(), row.field_names())
            else:
                out += writer.serialize_record(
                    [evaluate(each.expression, row, scope) for each in query.outputs]
                )
        except SelectError as error:
            try:
                text = f"{error} (in record {read}"
                budget.count_dropped_row(SelectError(error.s3_code, text, fatal=error.fatal))
            except SelectError as last:
                return out, str(last)
    return out, bad


def engine(request: SelectRequest, data: bytes, **limits: int) -> tuple[bytes, str | None]:
    execution = open_local_select(request, io.BytesIO(data), settings=EngineSettings(**limits))
    out = b""
    try:
        for payload in execution.stream_payloads():
            out += payload
    except SelectError as error:
        return out, str(error)
    return out, None


def agree(found: tuple[bytes, str | None], wanted: tuple[bytes, str | None]) -> None:
    assert found[0] == wanted[0]
    assert (found[1] is None) == (wanted[1] is None)
    assert str(wanted[1]) in str(found[1])


@pytest.mark.slow
@settings(max_examples=settings().max_examples * 3, deadline=None)
@given(OUTPUTS, CONDITIONS, documents(), DIALECTS, FORMS)
def test_the_plan_answers_as_the_evaluator_does(
    shown: str, where: str | None, data: bytes, dialect: Dialect, output: JsonOutput | CsvOutput
) -> None:
    sql = f"select {shown} from s3object s" + (f" where {where}" if where else "")
    request = SelectRequest(sql, JsonInput(lines=True), output, dialect=dialect)
    try:
        bind_statement(parse_statement(sql, dialect), dialect=dialect, fields=JsonFields())
    except SelectError:
        return
    wanted = by_rows(request, data)
    agree(engine(request, data, threads=1), wanted)
    agree(engine(request, data, threads=2, block_bytes=64, blocks_in_flight=2), wanted)


FOLDS = [
    "count(*), count(s.a), count(s.b.a) from s3object s",
    "sum(s.a) from s3object s",
    "sum(cast(s.a as float)), min(s.b), max(s.b) from s3object s",
    "s.a, count(*) as n from s3object s group by s.a",
    "distinct s.a, s.b from s3object s",
    "s.a, s.b from s3object s order by s.b desc, s.a",
]


# A number behind a boolean, in a block of its own.
MIXED = b'{"a":0,"b":true}\n{"a":0,"b":true}\n{ "a" :0, "b" :9007199254740993} \n'


@pytest.mark.slow
@settings(max_examples=settings().max_examples * 3 // 2, deadline=None)
@given(st.sampled_from(FOLDS), documents(), st.sampled_from([Dialect.AWS, Dialect.CEPH]), FORMS)
@example(FOLDS[2], MIXED, Dialect.AWS, JsonOutput())
@example("s.a, min(s.b) from s3object s group by s.a", MIXED, Dialect.AWS, JsonOutput())
def test_folds_do_not_depend_on_where_blocks_end(
    body: Any, data: bytes, dialect: Any, output: JsonOutput | CsvOutput
) -> None:
    request = SelectRequest(f"select {body}", JsonInput(lines=True), output, dialect=dialect)
    try:
        bind_statement(
            parse_statement(request.expression, dialect), dialect=dialect, fields=JsonFields()
        )
    except SelectError:
        return
    # FROM with a path goes by the decoder alone.
    slow = SelectRequest(
        request.expression.replace("s3object s", "s3object[*] s"),
        JsonInput(lines=False),
        output,
        dialect=dialect,
    )
    lines = [
        line for line in data.split(b"\n") if line.startswith(b"{") and line.strip().endswith(b"}")
    ]
    text = b"".join(line + b"\n" for line in lines)
    whole = engine(request, text, threads=1)
    assert engine(request, text, threads=2, block_bytes=64) == whole
    assert engine(slow, text, threads=1) == whole


PIECES = st.sampled_from(
    [
        *('{"a":', "{", "}", "[", "]", ",", ":", '"', '"a"', "1", "0", "-", ".", "e5", "E", "+"),
        *(" ", "\t", "\r", "\n", "\x0b", "\x1f", "\x00", "\x7f", "true", "false", "null", "nul"),
        *("\\", '\\"', "\\u", "00e9", "d800", "DC00", "\\u0061", "é", "\u212a", "99999999999"),
    ]
)


@pytest.mark.slow
@settings(max_examples=settings().max_examples * 15, deadline=None)
@given(st.lists(PIECES, max_size=8).map("".join), st.binary(max_size=2))
@example("9e99999999999999999999", b"")
@example("9e-99999999999999999999", b"")
def test_the_kernels_take_nothing_that_the_decoder_refuses(inside: Any, strange: bytes) -> None:
    for text in (inside.encode(), b'{"a":' + inside.encode() + b"}", b'{"' + strange + b'":1}'):
        data = text + b"\n"
        try:
            data.decode()
        except UnicodeDecodeError:
            continue
        padded = io.BytesIO(data)
        request = SelectRequest("select count(*) from s3object", JsonInput(lines=True))
        values = 0
        wrong = False
        for line in data.split(b"\n"):
            if line.strip():
                try:
                    decode_record(memoryview(line))
                    values += 1
                except RECORD_DECODE_ERRORS:
                    wrong = True
        if taken(data) is None:
            continue
        assert not wrong
        assert taken(data) == values
        assert b"".join(open_local_select(request, padded).stream_payloads()) == b"%d\n" % values


def taken(data: bytes) -> int | None:
    """Return how many records the kernels find, None where they leave the text alone."""
    padded = np.frombuffer(bytearray(data + bytes(64)), np.uint8)
    read = scan_json_lines(padded, 0, len(data), encode_field_names([(b"a", True)]))
    return None if read is None else read[0].shape[1]


@pytest.mark.parametrize("size", [64, 1 << 20])
def test_a_value_that_reaches_into_the_next_line_is_an_error(size: int) -> None:
    data = b'{"a":1}\n' * 20 + b'{"a":\n2}\n'
    request = SelectRequest("select s.a from s3object s", JsonInput(lines=True))
    out, error = engine(request, data, block_bytes=size)
    assert out == b"1\n" * 20
    assert "byte 160" in str(error)


def test_many_lines_are_taken_by_the_kernels() -> None:
    record = {"id": 7, "name": 'café "x"', "tags": ["a", {"b": None}], "fare": -1.5, "ok": True}
    data = json.dumps(record).encode() + b"\n"
    assert taken(data * 1000) == 1000


@pytest.mark.parametrize(
    ("written", "read"),
    [
        (rb'"cut \ud83d"', "cut \ufffd"),
        (rb'"\uDe00\ud83d\n"', "\ufffd\ufffd\n"),
        (rb'["\\ud83d", "\ud83d\ude00 \ud83d"]', ["\\ud83d", "\U0001f600 \ufffd"]),
        (rb'{"\ud83d": 1.50}', {"\ufffd": Decimal("1.50")}),
    ],
)
def test_half_of_a_surrogate_pair_is_the_replacement_character(
    written: bytes, read: dict[str, Decimal] | list[str] | str
) -> None:
    assert decode_record(memoryview(written)) == read


def test_what_is_no_json_stays_so_beside_half_of_a_pair() -> None:
    with pytest.raises(RECORD_DECODE_ERRORS):
        decode_record(memoryview(rb'{"a": "\ud83d"'))


def test_a_nested_value_as_text_is_what_the_output_shows() -> None:
    text = b'{"a":[0.12345678901234567890123,12345678901234567890123,1e400,"\xc3\xa9",null],"b":{"c":1.10}}\n'
    for column in ("s.a", "s.b"):
        shown, cast, joined = (
            b"".join(
                open_local_select(
                    SelectRequest(f"select {form} from s3object s", JsonInput(lines=True)),
                    io.BytesIO(text),
                ).stream_payloads()
            )
            for form in (column, f"cast({column} as string)", f"'' || {column}")
        )
        assert cast == joined == shown

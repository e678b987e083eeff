"""The engine in its Ceph dialects and an evaluator of its own kind give one answer at random."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snowmelt.select.dialect import Dialect
from snowmelt.select.errors import SelectError
from snowmelt.select.execution.engine import EngineSettings
from snowmelt.select.local_query import open_local_select
from snowmelt.select.request import CsvInput, CsvOutput, JsonInput, JsonOutput, SelectRequest
from support import ceph_reference as ref

CSV = CsvInput(escape=b"\\", comment=b"")
SMALL = EngineSettings(threads=2, block_bytes=64, blocks_in_flight=2)
DIALECTS = st.sampled_from([ref.NEW, ref.OLD])
MANY = settings().max_examples * 3

FIELDS = [
    *("", "0", "1", "-7", "12", "007", "+5", "2.5", "0.1", "-0.0", ".5", "1e3", "0x10", "inf"),
    *("9223372036854775807", "9223372036854775808", "9007199254740993", "1e400", "12abc", " 7"),
    *("7 ", "abc", "ABC d", "a_c", "a%c", "yz", "xy9", "a[b", "a.c", "true", "x", "éa"),
    *("1999:10:10-12:23:44", "2000-02-29 00:00:00", "19991231235959", "2001-13-01 00:00:00"),
    *("2007-09-17T17:56:05Z", "2008-01-31T00:00:00Z", "2007-02-30T00:00:00Z"),
]

PATTERNS = [
    "a%",
    "%[a-c]%",
    "[^0-9]%",
    "_[b_]_",
    "%",
    "a\\_c",
    "%[x-z]",
    "[z-a]",
    "[a]+",
    "a[[]b",
    "%[yz][yz]",
    "a$%c",
    "a.c",
    "[^a",
    "%c",
    "__",
]

columns = st.integers(0, 3).map(ref.column)
integers = st.sampled_from([0, 1, 2, 3, 7, 10, 2**53 + 1, 2**63 - 1]).map(ref.literal)
floats = st.sampled_from([0.1, 0.2, 2.5, 3.14, 1e300]).map(ref.literal)
texts = st.sampled_from(["", "a", "abc", "5", "Z", "2.5"]).map(ref.literal)
leaves = st.one_of(columns, columns, columns, integers, floats, texts, st.just(ref.literal(None)))
TIMES = {ref.NEW: "to_timestamp", ref.OLD: "timestamp"}


def grown(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Return trees made of smaller ones."""
    numbers = st.one_of(
        inner, inner.map(lambda a: ref.call("int", a)), inner.map(lambda a: ref.call("float", a))
    )
    moments = st.one_of(
        inner.map(lambda a: ref.call("timestamp", a)),
        inner.map(lambda a: ref.call("to_timestamp", a)),
    )
    signs = st.sampled_from("+-*/%^")
    compared = st.builds(
        ref.comparison,
        st.sampled_from(["=", "==", "<>", "!=", "<", "<=", ">", ">="]),
        numbers,
        inner,
    )
    parts = st.sampled_from(["year", "month", "day", "week", "hour", "minute", "second"])
    added = st.sampled_from(["year", "month", "day"])
    patterns = st.sampled_from(PATTERNS)
    return st.one_of(
        inner.map(lambda a: ref.call("int", a)),
        inner.map(lambda a: ref.call("float", a)),
        inner.map(lambda a: ref.call("string", a)),
        st.sampled_from(["lower", "upper", "trim", "char_length"]).flatmap(
            lambda name: inner.map(lambda a: ref.call(name, a))
        ),
        st.builds(ref.call, st.sampled_from(["substring", "substr"]), inner, integers, integers),
        st.builds(ref.chain, numbers, st.lists(st.tuples(signs, numbers), min_size=1, max_size=3)),
        compared,
        st.builds(ref.like, inner, patterns, st.sampled_from([None, "$"])),
        st.builds(ref.between, numbers, inner, inner),
        st.builds(ref.within, inner, st.lists(inner, min_size=1, max_size=3)),
        st.builds(ref.null, inner, negated=st.booleans()),
        st.builds(ref.negation, compared),
        st.builds(
            ref.logic,
            compared,
            st.lists(st.tuples(st.sampled_from(["and", "or"]), compared), min_size=1, max_size=3),
        ),
        st.builds(ref.case, compared, inner, inner),
        st.builds(ref.coalesce, inner, inner),
        st.builds(ref.nullif, inner, inner),
        st.builds(lambda p, m: ref.dated("extract", p, m), parts, moments),
        st.builds(lambda f, p, n, m: ref.dated(f, p, n, m), st.sampled_from(["dateadd", "date_add"]),
                  added, integers.filter(lambda n: len(n.sql) == 1), moments),
        st.builds(lambda f, p, a, b: ref.dated(f, p, a, b), st.sampled_from(["datediff", "date_diff"]),
                  added, moments, moments),
    )  # fmt: skip


trees = st.recursive(leaves, grown, max_leaves=5)
conditions = st.one_of(
    st.none(), trees.filter(lambda tree: tree.sql.startswith("(") and " case" not in tree.sql)
)
tables = st.lists(
    st.lists(st.sampled_from(FIELDS), min_size=1, max_size=5).map(",".join), max_size=10
).map(lambda lines: "".join(line + "\n" for line in lines))


def answered(statement: str, text: str, dialect: str, **options: Any) -> tuple[str, bool]:
    """Return the engine's output, and whether it ends with an error."""
    request = SelectRequest(
        statement,
        options.get("source", CSV),
        options.get("output", CsvOutput()),
        dialect=Dialect(dialect),
    )
    execution = open_local_select(
        request,
        io.BytesIO(text.encode()),
        settings=options.get("limits", EngineSettings(threads=1)),
    )
    out = b""
    try:
        for payload in execution.stream_payloads():
            out += payload
    except SelectError:
        return out.decode(), True
    return out.decode(), False


@pytest.mark.slow
@settings(max_examples=MANY, deadline=None)
@given(st.lists(trees, min_size=1, max_size=2), conditions, tables, DIALECTS, st.booleans())
def test_values_and_conditions_are_what_the_rules_of_ceph_make_of_them(
    values: list[Any], where: Any, text: str, dialect: str, small: bool
) -> None:
    clause = f" where {where.sql}" if where else ""
    statement = f"select {', '.join(each.sql for each in values)} from stdin{clause};"
    rows, _ = ref.csv_rows(text, dialect)
    limits = SMALL if small else EngineSettings(threads=1)
    expected = ref.selected(values, where, rows, dialect)
    assert answered(statement, text, dialect, limits=limits) == expected, statement


@pytest.mark.slow
@settings(max_examples=MANY // 2, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["count", "sum", "min", "max", "avg"]), trees),
        min_size=1,
        max_size=3,
    ),
    conditions,
    tables,
    DIALECTS,
    st.sampled_from([CsvOutput(), JsonOutput()]),
)
def test_aggregates_are_what_the_rules_of_ceph_make_of_them(
    aggregates: list[Any], where: Any, text: str, dialect: str, output: Any
) -> None:
    calls = ", ".join(f"{name}({argument.sql})" for name, argument in aggregates)
    clause = f" where {where.sql}" if where else ""
    # A literal counts rows.
    counted = [
        (name, None if name == "count" and argument.sql[0].isdigit() else argument)
        for name, argument in aggregates
    ]
    if dialect == ref.OLD:  # whatever the argument
        counted = [(name, None if name == "count" else argument) for name, argument in counted]
    rows, _ = ref.csv_rows(text, dialect)
    expected = ref.folded(counted, where, rows, dialect)
    statement = f"select {calls} from stdin{clause};"
    for limits in (EngineSettings(threads=1), SMALL):
        found = answered(statement, text, dialect, limits=limits, output=output)
        assert found == expected, statement


@pytest.mark.slow
@settings(max_examples=MANY, deadline=None)
@given(st.text('ab1, "\\\n\r', max_size=40), DIALECTS)
def test_objects_are_cut_as_the_rules_of_ceph_say(text: str, dialect: str) -> None:
    rows, is_open = ref.csv_rows(text, dialect)
    after = ",\n" if dialect == ref.OLD else "\n"
    every = "".join(",".join(row) + after for row in rows), is_open
    assert answered("select * from stdin;", text, dialect) == every
    fields = [ref.column(place) for place in (0, 2)]
    expected, ends = ref.selected(fields, None, rows, dialect)
    found = answered("select _1, _3 from stdin;", text, dialect, limits=SMALL)
    assert found == (expected, ends or is_open)


names = st.sampled_from(["a", "A", "b", "items", "Items"])
documents = st.recursive(
    st.integers(-5, 99) | st.sampled_from(["x", "yz"]) | st.none(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(names, inner, max_size=3).filter(
            # Which of two spellings counts is refused.
            lambda record: len({name.lower() for name in record}) == len(record)
        )
    ),
    max_leaves=8,
)


@settings(max_examples=MANY, deadline=None)
@given(documents, st.lists(names, max_size=3), st.booleans(), DIALECTS)
def test_rows_of_json_are_the_elements_that_from_leads_to(
    document: Any, path: list[Any], lines: bool, dialect: str
) -> None:
    rows = ref.json_rows(document, path)
    text = json.dumps(document) + "\n"
    source = JsonInput(lines=lines)
    table = ".".join(["s3object[*]", *path])
    count = answered(f"select count(*) from {table}", text, dialect, source=source)
    assert count == (f"{len(rows)}" + "," * (dialect == ref.OLD), False)
    records = [row for row in rows if isinstance(row, dict)]
    if len(records) == len(rows):
        shown = [ref.json_rows(row, ["a"]) for row in rows]
        plain = all(not isinstance(_field(row, "a"), list | dict) for row in rows)
        expected = "".join(json.dumps({"a": value[0]} if value else {}) + "\n" for value in shown)
        found = answered(
            f"select _1.a from {table}", text, dialect, source=source, output=JsonOutput()
        )
        assert not plain or found == (expected.replace(" ", ""), False)


def _field(record: Any, name: str) -> Any:
    return next((value for key, value in record.items() if key.lower() == name), None)

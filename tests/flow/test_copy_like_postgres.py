"""COPY's functions and templates compared with PostgreSQL's, if both document the same result."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from decimal import Decimal
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from snowmelt.errors import InvalidValue, LoadRefused
from snowmelt.load.expressions.datetime_templates import PATTERNS, DatetimeTemplateReader
from snowmelt.load.expressions.evaluator import ExpressionEvaluator
from snowmelt.load.task import ComputedExpression
from snowmelt.schema.iceberg_table_form import native_schema
from snowmelt.schema.types import Column, LogicalType, TableSchema

if TYPE_CHECKING:
    from random import Random

psycopg = pytest.importorskip("psycopg")
pytestmark = pytest.mark.postgres

TEXT: dict[str, Any] = {"kind": LogicalType.TEXT, "length": 1000, "byte_length": 4000}
WHOLE = {"kind": LogicalType.FIXED, "precision": 18, "scale": 0}
STARTED = dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC)
FIRST, LAST = dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31, 23, 59, 59)
MOMENTS = st.datetimes(FIRST, LAST) | st.builds(
    dt.datetime,
    st.integers(1990, 2030),
    st.sampled_from([1, 2, 12]),
    st.sampled_from([1, 2, 7, 28]),
    st.sampled_from([0, 11, 12, 13, 23]),
    st.sampled_from([0, 59]),
    st.sampled_from([0, 59]),
)
# HH is a 12-hour value in PostgreSQL, and a 24-hour value in Vertica.
WRITTEN = sorted(PATTERNS - {"HH"})
ORDINALS = ("DD", "MM", "YYYY", "DDD", "Q", "W", "SS", "CC", "HH12", "HH24", "J", "SSSS", "IW", "Y")
BETWEEN = (" ", "-", "/", ":", ".", ", ", '"a Day of Q"', "'")


@pytest.fixture(scope="module")
def server(postgres: str) -> Iterator[Any]:
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute("SET TIME ZONE 'UTC'")
        yield connection


def calculate(sql: str, schema: TableSchema, rows: pa.Table, column: dict[str, Any]) -> list[Any]:
    target = Column("X", ordinal=1, **column)
    found = ExpressionEvaluator(
        schema, [(ComputedExpression("X", sql), target)], STARTED
    ).evaluate_rows(rows)
    assert isinstance(found, list), found
    return cast("list[Any]", found[0].to_pylist())


@st.composite
def templates(draw: st.DrawFn) -> str:
    parts = []
    for _ in range(draw(st.integers(1, 5))):
        pattern = draw(st.sampled_from(WRITTEN))
        fill = draw(st.sampled_from(["", "", "", "FM"]))
        ordinal = draw(st.sampled_from(["", "", "TH", "th"])) if pattern in ORDINALS else ""
        parts += [fill + pattern + ordinal, draw(st.sampled_from(BETWEEN))]
    return "".join(parts)


@settings(max_examples=max(cast("settings", settings.default).max_examples // 2, 20))
@given(templates(), st.lists(MOMENTS, min_size=20, max_size=20))
def test_to_char_writes_what_postgresql_writes(
    server: Any, template: str, moments: list[Any]
) -> None:
    schema = TableSchema(1, (Column("T", LogicalType.TIMESTAMP_NTZ, 1, scale=6),))
    rows = pa.table([pa.array(moments, pa.timestamp("us"))], schema=native_schema(schema))
    quoted = template.replace("'", "''")
    ours = calculate(f"TO_CHAR(t, '{quoted}')", schema, rows, TEXT)
    theirs = server.execute(
        "SELECT to_char(t, %s) FROM unnest(%s::timestamp[]) WITH ORDINALITY AS u(t, n) ORDER BY n",
        (template, moments),
    ).fetchall()
    assert ours == [text for (text,) in theirs]


# Patterns that can be parsed, and separators between them.
DATES = ("YYYY-MM-DD", "YYYYMMDD", "DD.MM.YY", "DD MON YYYY", "MONTH DD, YYYY", "YYYY-DDD", "J",
         "DY, DD/MM/YYYY", "RM YYYY", "FMDD/FMMM/YYYY", "Day DDth MON YYYY", "MM/YYYY")  # fmt: skip
TIMES = ("", "HH24:MI:SS", "HH24MISS", "HH12:MI AM", "FMHH12 p.m.", "SSSS", "HH24:MI:SS.US",
         "MI:SS.MS", '"at" HH24"h"MI')  # fmt: skip


@settings(
    max_examples=max(cast("settings", settings.default).max_examples, 60), phases=[Phase.generate]
)
@given(
    st.sampled_from(DATES),
    st.sampled_from([" ", "  ", "/", '"T"']),
    st.sampled_from(TIMES),
    st.lists(MOMENTS, min_size=5, max_size=5),
    st.randoms(use_true_random=False),
)
def test_what_is_read_by_a_template_is_what_postgresql_reads(
    server: Any, date: Any, between: Any, time: Any, moments: list[Any], rng: Random
) -> None:
    template = f"{date}{between}{time}" if time else date
    reader = DatetimeTemplateReader(template, needs_date=True)
    written = server.execute(
        "SELECT to_char(t, %s) FROM unnest(%s::timestamp[]) AS u(t)", (template, moments)
    ).fetchall()
    whole = "YYYY" in date or date == "J"
    if whole:
        # Formatted values are parsed again.
        for (text,) in written:
            reader.read(text)
    for text in [damaged(text, rng) for (text,) in written]:
        try:
            ours = reader.read(text)
        except InvalidValue:
            continue
        [theirs] = server.execute(
            "SELECT to_char(to_timestamp(%s, %s), 'YYYY-MM-DD\"T\"HH24:MI:SS.US')",
            (text, template),
        ).fetchone()
        micros = ours._replace(fraction=ours.fraction.ljust(6, "0"))
        assert micros.iso_timestamp == theirs, (template, text)


def damaged(text: str, rng: Random) -> str:
    """Change, duplicate or omit a character of a text, half of the time."""
    if not text or rng.random() < 0.5:
        return text
    at = rng.randrange(len(text))
    return text[:at] + rng.choice(["", text[at] * 2, rng.choice("0159 -a")]) + text[at + 1 :]


SCHEMA = TableSchema(
    1,
    tuple(
        Column(name, ordinal=n, **kind)
        for n, (name, kind) in enumerate(
            {
                "S": TEXT,
                "T": TEXT,
                "I": WHOLE,
                "J": WHOLE,
                "N": {"kind": LogicalType.FIXED, "precision": 12, "scale": 3},
                "M": {"kind": LogicalType.FIXED, "precision": 9, "scale": 2},
                "D": {"kind": LogicalType.DATE},
                "E": {"kind": LogicalType.DATE},
                "U": {"kind": LogicalType.TIMESTAMP_NTZ, "scale": 6},
            }.items(),
            1,
        )
    ),
)
TYPES = ("text", "text", "int", "int", "numeric(12,3)", "numeric(9,2)", "date", "date", "timestamp")
SAME = [
    # Texts of any characters
    *("s || t", "LENGTH(s)", "CHAR_LENGTH(s)", "OCTET_LENGTH(s)", "BIT_LENGTH(s)"),
    *("SUBSTR(s, i)", "SUBSTR(s, i, j)", "SUBSTRING(s FROM i FOR j)", "LEFT(s, i)", "RIGHT(s, i)"),
    *("REPLACE(s, t, 'x')", "REPLACE(s, 'a', t)", "REPEAT(s, i)", "MD5(s)"),
    *("BTRIM(s)", "LTRIM(s)", "RTRIM(s)", "BTRIM(s, 'aB ')", "TRIM(LEADING 'a' FROM s)"),
    *("TRANSLATE(s, 'aB', 'c')", "SPLIT_PART(s, 'a', i)", "TO_HEX(i)", "TO_HEX(-j::bigint)"),
    *("NULLIF(s, t)", "COALESCE(NULLIF(s, t), 'same')", "CHR(64 + i)"),
    "CASE WHEN s LIKE '%a_' THEN 'yes' WHEN s < t THEN 'less' ELSE 'no' END",
    "CASE WHEN s LIKE '%\\%%' OR t LIKE '%x_' ESCAPE 'x' THEN 'yes' ELSE 'no' END",
    "CASE WHEN s = t OR s IN ('a', 'b') THEN 1 WHEN s BETWEEN 'a' AND 'b' THEN 2 ELSE 3 END",
    # Numbers
    *("i + j * 2 - 1", "i % j", "-i % j", "MOD(-i, j)", "ABS(-i)", "SIGN(n)::int", "i # j"),
    *("i & j", "i | j", "~i", "(i << 2)", "i >> 1", "n + m", "n - m", "n * m", "ABS(n)"),
    *("ROUND(n, 2)::numeric(12,2)", "ROUND(n)::bigint", "TRUNC(n, 1)::numeric(12,1)"),
    *("CEIL(n)::bigint", "FLOOR(n)::bigint", "MOD(n, m + 1000)::numeric(12,3)", "n::bigint"),
    *("(n / 7)::numeric(20,6)", "(n / (m + 1000000))::numeric(20,6)", "n::numeric(10,1)"),
    *("CASE WHEN n > m THEN 1 WHEN n = i THEN 2 ELSE 3 END", "i::numeric(10,2)"),
    *("(i::text || '.' || j::text)::numeric(10,2)", "(' ' || i::text || ' ')::bigint"),
    # Dates
    *("d + i::int", "d - i::int", "d - e", "u + INTERVAL '36 hours'", "d::timestamp", "u::date"),
    *("u::time", "u::text", "d::text", "DATE_TRUNC('month', u)", "DATE_TRUNC('quarter', u)"),
    *("DATE_TRUNC('hour', u)", "DATE_TRUNC('second', u)", "CASE WHEN d < u THEN 1 ELSE 2 END"),
    *(
        f"EXTRACT({part} FROM u)::numeric(20,6)"
        for part in ("year", "quarter", "month", "day", "hour", "minute", "second", "dow", "doy")
    ),
    "FLOOR(DATE_PART('epoch', u))::bigint",
    *(f"DATE_PART('{part}', u)::numeric(26,3)" for part in ("isodow", "isoyear", "milliseconds")),
]
LETTERS = st.text("aBé%_\\, x", max_size=8)
ROWS = st.tuples(
    LETTERS,
    LETTERS,
    st.integers(1, 9),
    st.integers(1, 9),
    st.integers(-999_999, 999_999).map(lambda n: Decimal(n) / 1000),
    st.integers(-99_999, 99_999).map(lambda n: Decimal(n) / 100),
    st.dates(dt.date(1, 1, 20), dt.date(9999, 12, 1)),
    st.dates(dt.date(1900, 1, 1), dt.date(2100, 1, 1)),
    st.datetimes(dt.datetime(1000, 1, 1), dt.datetime(9999, 1, 1)),
)


@settings(max_examples=2, phases=[Phase.generate])
@given(st.lists(ROWS, min_size=60, max_size=100))
def test_functions_operators_and_casts_give_what_postgresql_gives(
    server: Any, rows: list[Any]
) -> None:
    columns = list(zip(*rows, strict=True))
    fields = native_schema(SCHEMA)
    table = pa.table(
        [pa.array(values, field.type) for values, field in zip(columns, fields, strict=True)],
        schema=fields,
    )
    values = ", ".join(f"%s::{kind}[]" for kind in TYPES)
    names = ", ".join(column.name.lower() for column in SCHEMA.columns)
    items = [(ComputedExpression("X", sql), Column("X", ordinal=1, **TEXT)) for sql in SAME]
    found = ExpressionEvaluator(SCHEMA, items, STARTED).evaluate_rows(table)
    assert isinstance(found, list), found
    theirs = server.execute(
        # PostgreSQL's functions with positions require 32-bit integers.
        f"SELECT {', '.join(f'({sql})::text' for sql in SAME).replace('%', '%%')} "
        f"FROM unnest({values}) WITH ORDINALITY AS v({names}, place) ORDER BY place",
        [list(column) for column in columns],
    ).fetchall()
    for sql, ours, other in zip(SAME, found, zip(*theirs, strict=True), strict=True):
        assert ours.to_pylist() == list(other), sql


def test_a_template_that_is_refused_names_its_part() -> None:
    schema = TableSchema(1, (Column("T", LogicalType.TIMESTAMP_NTZ, 1, scale=6),))
    with pytest.raises(LoadRefused, match="IDDD: it is not one of Vertica's patterns; write DDD"):
        ExpressionEvaluator(
            schema,
            [(ComputedExpression("X", "TO_CHAR(t, 'IDDD')"), Column("X", ordinal=1, **TEXT))],
            None,
        )

"""What each dialect makes of statements, literals, operators and functions: claims in tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from snowmelt.select.errors import SelectError
from support.reference_select import (
    ALL,
    AWS,
    CEPH,
    CEPH_2020,
    CEPHS,
    answer,
    printed,
    refusal,
    value,
)

if TYPE_CHECKING:
    from snowmelt.select.dialect import Dialect


EVERYWHERE = [
    # literals
    ("'it''s'", "it's"),
    ("true", None),
    ("-5", "-5"),
    ("9223372036854775807", "9223372036854775807"),
    # operators
    ("1/2", "0"),
    ("-7/2", "-3"),
    ("-7%2", "-1"),
    ("2*3^2", "36"),
    ("2^10", "1024"),
    ("1+2*3", "7"),
    ("(1+2)*3", "9"),
    ("- (1+2)", "-3"),
    ("+4", "4"),
    ("'a'||'b'||1", "ab1"),
    ("case when 1=2 then 'a' else 'b' end", "b"),
    ("case 2 when 1 then 'a' when 2 then 'b' end", "b"),
    ("coalesce(null, null, 3)", "3"),
    ("nullif(1, '1')", "1"),
    ("nullif('a', 'b')", "a"),
    ("char_length('größe')", "5"),
    ("character_length('')", "0"),
    ("lower('ABC')||upper('def')", "abcDEF"),
    ("substring('snowmelt', 5)", "melt"),
    ("substring('snowmelt' from 5 for 2)", "me"),
    ("substring('snowmelt', 20)", ""),
    ("substr('snowmelt', 1, 4)", "snow"),
    ("trim('  a  ')||'.'", "a."),
    ("trim(leading '1' from '1121')", "21"),
    ("trim(trailing '12' from '3121')", "3"),
    ("trim(both '12' from '1 2 1')", " 2 "),
    ("add(2, 3)", "5"),
    ("int('42')", "42"),
    ("int(3.9)", "3"),
    ("int(-3.9)", "-3"),
    ("cast('42' as int) + 1", "43"),
    ("cast(1 as string)||'x'", "1x"),
    ("cast(true as string)", "true"),
    # timestamps
    ("extract(year from `2010-02-03T04:05:06.789-08:00`)", "2010"),
    ("extract(month from `2010-02-03T04:05:06.789-08:00`)", "2"),
    ("extract(day from `2010-02-03T04:05:06.789-08:00`)", "3"),
    ("extract(hour from `2010-02-03T04:05:06.789-08:00`)", "4"),
    ("extract(minute from `2010-02-03T04:05:06.789-08:00`)", "5"),
    ("extract(second from `2010-02-03T04:05:06.789-08:00`)", "6"),
    ("extract(timezone_hour from `2010-02-03T04:05:06.789-08:30`)", "-8"),
    ("extract(timezone_minute from `2010-02-03T04:05:06.789-08:30`)", "-30"),
    ("extract(week from `2010-01-03T`)", "53"),
    ("extract(\"week\", timestamp('2021:01:04 00:00:00'))", "1"),
    ("date_diff(day, `2010-01-01T23:00`, `2010-01-02T01:00`)", "0"),
    ("date_diff(month, `2010T`, `2011T`)", "12"),
    ("date_diff(month, `2011T`, `2010T`)", "-12"),
    ("date_diff(year, `2010-05-05T`, `2012-05-04T`)", "1"),
    ("datediff('year', `2000-12-31T`, `2001-01-01T`)", "1"),
    ("datediff('month', `2000-12-31T`, `2001-01-01T`)", "1"),
    ("datediff('day', `2000-12-31T23:59Z`, `2001-01-01T00:00Z`)", "1"),
    ('datediff("hours", `2000-12-31T22:00Z`, `2001-01-01T00:30Z`)', "2"),
    ("extract(month from date_add(month, 1, `2011-01-31T`))", "2"),
    ("extract(day from date_add(month, 1, `2011-01-31T`))", "28"),
    ("extract(day from dateadd('month', 1, `2000-02-29T`))", "31"),
    ("to_string(`1969-07-20T20:18Z`, 'MMMM d, y h:m a')", "July 20, 1969 8:18 PM"),
    ("to_string(utcnow(), 'yyyy-MM-dd HH:mm:ss')", "2024-02-29 12:34:56"),
]


@pytest.mark.parametrize("dialect", ALL)
@pytest.mark.parametrize(("expression", "expected"), EVERYWHERE)
def test_expression_is_the_same_in_every_dialect(
    expression: str, expected: str | None, dialect: Dialect
) -> None:
    if expected is None:
        assert value(expression, dialect) is True
    else:
        assert printed(expression, dialect) == expected


TRUE_EVERYWHERE = [
    "1 = 1",
    "1 == 1",
    "1 <> 2",
    "1 != 2",
    "1 = 1.0",
    "'a' < 'b'",
    "'Z' < 'a'",
    "'z' < 'ä'",
    "2 between 2 and 3",
    "2 not between 3 and 4",
    "2 in (1, 2)",
    "2 in [1, 2]",
    "2 not in (1, 3)",
    "'abc' like 'a%'",
    "'abc' like '_b_'",
    "not 'abc' like 'b%'",
    "'abc' not like 'b%'",
    "'10%' like '10$%' escape '$'",
    "null is null",
    "missing is missing",
    "missing is null",
    "null is not missing",
    "(not null is null) or true",
    "1 = 1 = true",
    "(null = null) is null",
    "(1 = null) is null",
    "(null and false) = false",
    "(null or true) = true",
    "(null and true) is null",
    "(not null) is null",
    "(1 in (2, null)) is null",
    "nullif(1.0, 1) is null",
    "nullif('a', 'a') is null",
    "`2010T` = `2010-01-01T00:00Z`",
    "`2010-01-01T01:00+01:00` = `2010T`",
    "`2010-06T` > `2010-05-31T`",
    "cast('2010-01-01T' as timestamp) = `2010T`",
    "to_timestamp('2007-02-23T12:14:33.079-08:00') > to_timestamp('20070223T121433Z')",
    "timestamp('1999:10:10-12:23:44') = timestamp('1999-10-10 12:23:44')",
]


@pytest.mark.parametrize("dialect", ALL)
@pytest.mark.parametrize("expression", TRUE_EVERYWHERE)
def test_condition_is_true_in_every_dialect(expression: str, dialect: Dialect) -> None:
    assert value(expression, dialect) is True


COLLISIONS = [
    # expression, aws, ceph, ceph-2020
    ("1.5", "1.5", "1.5", "1.5"),
    ("0.1+0.2", "0.3", "0.30000000000000004", "0.30000000000000004"),
    ("1e3", "1000.0", "1000", "1000"),
    ("9.42", "9.42", "9.4199999999999999", "9.4199999999999999"),
    ("7/2.0", "3.5", "3.5", "3.5"),
    ("true", "true", "true", "1"),
    ("1=2", "false", "false", "0"),
    ("null", "", "null", ""),
    ("_1", "", "null", ""),
    ("_1 is null", "false", "true", "0"),
    ("_1 = ''", "true", "null", "1"),
    ("char_length(_1)", "0", "null", "0"),
    ("int(_1)", "!CastFailed", "null", "0"),
    ("9223372036854775807+1", *["!IntegerOverflow"] * 3),
    ("2^64", *["!IntegerOverflow"] * 3),
    ("int(1e19)", *["!IntegerOverflow"] * 3),
    ("2^-1", "0.5", "0", "0"),
    ("(-1)^-3", "-1.0", "-1", "-1"),
    ("2^-1.0", "0.5", "0.5", "0.5"),
    ("7.5 % 2", "1.5", "1", "1"),
    ("7 % 2.5", "2.0", "!InvalidDataType", "!InvalidDataType"),
    (
        "cast('0.1' as decimal(3,1)) + cast('0.2' as decimal(3,1))",
        "0.3",
        *["0.30000000000000004"] * 2,
    ),
    ("true + 1", "!InvalidDataType", "!InvalidDataType", "2"),
    ("true < 2", "", "!InvalidDataType", "1"),
    ("'[y-z]' like '[y-z]'", "true", "false", "0"),
    ("'y' like '[y-z]'", "false", "true", "1"),
    ("'y' not like '[y-z]'", "true", "false", "0"),
    ("'10%' like '10\\%'", "false", "true", "1"),
    (
        "12345678901234567890",
        "12345678901234567890",
        "!LexerInvalidLiteral",
        "!LexerInvalidLiteral",
    ),
    ("int('12abc')", "!CastFailed", "!CastFailed", "12"),
    ("int('x')", "!CastFailed", "!CastFailed", "0"),
    ("int(' 7 ')", "7", "!CastFailed", "7"),
    ("int(' 7')", "7", "7", "7"),
    ("int('3.7')", "3", "!CastFailed", "3"),
    (
        "int('99999999999999999999')",
        "!IntegerOverflow",
        "!CastFailed",
        "9223372036854775807",
    ),
    ("float('0x1p4')", "!CastFailed", "16", "16"),
    ("float('1e999')", "!CastFailed", "!CastFailed", "inf"),
    ("cast(0.5 as bool)", "true", "false", "1"),
    (
        "to_timestamp('2007-02-23T12:14:33.0000001Z')",
        "2007-02-23T12:14:33.0000001Z",
        "!ValueParseFailure",
        None,
    ),
    ("float('1.5x')", "!CastFailed", "!CastFailed", "1.5"),
    ("float('.5')", "0.5", "0.5", "0.5"),
    ("to_bool('true')", "true", "true", "1"),
    ("cast('1.239' as decimal(10,2))", "1.239", "1.24", "1.24"),
    ("cast('123456' as decimal(4,2))", "123456", "!CastFailed", "!CastFailed"),
    ("'12' = 12", "true", "!InvalidDataType", "!InvalidDataType"),
    ("'1e1' = 10", "true", "!InvalidDataType", "!InvalidDataType"),
    ("'x' = 12", "", "!InvalidDataType", "!InvalidDataType"),
    ("'2.50' = 2.5", "true", "!InvalidDataType", "!InvalidDataType"),
    ("'TRUE' = true", "true", "!InvalidDataType", "!InvalidDataType"),
    ("'2010-01-01' = `2010T`", "true", "!InvalidDataType", "!InvalidDataType"),
    ("true = 1", "", "true", "1"),
    ("'5' + 1", "6", "!InvalidDataType", "!InvalidDataType"),
    ("'x' + 1", "!InvalidDataType", "!InvalidDataType", "!InvalidDataType"),
    ("substring('snowmelt', 0, 2)", "sn", "s", "s"),
    ("substring('snowmelt', -3, 5)", "snowm", "s", "s"),
    ("substr('abc', 0, 2)", "ab", "a", ""),
    ("substr('abc', 5)", "", "", "!EvaluatorInvalidArguments"),
    ("substr('abc', 2, 9)", "bc", "bc", "!EvaluatorInvalidArguments"),
    ("1/0", *["!EvaluatorInvalidArguments"] * 3),
    ("1%0", *["!EvaluatorInvalidArguments"] * 3),
    ("lower(1)", *["!IncorrectSqlFunctionArgumentType"] * 3),
    ("timestamp('1999:02:31')", *["!ValueParseFailure"] * 3),
    ("`2010-02T`", "2010-02T", "2010-02-01T00:00:00+00:00", "2010-Feb-01 00:00:00"),
    ("`2010T`", "2010T", "2010-01-01T00:00:00+00:00", "2010-Jan-01 00:00:00"),
    (
        "`2007-02-23T12:14:33.079-08:00`",
        "2007-02-23T12:14:33.079-08:00",
        "2007-02-23T12:14:33.079000-08:00",
        "2007-Feb-23 12:14:33.079000",
    ),
    ("`2007-02-23T12:14Z`", "2007-02-23T12:14Z", "2007-02-23T12:14:00Z", "2007-Feb-23 12:14:00"),
    ("date_add(year, 5, `2010-01-01T`)", "2015-01-01", None, None),
    ("date_add(month, 1, `2010T`)", "2010-02T", None, None),
    ("date_add(month, 13, `2010T`)", "2011-02T", None, None),
    ("date_add(hour, 1, `2017T`)", "2017-01-01T01:00-00:00", None, None),
    ("date_add(hour, 1, `2017-01-02T03:04Z`)", "2017-01-02T04:04Z", None, None),
    ("date_add(minute, 1, `2017-01-02T03:04:05.006Z`)", "2017-01-02T03:05:05.006Z", None, None),
    ("`no time`", "!LexerInvalidIONLiteral", "no time", "no time"),
    ("nan", "!MissingHeaders", "nan", "nan"),
    ('"text"', "!MissingHeaders", "text", "text"),
    ("_7", "", "null", "!InvalidColumnIndex"),
]


@pytest.mark.parametrize(
    ("expression", "dialect", "expected"),
    [
        (expression, dialect, expected)
        for expression, *answers in COLLISIONS
        for dialect, expected in zip(ALL, answers, strict=True)
        if expected is not None
    ],
)
def test_expression_where_dialects_differ(
    expression: str | None, dialect: Dialect, expected: str
) -> None:
    if expected.startswith("!"):
        assert refusal(f"select {expression} from stdin", dialect, [("", "b")]) == expected[1:]
    else:
        assert printed(expression, dialect, ("", "b")) == expected


@pytest.mark.parametrize(
    ("expression", "is_fatal"),
    [
        ("1 < 'a'", False),
        ("1 in ('a')", False),
        ("case 1 when 'a' then 1 end", False),
        ("9223372036854775807+1", False),
        ("'a' like '['", False),
        ("_9", False),
        ("'a' + 1", False),
        ("1/0", False),
        ("substr('abc', 9)", False),
        ("timestamp('x')", False),
        ("extract('year', 'x')", False),
    ],
)
def test_first_engine_drops_the_row_for_most_errors(expression: str, is_fatal: bool) -> None:
    with pytest.raises(SelectError) as dropped:
        value(expression, CEPH_2020, ("a",))
    assert dropped.value.fatal is is_fatal
    if expression not in {"_9", "substr('abc', 9)"}:
        with pytest.raises(SelectError) as refused:
            value(expression, CEPH, ("a",))
        assert refused.value.fatal


def test_type_mismatch_is_told_in_cephs_words() -> None:
    text = r"of the same type\(numeric , string\), while comparision"  # codespell:ignore
    for dialect in CEPHS:
        with pytest.raises(SelectError, match=text):
            value("1 < _1", dialect, ("a",))


def test_null_ends_no_short_circuit_and_false_does() -> None:
    assert value("1=2 and 1/0=1", AWS) is False
    assert value("1=1 or 1/0=1", AWS) is True
    assert refusal("select null and 1/0=1 from stdin", AWS) == "EvaluatorInvalidArguments"
    assert value("coalesce(1, 1/0)", AWS) == 1
    assert value("case when true then 1 else 1/0 end", AWS) == 1
    assert value("1 in (1, 1/0)", AWS) is True
    assert value("5 between 6 and 1/0", AWS) is False


AGGREGATES = [
    # statement's list, rows, aws, ceph, ceph-2020
    ("count(*), count(0), count()", ["1", ""], "2,2,2", "2,2,2", "2,2,2"),
    ("count(_1)", ["1", ""], "2", "1", "2"),
    ("count(_1), min(_1)", ["b", ""], "2,", "1,b", "2,"),
    ("sum(int(_1))", ["1", "2"], "3", "3", "3"),
    ("sum(int(_1))+1", ["1", "2"], "4", "4", "4"),
    ("avg(int(_1))", ["1", "2"], "1.5", "1.5", "1.5"),
    ("avg(float(_1))", ["1", "2"], "1.5", "1.5", "1.5"),
    ("min(_1),max(_1)", ["9", "10"], "10,9", "10,9", "10,9"),
    ("sum(_1)", ["1", "2.50"], "3.50", "!InvalidDataType", "!InvalidDataType"),
    ("sum(float(_1))", ["0.1"] * 10, "1.0", "0.99999999999999989", "0.99999999999999989"),
    ("sum(1=1)", ["", ""], "!InvalidDataType", "!InvalidDataType", "2"),
    ("sum(int(_1))", [], "", "null", "0"),
    ("min(int(_1))", [], "", "null", "9223372036854775807"),
    ("max(int(_1))", [], "", "null", "-9223372036854775807"),
    ("count(*)", [], "0", "0", "0"),
    ("sum(9223372036854775807)", ["", ""], *["!IntegerOverflow"] * 3),
    ("sum(int(_1)),_1", ["1", "2"], "!UnsupportedSqlStructure", "!UnsupportedSqlStructure", "3,2"),
    ("sum(sum(int(_1)))", [], *["!UnsupportedSqlStructure"] * 3),
    ("sum(int(_1)) as s, s*2", ["1", "2"], *["3,6"] * 3),
]


@pytest.mark.parametrize(
    ("selected", "fields", "dialect", "expected"),
    [
        (selected, fields, dialect, expected)
        for selected, fields, *answers in AGGREGATES
        for dialect, expected in zip(ALL, answers, strict=True)
    ],
)
def test_aggregates(selected: str, fields: list[str], dialect: Dialect, expected: str) -> None:
    rows = [[field] for field in fields]
    statement = f"select {selected} from stdin"
    if expected.startswith("!"):
        assert refusal(statement, dialect, rows) == expected[1:]
    else:
        assert [",".join(record) for record in answer(statement, rows, dialect)] == [expected]


@pytest.mark.parametrize("dialect", ALL)
def test_groups_are_folded_and_filtered(dialect: Dialect) -> None:
    rows = [["a", "1"], ["b", "2"], ["a", "3"]]
    statement = (
        "select _1 as k, sum(int(_2)) as s, k||'!' from stdin group by k having s > 2 or k = 'z'"
    )
    assert answer(statement, rows, dialect) == [["a", "4", "a!"]]
    by_number = "select upper(_1), count(*) from stdin group by 1"
    assert answer(by_number, rows, dialect) == [["A", "2"], ["B", "1"]]

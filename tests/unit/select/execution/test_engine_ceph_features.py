"""The feature table of Ceph's first engine, line by line: `ceph-2020`, and `aws` where it can."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from snowmelt.select.errors import SelectError
from support.reference_select import ALL, AWS, CEPH, CEPH_2020, answer

if TYPE_CHECKING:
    from snowmelt.select.dialect import Dialect


NUMBERS = [
    ["1", "2", "3", "4", "5", "6", "7", "8", "9"],
    ["10", "20", "30", "40", "5", "0", "0", "0", "2"],
]
TIMES = [
    ["1955:10:10-12:23:44", "1970:01:01-00:00:00"],
    ["1958-12-31 00:00:00", "1959-02-28 23:59:59"],
    ["19990228112233", "19990301000000"],
]

BETWEEN_YEARS = """
select count(*) from stdin where
   extract("year",timestamp(_2)) > 1950
   and extract("year",timestamp(_1)) < 1960;
"""
YEAR_APART = """
select count(0) from stdin where
   datediff("year",timestamp(_1),dateadd("day",366,timestamp(_1))) == 1;
"""
DAY_AHEAD = """
select count(0) from stdin where
   datediff("hours",utcnow(),dateadd("day",1,utcnow())) == 24 ;
"""
BY_SUBSTR = """
select count(0) from stdin where
   int(substr(_1,1,4))>1950 and int(substr(_1,1,4))<1960;
"""
ALIASES = """
select int(_1) as a1, int(_2) as a2 , (a1+a2) as a3
   from stdin where a3>100 and a3<300;
"""


@pytest.mark.parametrize("dialect", ALL)
@pytest.mark.parametrize(
    ("statement", "rows", "expected"),
    [
        ("select (int(_1)+int(_2))*int(_9) from stdin;", NUMBERS, [["27"], ["60"]]),
        ("select _1,_2 from stdin where (int(1)+int(_3))>int(_5);", NUMBERS, [["10", "20"]]),
        ("select count(*) from stdin where int(1)>123 and int(_5)<200;", NUMBERS, [["0"]]),
        ("select int(_1),int( 1.2 + 3.4) from stdin;", NUMBERS, [["1", "4"], ["10", "4"]]),
        ("select sum(int(_1)) from stdin;", NUMBERS, [["11"]]),
        ("select min( int(_1) * int(_5) ) from stdin;", NUMBERS, [["5"]]),
        ("select count(*) from stdin where (int(1)+int(_3))>int(_5);", NUMBERS, [["1"]]),
        (
            BETWEEN_YEARS,
            TIMES,
            [["2"]],
        ),
        (
            YEAR_APART,
            TIMES,
            [["2"]],
        ),
        (
            'select count(0) from stdin where datediff("month",timestamp(_1),timestamp(_2)) == 2;',
            TIMES,
            [["1"]],
        ),
        (
            DAY_AHEAD,
            TIMES,
            [["3"]],
        ),
        (
            BY_SUBSTR,
            TIMES,
            [["2"]],
        ),
        (
            ALIASES,
            [["1", "2"], ["70", "80"], ["200", "100"]],
            [["70", "80", "150"]],
        ),
    ],
)
def test_line_works_in_every_dialect(
    statement: str, rows: list[list[str]], expected: list[list[str]], dialect: Dialect
) -> None:
    assert answer(statement, rows, dialect) == expected


@pytest.mark.parametrize(
    ("statement", "dialect", "expected"),
    [
        ("select ((1+2)*3.14) ^ 2 from stdin;", CEPH_2020, "88.736400000000003"),
        ("select ((1+2)*3.14) ^ 2 from stdin;", AWS, "88.7364"),
        ("select float(1.2) from stdin;", CEPH_2020, "1.2"),
        ("select float(1.2) from stdin;", AWS, "1.2"),
        ('select timestamp("1999:10:10-12:23:44") from stdin;', CEPH_2020, "1999-Oct-10 12:23:44"),
        ('select timestamp("1999:10:10-12:23:44") from stdin;', AWS, "1999-10-10T12:23:44Z"),
        ("select max(float(_1)),min(int(_5)) from stdin;", CEPH_2020, "10,5"),
        ("select max(float(_1)),min(int(_5)) from stdin;", AWS, "10.0,5"),
    ],
)
def test_line_prints_as_its_dialect_does(statement: str, dialect: Dialect, expected: str) -> None:
    found = answer(statement, NUMBERS, dialect)
    assert ",".join(found[0]) == expected


def test_overview_query_runs_as_written() -> None:
    rows = [["c-1", "29"], ["c-2", "31"], ["c-3", "64"], ["c-4", "65"], ["c-5", "unknown"]]
    statement = "select customer-id from s3Object where age>30 and age<65;"
    assert answer(statement, rows, AWS, header=("customer-id", "age")) == [["c-2"], ["c-3"]]


def test_command_line_of_the_cli_example_runs_with_a_header() -> None:
    statement = "select count(0) from stdin where int(_1)<10;"
    for dialect in ALL:
        assert answer(statement, NUMBERS, dialect, header=tuple("abcdefghi")) == [["1"]]


@pytest.mark.parametrize("dialect", ALL)
def test_stray_parenthesis_of_the_datediff_line_is_refused_and_named(dialect: Dialect) -> None:
    statement = (
        'select count(0) from stdin where datediff("month",timestamp(_1),timestamp(_2))) == 2;'
    )
    with pytest.raises(SelectError, match="unmatched") as refused:
        answer(statement, TIMES, dialect)
    assert refused.value.s3_code == "ParseUnexpectedToken"
    assert "column 79" in str(refused.value)


@pytest.mark.parametrize("dialect", ALL)
@pytest.mark.parametrize("blank", [" ", "-", ":", "T", "  ", ""])
def test_timestamp_takes_the_blank_its_text_shows_and_the_signs_its_engine_takes(
    blank: str, dialect: Dialect
) -> None:
    statement = "select extract('hour', timestamp(_1)) from stdin"
    assert answer(statement, [[f"1999:10:10{blank}12:23:44"]], dialect) == [["12"]]


@pytest.mark.parametrize("dialect", ALL)
def test_day_is_the_day_of_the_month_and_doy_that_of_the_year(dialect: Dialect) -> None:
    statement = 'select extract("day", timestamp(_1)), extract("doy", timestamp(_1)) from stdin'
    assert answer(statement, [["1999:10:10 12:23:44"]], dialect) == [["10", "283"]]


@pytest.mark.parametrize("dialect", ALL)
def test_third_argument_of_substr_is_a_length(dialect: Dialect) -> None:
    assert answer("select substr(_1, 6, 2) from stdin", [["2024-05-17"]], dialect) == [["05"]]


def test_alias_twice_and_alias_in_a_circle_are_refused_with_the_engines_words() -> None:
    for dialect in (CEPH, CEPH_2020):
        with pytest.raises(SelectError, match="alias <a> is already been used in query"):
            answer("select _1 as a, _2 as a from stdin;", [], dialect)
    circle = "number of calls exceed maximum size, probably a cyclic reference to alias"
    for dialect in ALL:
        for statement in ("select a+1 as a from stdin;", "select c as b, b+1 as c from stdin;"):
            with pytest.raises(SelectError, match=circle):
                answer(statement, [], dialect)

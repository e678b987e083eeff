"""Statements written for Ceph, run with boto3: examples for its first and its current engine."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from botocore.exceptions import ClientError, EventStreamError

from fixtures.s3 import S3Process

HEADER = "x-snowmelt-select-dialect"
NUMBERS = b"1,2,3,4,5,6,7,8,9\n10,20,30,40,5,0,0,0,2\n"
TIMES = (
    b"1955:10:10-12:23:44,1970:01:01-00:00:00\n"
    b"1958-12-31 00:00:00,1959-02-28 23:59:59\n"
    b"19990228112233,19990301000000\n"
)


@pytest.fixture
def client_of(s3: S3Process) -> Iterator[Callable[[str], Any]]:
    """Return a client whose queries use a dialect."""
    clients = []

    def client_of(dialect: str) -> Any:
        client = s3.client()
        clients.append(client)
        client.meta.events.register(
            "before-sign.s3.SelectObjectContent",
            lambda request, **_: request.headers.add_header(HEADER, dialect),
        )
        return client

    yield client_of
    for client in clients:
        client.close()


@pytest.fixture
def first(client_of: Callable[[str], Any], bucket: str) -> Any:
    """Run a query in the dialect `ceph-2020`, as the script on its page does."""
    return _asking(client_of("ceph-2020"), bucket)


@pytest.fixture
def today(client_of: Callable[[str], Any], bucket: str) -> Any:
    """Run a query in the dialect `ceph`, as scripts for it do."""
    return _asking(client_of("ceph"), bucket)


def _asking(client: Any, bucket: str) -> Callable[..., str]:
    def run_s3select(body: Any, query: Any, column_delim: str=",", row_delim: str="\n", quot_char: str='"', esc_char: str="\\",
                     csv_header_info: str="NONE", output: Any=None, source: Any=None) -> str:  # fmt: skip
        client.put_object(Bucket=bucket, Key="object", Body=body)
        csv = {
            "RecordDelimiter": row_delim,
            "FieldDelimiter": column_delim,
            "QuoteEscapeCharacter": esc_char,
            "QuoteCharacter": quot_char,
            "FileHeaderInfo": csv_header_info,
        }
        answer = client.select_object_content(
            Bucket=bucket,
            Key="object",
            ExpressionType="SQL",
            InputSerialization=source or {"CSV": csv, "CompressionType": "NONE"},
            OutputSerialization=output or {"CSV": {}},
            Expression=query,
        )
        result = ""
        with contextlib.closing(answer["Payload"]) as payload:
            for event in payload:
                if "Records" in event:
                    result += event["Records"]["Payload"].decode("utf-8")
        return result

    return run_s3select


def refused(ask: Any, *arguments: bytes | str, **options: dict[str, dict[str, str]]) -> str:
    """Return the error code and message of a query."""
    with pytest.raises((ClientError, EventStreamError)) as error:
        ask(*arguments, **options)
    found = error.value.response["Error"]
    return f"{found['Code']}: {found['Message']}"


# Each line of the feature table, with the output of its engine: a field delimiter follows every
# value, and an aggregate has no record delimiter.
FEATURES = [
    ("select (int(_1)+int(_2))*int(_9) from stdin;", NUMBERS, "27,\n60,\n"),
    (
        "select ((1+2)*3.14) ^ 2 from stdin;",
        NUMBERS,
        "88.736400000000003,\n88.736400000000003,\n",
    ),
    ("select _1,_2 from stdin where (int(1)+int(_3))>int(_5);", NUMBERS, "10,20,\n"),
    ("select count(*) from stdin where int(1)>123 and int(_5)<200;", NUMBERS, "0,"),
    ("select int(_1),int( 1.2 + 3.4) from stdin;", NUMBERS, "1,4,\n10,4,\n"),
    ("select float(1.2) from stdin;", NUMBERS, "1.2,\n1.2,\n"),
    (
        'select timestamp("1999:10:10-12:23:44") from stdin;',
        b"x\n",
        "1999-Oct-10 12:23:44,\n",
    ),
    ("select sum(int(_1)) from stdin;", NUMBERS, "11,"),
    ("select min( int(_1) * int(_5) ) from stdin;", NUMBERS, "5,"),
    ("select max(float(_1)),min(int(_5)) from stdin;", NUMBERS, "10,5,"),
    ("select count(*) from stdin where (int(1)+int(_3))>int(_5);", NUMBERS, "1,"),
    (
        (
            'select count(*) from stdin where extract("year",timestamp(_2)) > 1950 '
            'and extract("year",timestamp(_1)) < 1960;'
        ),
        TIMES,
        "2,",
    ),
    (
        (
            "select count(0) from stdin where "
            'datediff("year",timestamp(_1),dateadd("day",366,timestamp(_1))) == 1;'
        ),
        TIMES,
        "2,",
    ),
    (
        (
            "select count(0) from stdin where "
            'datediff("hours",utcnow(),dateadd("day",1,utcnow())) == 24 ;'
        ),
        TIMES,
        "3,",
    ),
    (
        "select count(0) from stdin where int(substr(_1,1,4))>1950 and int(substr(_1,1,4))<1960;",
        TIMES,
        "2,",
    ),
    (
        "select int(_1) as a1, int(_2) as a2 , (a1+a2) as a3 from stdin where a3>100 and a3<300;",
        b"1,2\n70,80\n200,100\n",
        "70,80,150,\n",
    ),
]


@pytest.mark.parametrize(("statement", "body", "expected"), FEATURES)
def test_a_line_of_the_first_engines_feature_table_runs_as_written(
    first: Any, statement: str, body: bytes, expected: str
) -> None:
    assert first(body, statement) == expected


def test_the_line_with_a_bracket_too_many_is_refused_and_runs_without_it(first: Any) -> None:
    line = 'select count(0) from stdin where datediff("month",timestamp(_1),timestamp(_2))) == 2;'
    assert "unmatched ')'" in refused(first, TIMES, line)
    assert first(TIMES, line.replace(")))", "))")) == "1,"


# Each line of the page's table on CSV: input ==> tokens.
TOKENS = [
    (b",,1,,2,", ["", "", "1", "", "2", ""]),
    (b'11,22,"a,b,c,d",last', ["11", "22", '"a,b,c,d"', "last"]),
    (
        rb"11,22,str=\"abcd\"\,str2=\"123\",last",
        ["11", "22", 'str="abcd",str2="123"', "last"],
    ),
    (b'11,22,a="str,44,55,66', ["11", "22", 'a="str,44,55,66']),
]


@pytest.mark.parametrize(("line", "tokens"), TOKENS)
def test_a_line_of_the_first_engines_csv_table_is_cut_as_written(
    first: Any, line: bytes, tokens: list[str]
) -> None:
    body = line + b"\n" + b",".join([b"x"] * 7) + b"\n"
    places = [f"_{n + 1}" for n in range(len(tokens))]
    # Select one field at a time, because the output is not quoted.
    shown = [first(body, f"select {place} from stdin;").splitlines()[0] for place in places]
    assert shown == [token + "," for token in tokens]
    past = f"select _{len(tokens) + 1} from stdin;"
    assert first(body, past) == "x,\n"  # The line does not have the field, so it is omitted.


def test_successive_delimiters_are_null_today_and_empty_in_the_first_engine(
    first: Any, today: Any
) -> None:
    line = b",,1,,2,\n"
    nulls = "select _1 is null, _2 is null, _4 is null, _6 is null, _3 is null from stdin"
    assert today(line, nulls) == "true,true,true,true,false\n"
    assert today(line, "select _1,_3 from stdin") == "null,1\n"
    assert first(line, 'select _1,_3 from stdin where _1 == "";') == ",1,\n"
    assert first(line, "select int(_1), count(_1) from stdin;") == "0,1,"


def test_csv_header_info_names_columns_or_is_passed_over(first: Any) -> None:
    body = b"id,name\n7,x\n"
    assert first(body, "select name,id from stdin;", csv_header_info="USE") == "x,7,\n"
    assert first(body, "select _2 from stdin;", csv_header_info="IGNORE") == "x,\n"
    assert first(body, "select _2 from stdin;") == "name,\nx,\n"


def test_other_delimiters_quotes_and_escapes_are_obeyed(first: Any) -> None:
    body = b"a|'b|c'|d\t1|%||2\t"
    marks = {"column_delim": "|", "row_delim": "\t", "quot_char": "'", "esc_char": "%"}
    assert first(body, "select _2 from stdin;", **marks) == "'b|c',\n|,\n"


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ('select extract("year",timestamp(_1)) from stdin;', "1999,\n"),
        ('select extract("month",timestamp(_1)) from stdin;', "10,\n"),
        ('select extract("week",timestamp(_1)) from stdin;', "40,\n"),
        ('select extract("day",timestamp(_1)) from stdin;', "10,\n"),
        ('select dateadd("year",1,timestamp(_1)) from stdin;', "2000-Oct-10 12:23:44,\n"),
        ('select dateadd("month",3,timestamp(_1)) from stdin;', "2000-Jan-10 12:23:44,\n"),
        ('select dateadd("day",22,timestamp(_1)) from stdin;', "1999-Nov-01 12:23:44,\n"),
        ('select datediff("year",timestamp(_1),timestamp(_2)) from stdin;', "1,\n"),
        ('select datediff("month",timestamp(_1),timestamp(_2)) from stdin;', "3,\n"),
        ('select datediff("day",timestamp(_1),timestamp(_2)) from stdin;', "83,\n"),
        ('select datediff("hours",timestamp(_1),timestamp(_2)) from stdin;', "1979,\n"),
        ("select substr(_1,6,2) from stdin;", "10,\n"),
    ],
)
def test_a_function_of_the_first_engines_page_does_what_it_says(
    first: Any, statement: str, expected: str
) -> None:
    assert first(b"1999:10:10 12:23:44,2000:01:01 00:00:00\n", statement) == expected


def test_a_circle_of_aliases_ends_the_query(first: Any) -> None:
    statement = "select int(_1) as a1, a1+a4 as a3, a3+a1 as a4 from stdin;"
    assert "probably a cyclic reference to alias" in refused(first, NUMBERS, statement)


def test_types_that_differ_cost_the_row_and_the_hundredth_row_ends_the_query(
    first: Any, today: Any
) -> None:
    mixed = b"".join(b"%d\n" % n for n in range(5))
    statement = (
        'select case when int(_1) > 2 then "x" else int(_1) end as a from stdin where a < 2;'
    )
    assert first(mixed, statement) == "0,\n1,\n"
    told = "operands not of the same type"
    assert told in refused(today, mixed, statement)
    many = b"1\n" + b"9\n" * 100
    assert told in refused(first, many, statement)
    assert first(b"1\n" + b"9\n" * 99 + b"0\n", statement) == "1,\n0,\n"


def test_a_row_that_is_left_out_counts_nowhere(first: Any) -> None:
    assert first(b"1,5\nx\n", "select count(*), sum(int(_2)) from stdin;") == "1,5,"
    assert first(b"1,5\nx\n", "select count(*), sum(_1) from stdin;") == "0,0,"
    assert first(b"1,5\nx\n", "select int(_2) + 0.5 from stdin;") == "5.5,\n"


def test_floats_keep_the_digits_of_the_engines(first: Any, today: Any) -> None:
    body = b"0.1\n" * 10
    assert first(body, "select sum(float(_1)) from stdin;") == "0.99999999999999989,"
    assert today(body, "select sum(float(_1)) from stdin") == "0.99999999999999989"
    assert first(b"9.42\n", "select float(_1) from stdin;") == "9.4199999999999999,\n"
    assert first(b"9.42\n", "select _1 from stdin;") == "9.42,\n"
    bare = today(b"9.42\n", "select float(_1) as f from stdin", output={"JSON": {}})
    assert bare == '{"f":9.4199999999999999}\n'


# --- Current Ceph

TEXTS = b"yy,a.b\nyx,aXb\nzz,a[b\n,10%\n"


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("_1 like '%[y-z]%'", "yy\nyx\nzz\n"),
        ('_1 like "%y[y-z]"', "yy\n"),
        ("_1 like '[^z]%'", "yy\nyx\n"),
        ("_1 like '[xyz][x]'", "yx\n"),
        ("not _1 like '[y]%'", "zz\n"),
        ("_2 like 'a.b'", "yy\n"),
        (r"_2 like 'a\[b'", "zz\n"),
        (r"_2 like '10\%'", "null\n"),
    ],
)
def test_like_knows_classes_of_characters(
    today: Any, first: Any, condition: str, expected: str
) -> None:
    assert today(TEXTS, f"select _1 from s3object where {condition}") == expected
    old = "".join(line + ",\n" for line in expected.replace("null", "").splitlines())
    negated = "not" in condition  # An empty text matches no pattern. NULL is unknown.
    assert first(TEXTS, f"select _1 from stdin where {condition};") == old + ",\n" * negated


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("[a", "is not closed"),
        ("[]", "is empty"),
        ("[z-a]", "is no range"),
        ("[a_]", "holds '_'"),
        ("[0-9]+", "is a repetition, which LIKE does not support"),
    ],
)
def test_a_class_that_is_not_understood_is_refused(today: Any, pattern: str, reason: str) -> None:
    assert reason in refused(today, TEXTS, f"select _1 from s3object where _2 like '{pattern}'")


DOCUMENT = {"root": [{"c1": n, "c2": n % 3, "Name": f"n{n}"} for n in range(1, 6)], "x": {"y": [7]}}
BODY = json.dumps(DOCUMENT).encode()
JSON_IN = {"JSON": {"Type": "DOCUMENT"}}
JSON_OUT: dict[str, Any] = {"JSON": {}}


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("select min(_1.c1) from s3object[*].root;", "1"),
        ("select avg(_1.c1) from s3object[*].root;", "3"),
        ("select count(0) from s3object[*];", "1"),
        ("select count(0),sum(_1.c1),max(_1.c2) from s3object[*].root where _1.c1 > 1;", "4,14,2"),
        ("select count(0) from s3object[*].root where nullif(_1.c1,_1.c2) is null;", "2"),
        ("select count(0) from s3object[*].root where _1.c1 = _1.c2;", "2"),
        ("select count(0) from s3object[*].root where not nullif(_1.c1,_1.c2) is null;", "3"),
        ("select count(0) from s3object[*].root where nullif(_1.c1,_1.c2) = _1.c1;", "3"),
        ("select max(_1.name) from S3Object[*].ROOT where _1.C1 < 5;", "n4"),
        ("select count(0) from s3object[*].x.y;", "1"),
        ("select count(0) from s3object[*].nowhere;", "0"),
    ],
)
def test_each_element_of_an_array_in_from_is_a_row_and_its_aggregate_is_bare(
    today: Any, statement: str, expected: str
) -> None:
    assert today(BODY, statement, source=JSON_IN, output=JSON_OUT) == expected
    assert today(BODY, statement, source=JSON_IN) == expected


def test_nullif_of_json_is_null_exactly_where_values_are_equal(today: Any) -> None:
    ask = {"source": JSON_IN, "output": JSON_OUT}
    equal = today(BODY, "select (_1.c1 = _1.c2) from s3object[*].root;", **ask)
    null = today(BODY, "select (nullif(_1.c1,_1.c2) is null) from s3object[*].root;", **ask)
    assert null == equal
    assert equal == "".join(f'{{"_1":{str(n < 3).lower()}}}\n' for n in range(1, 6))


def test_elements_of_the_document_itself_are_rows_too(today: Any) -> None:
    body = json.dumps(DOCUMENT["root"]).encode()
    assert today(body, "select _1.c1 from s3object[*]", source=JSON_IN) == "1\n2\n3\n4\n5\n"


def test_a_name_behind_an_array_is_refused(today: Any) -> None:
    said = refused(today, BODY, "select _1.root.c1 from s3object[*]", source=JSON_IN)
    assert "c1 follows an array" in said
    assert today(BODY, "select _1.root[1].c1 from s3object[*]", source=JSON_IN) == "2\n"


def test_all_fields_are_shown_as_they_stand_and_one_that_is_empty_as_null(today: Any) -> None:
    body = b"a,,c\n,,\n" * 40
    assert today(body, "select * from s3object") == "a,,c\n,,\n" * 40
    assert today(body, "select *,_2 from s3object") == "a,,c,null\n,,,null\n" * 40
    assert today(body, "select _1,_2 from s3object") == "a,null\nnull,null\n" * 40


def test_a_timestamp_shows_six_digits_of_its_fraction_or_none(today: Any) -> None:
    body = b"2007-09-17T17:56:05.234Z\n2007-09-17T17:56:05Z\n" * 40
    shown = "2007-09-17T17:56:05.234000Z\n2007-09-17T17:56:05Z\n" * 40
    assert today(body, "select to_timestamp(_1) from s3object") == shown


@pytest.mark.parametrize(
    ("picture", "expected"),
    [
        ("yyyyMMdd-H:m:s", "20090917-17:56:6"),
        ("yyyy-MM-ddTHH:mm:ssXXX", "2009-09-17T17:56:06Z"),
        ("yyyyyy SSSSSSSS n", "002009 23456700 234567000"),
        ("d'of'MMMMM, hh a", "17'of'S, 05 PM"),
    ],
)
def test_a_picture_of_to_string_means_what_it_means_in_ceph(
    today: Any, picture: str, expected: str
) -> None:
    moment = "to_timestamp('2009-09-17T17:56:06.234567Z')"
    quoted = picture.replace("'", "''")
    assert today(b"x\n", f"select to_string({moment}, '{quoted}') from s3object") == expected + "\n"


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        (
            "select _1 from s3object where not _1 = '1' and _2 = '2'",
            "NOT also negates the condition after",
        ),
        ("select count(*) from s3object limit 1", "LIMIT is not supported with an aggregate"),
        ("select 9223372036854775807 + int(_1) from s3object", "does not fit in 64 bits"),
        ("select int('99999999999999999999') from s3object", "fall out of the range"),
        ("select substr(_1, 1.5) from s3object", "expects an integer"),
        ("select md5(_1) from s3object", "there is no function md5"),
        ("select cast(_1 as varchar(2)) from s3object", "does not accept a length"),
        ("select cast(_1 as smallint) from s3object", "cannot cast to 'smallint'"),
    ],
)
def test_what_ceph_means_otherwise_or_leaves_open_is_refused(
    today: Any, statement: str, reason: str
) -> None:
    assert reason in refused(today, NUMBERS, statement)


@pytest.mark.parametrize("dialect", ["ceph", "ceph-2020"])
def test_quoting_as_needed_is_refused_since_no_ceph_does_it(
    client_of: Callable[[str], Any], bucket: str, dialect: str
) -> None:
    ask = _asking(client_of(dialect), bucket)
    asked = {"CSV": {"QuoteFields": "ASNEEDED"}}
    assert "QuoteFields" in refused(ask, NUMBERS, "select _1 from stdin;", output=asked)
    always = ask(b"a,b\n", "select _1 from stdin;", output={"CSV": {"QuoteFields": "ALWAYS"}})
    assert always.rstrip(",\n") == '"a"'

"""The grammar of COPY: what each form says, and where it is wrong."""

from __future__ import annotations

import contextlib
import datetime as dt
import pickle
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snowmelt.errors import StatementError
from snowmelt.load.copy_ast import (
    ComputedColumn,
    FillerColumn,
    InputCompression,
    InputPath,
    ParsedColumn,
    PhaseCall,
    StandardInput,
)
from snowmelt.load.copy_parser import parse_copy
from snowmelt.schema.types import LogicalType


def test_the_example_of_the_sdk_is_understood() -> None:
    copy = parse_copy("COPY jsonSample FROM stdin WITH FILTER PyJsonFilter() PARSER fjsonparser();")
    assert copy.table.parts == ("JSONSAMPLE",)
    assert isinstance(copy.inputs, StandardInput)
    assert [call.name for call in copy.filters] == ["PyJsonFilter"]
    assert copy.parser is not None
    assert copy.parser.name == "fjsonparser"
    assert copy.text.endswith("fjsonparser()")
    assert pickle.loads(pickle.dumps(copy)) == copy


def test_columns_are_parsed_filled_and_computed() -> None:
    copy = parse_copy(
        """COPY demo.public.t (
            a, "b" FORMAT 'YYYY-MM-DD' NULL AS '-' TRIM ' ',
            c FILLER NUMERIC(10,2) DELIMITER ';' ENCLOSED BY '"' ENFORCELENGTH,
            d AS coalesce(c, (1 + 2)) || ', )' , -- the sum
            e FILLER LONG VARCHAR NO ESCAPE, f AS c
        ) FROM 'x'"""
    )
    assert copy.table.parts == ("DEMO", "PUBLIC", "T")
    assert copy.items is not None
    a, b, c, d, e, f = copy.items
    assert isinstance(a, ParsedColumn)
    assert isinstance(b, ParsedColumn)
    assert (a.name, b.name) == ("A", "b")
    assert (b.options.format, b.options.null, b.options.trim) == ("YYYY-MM-DD", "-", " ")
    assert isinstance(c, FillerColumn)
    assert (c.column.kind, c.column.precision, c.column.scale) == (LogicalType.FIXED, 10, 2)
    assert (c.options.delimiter, c.options.enclosed_by) == (";", '"')
    assert c.options.enforce_length
    assert isinstance(d, ComputedColumn)
    assert d.sql == "coalesce(c, (1 + 2)) || ', )'"
    assert isinstance(e, FillerColumn)
    assert (e.column.kind, e.options.escape) == (LogicalType.TEXT, "")
    assert isinstance(f, ComputedColumn)
    assert f.sql == "c"
    assert set(copy.column_options) == {"A", "b", "C", "E"}


def test_options_of_columns_come_from_both_places() -> None:
    copy = parse_copy(
        "COPY t (a, b NULL 'x') COLUMN OPTION (b DELIMITER ',', a ESCAPE AS '^') FROM 'x'"
    )
    assert copy.column_options["A"].escape == "^"
    assert copy.column_options["B"].null == "x"
    assert copy.column_options["B"].delimiter == ","


def test_paths_have_compressions_of_their_own() -> None:
    copy = parse_copy(
        "COPY t FROM 'a' ON ANY NODE GZIP, 'b' BZIP ON EACH NODE, 's3://c/*' , 'd' UNCOMPRESSED"
    )
    assert isinstance(copy.inputs, tuple)
    assert [(each.path, each.compression) for each in copy.inputs] == [
        ("a", InputCompression.GZIP),
        ("b", InputCompression.BZIP),
        ("s3://c/*", None),
        ("d", InputCompression.UNCOMPRESSED),
    ]


def test_local_and_standard_input() -> None:
    copy = parse_copy("copy t from local stdin zstd")
    assert copy.local
    assert isinstance(copy.inputs, StandardInput)
    assert copy.inputs.compression is InputCompression.ZSTD
    copy = parse_copy("COPY t FROM LOCAL 'x', 'y'")
    assert copy.local
    assert isinstance(copy.inputs, tuple)
    assert all(isinstance(each, InputPath) for each in copy.inputs)


@pytest.mark.parametrize(
    "filters",
    [
        "WITH FILTER a(x=1) FILTER b() FILTER c()",
        "FILTER a(x=1), b(), c()",
        "WITH FILTER a(x=1) b() c()",
        "FILTER a(x=1), b WITH FILTER c()",
        "FILTER a(x=1) b() DELIMITER ',' FILTER c()",
        "FILTER public.a(x=1), PUBLIC.b() public.c()",
    ],
)
def test_filters_run_in_the_order_they_are_written_in_any_form(filters: str) -> None:
    copy = parse_copy(f"COPY t FROM 'x' {filters} PARSER p(y='z') REJECTMAX 3")
    assert [call.name for call in copy.filters] == ["a", "b", "c"]
    assert copy.filters[0].parameters == {"x": 1}
    assert copy.parser is not None
    assert copy.parser.parameters == {"y": "z"}
    assert copy.reject_max == 3


def test_a_source_has_parameters_of_all_kinds() -> None:
    copy = parse_copy(
        r"""COPY t WITH SOURCE KafkaSource(stream='a|0|-2,a|1|-2', duration = INTERVAL '10 seconds',
        eof_timeout=interval '2' minute, stop_on_eof=TRUE, x=false, n = -3, f=-1.50, z=NULL,
        d=12345678901234567890.12345678901234567890,
        "Q"=E'\t')  FILTER KafkaInsertDelimiters(delimiter = E'\n') DELIMITER ','"""
    )
    assert isinstance(copy.inputs, PhaseCall)
    assert copy.inputs.parameters == {
        "stream": "a|0|-2,a|1|-2",
        "duration": dt.timedelta(seconds=10),
        "eof_timeout": dt.timedelta(minutes=2),
        "stop_on_eof": True,
        "x": False,
        "n": -3,
        "f": Decimal("-1.50"),
        "d": Decimal("12345678901234567890.12345678901234567890"),
        "z": None,
        "Q": "\t",
    }
    assert copy.filters[0].parameters == {"delimiter": "\n"}
    assert copy.parsing == {"delimiter": ","}
    assert str(copy.inputs.parameters["f"]) == "-1.50"


@pytest.mark.parametrize(
    ("options", "name", "value"),
    [
        ("REJECTMAX 7", "reject_max", 7),
        ("ABORT ON ERROR", "abort_on_error", True),
        ("ERROR TOLERANCE", "error_tolerance", True),
        ("ENFORCELENGTH", "enforce_length", True),
        ("NO COMMIT", "no_commit", True),
        ("STREAM NAME 'nightly'", "stream_name", "nightly"),
        ("FORCE", "force", True),
        ("DIRECT TRICKLE AUTO FORCE", "force", True),
    ],
)
def test_options_of_the_statement(options: str, name: str, value: Any) -> None:
    assert getattr(parse_copy(f"COPY t FROM 'x' {options};"), name) == value


@pytest.mark.parametrize(
    ("options", "parsing"),
    [
        (r"DELIMITER AS E'\001' ENCLOSED BY '^'", {"delimiter": "\x01", "enclosed_by": "^"}),
        (r"ESCAPE AS '\'", {"escape": "\\"}),
        ("NO ESCAPE", {"no_escape": True}),
        ("NULL 'NA' SKIP 2 TRAILING NULLCOLS", {"null": "NA", "skip": 2, "trailing_nullcols": True}),
        (r"RECORD TERMINATOR E'\r\n' TRIM ' '", {"record_terminator": "\r\n", "trim": " "}),
        ("SKIP BYTES 10 COLSIZES (2, 3)", {"skip_bytes": 10, "colsizes": "2,3"}),
        (
            """COLLECTIONDELIMITER ';' COLLECTIONOPEN AS '<' COLLECTIONCLOSE '>'
            COLLECTIONENCLOSE '''' COLLECTIONNULLELEMENT 'nil'""",
            {
                "collection_delimiter": ";",
                "collection_open": "<",
                "collection_close": ">",
                "collection_enclose": "'",
                "collection_null_element": "nil",
            },
        ),
    ],
)  # fmt: skip
def test_options_of_the_parser(options: str, parsing: dict[str, Any]) -> None:
    assert parse_copy(f"COPY t FROM 'x' {options}").parsing == parsing


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ("PARQUET", "PARQUET"),
        ("PARQUET()", "PARQUET"),
        ("FIXEDWIDTH COLSIZES (1)", "FIXEDWIDTH"),
        ("COLSIZES (1)", "FixedWidth"),
    ],
)
def test_formats_are_parsers(options: str, name: str) -> None:
    parser = parse_copy(f"COPY t FROM 'x' {options}").parser
    assert parser is not None
    assert parser.name == name


def test_rejects_go_to_files_or_a_table() -> None:
    copy = parse_copy("COPY t FROM 'x' EXCEPTIONS 'e' REJECTED DATA 'd'")
    assert (copy.rejects.data_path, copy.rejects.exceptions_path) == ("d", "e")
    copy = parse_copy("COPY t FROM 'x' REJECTED DATA AS TABLE s.r")
    assert copy.rejects.table is not None
    assert copy.rejects.table.parts == ("S", "R")


def test_the_limit_of_rejects() -> None:
    assert parse_copy("COPY t FROM 'x'").compute_reject_limit() is None
    assert parse_copy("COPY t FROM 'x' REJECTMAX 0").compute_reject_limit() is None
    assert parse_copy("COPY t FROM 'x' REJECTMAX 5").compute_reject_limit() == 5
    assert parse_copy("COPY t FROM 'x' REJECTMAX 5 ABORT ON ERROR").compute_reject_limit() == 1


@pytest.mark.parametrize(
    ("text", "reason", "column"),
    [
        ("COPY", "name of a table", 5),
        ("COPY t", "Expected FROM with paths or STDIN, or SOURCE", 7),
        ("COPY t FROM x", "STDIN, or paths in single quotes", 13),
        ("COPY t FROM ''", "The path is empty", 15),
        ("COPY t FROM VERTICA d.s.t(a)", "FROM VERTICA is not supported", 13),
        ("COPY t FROM 'x' LZO", "LZO is not supported", 17),
        ("COPY t FROM 'x' ON node1", "Cannot choose nodes by name", 17),
        ("COPY t FROM 'x' DELIMITR ','", "DELIMITR of COPY. Did you mean DELIMITER? Valid", 17),
        ("COPY t FROM 'x' SEPARATOR ','", "Unknown option SEPARATOR of COPY. Valid options", 17),
        ("COPY t FROM 'x' DELIMITER", "Expected the delimiter in single quotes", 26),
        ("COPY t FROM 'x' SKIP 1 SKIP 2", "SKIP is given twice", 24),
        ("COPY t FROM 'x' SKIP 1.5", "Expected the number of records", 22),
        ("COPY t FROM 'x' PARSER p() PARSER q()", "PARSER is given twice", 28),
        ("COPY t FROM 'x' FILTER f(a=b)", "Expected a value here", 28),
        ("COPY t FROM 'x' FILTER f(a=1, A=2)", "Parameter A is given twice", 31),
        ("COPY t FROM 'x' FILTER f(a)", "Expected =", 27),
        ("COPY t FROM 'x' FILTER f(a=1e99999999999999999999)", "Number out of range: 1e9999", 28),
        (
            "COPY t FROM 'x' FILTER f(a=INTERVAL '1 year')",
            "Invalid interval '1 year'. Write it as",
            37,
        ),
        ("COPY t FROM 'x' FILTER", "Expected the name of a filter", 23),
        ("COPY t FROM 'x' WITH DELIMITER ','", "Expected FILTER or PARSER after WITH", 22),
        ("COPY t FROM 'x' NATIVE", "NATIVE is not supported", 17),
        ("COPY t FROM 'x' RETURNREJECTED", "not supported", 17),
        ("COPY t FROM 'x' RECORD TERMINATOR ''", "The record terminator is empty", 17),
        ("COPY t FROM 'x' REJECTED DATA 'd' ON n", "Remove ON", 35),
        ("COPY t FROM 'x' REJECTED DATA AS TABLE r EXCEPTIONS 'e'", "Remove EXCEPTIONS", 42),
        ("COPY t FROM 'x' REJECTED DATA 'd' REJECTED DATA 'e'", "REJECTED DATA is given twice", 35),
        ("COPY t (a, a) FROM 'x'", "Column A is given twice", 12),
        ("COPY t (a b) FROM 'x'", "Expected a comma", 11),
        ("COPY t (a AS (b) FROM 'x'", "a parenthesis is missing", 14),
        ("COPY t (a AS, b) FROM 'x'", "Expected an expression here", 13),
        ("COPY t (a AS 1) FROM 'x'", "At least one column must be parsed", 17),
        ("COPY t (a FILLER) FROM 'x'", "Expected a type here", 17),
        ("COPY t (a FILLER INTERVAL) FROM 'x'", "INTERVAL is not supported", 18),
        ("COPY t (a NULL 'x' NULL 'y') FROM 'x'", "NULL of this column is given twice", 20),
        (
            "COPY t (a NULL 'x') COLUMN OPTION (a NULL 'y') FROM 'x'",
            "also given in the column list",
            46,
        ),
        ("COPY t FROM 'x' ; SELECT 1", "Expected the end of the statement after COPY", 19),
    ],
)
def test_what_is_wrong_is_shown_where_it_is(text: str, reason: str, column: int) -> None:
    with pytest.raises(StatementError) as refused:
        parse_copy(text)
    assert reason in str(refused.value)
    assert refused.value.fields["column"] == column


WORDS = ("COPY", "t", "(", ")", ",", "'x'", "E'", "'", '"', "AS", "FROM", "FILLER", "INT", "a", "b", "NULL",
         "FILTER", "PARSER", "f(", "=", "1", "-", "SKIP", "REJECTED DATA", "AS TABLE", "WITH", "SOURCE", ";",
         "COLUMN OPTION", "--", "/*", "STDIN", "GZIP", "ON", "INTERVAL", "COLSIZES", "\0", "é", "$")  # fmt: skip


@settings(max_examples=settings().max_examples * 5 // 3)
@given(st.lists(st.sampled_from(WORDS), max_size=14), st.booleans())
def test_any_text_is_a_copy_or_refused(words: list[str], begins: bool) -> None:
    text = ("COPY t FROM 'x' " if begins else "COPY t (a " if words else "") + " ".join(words)
    with contextlib.suppress(StatementError):
        assert parse_copy(text).text

"""Statements about external functions: what they say, and where they are wrong."""

from __future__ import annotations

import contextlib
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from snowmelt.catalog.sql.cursor import CreateMode
from snowmelt.catalog.statements.executor import parse_statement
from snowmelt.catalog.statements.external_functions import (
    AlterFunction,
    CreateExternalFunction,
    DescribeFunction,
    DropFunction,
    RenameFunction,
)
from snowmelt.catalog.statements.function_grammar import CONTEXT_FUNCTIONS
from snowmelt.catalog.statements.grants import GrantOnFunction, PrivilegeGrant, ShowGrants
from snowmelt.errors import StatementError
from snowmelt.functions.definition import (
    DEFAULT_COMMENT,
    ExternalFunction,
    FailureAction,
    NullInputAction,
    RequestCompression,
    Volatility,
    format_create_function,
)
from snowmelt.functions.signature import FunctionArgument, FunctionSignature, parse_sql_type_text
from snowmelt.schema.types import quote_literal, to_display_name

HEAD = "CREATE EXTERNAL FUNCTION demo.public.f(n INTEGER) RETURNS VARCHAR "
TAIL = " API_INTEGRATION = i AS 'https://h/x'"


def created(text: str) -> ExternalFunction:
    statement = parse_statement(text)
    assert isinstance(statement, CreateExternalFunction)
    return statement.function


def refusal(text: str) -> tuple[str, int]:
    with pytest.raises(StatementError) as caught:
        parse_statement(text)
    return str(caught.value.fields["reason"]), int(str(caught.value.fields["column"]))


def test_the_published_example_is_read() -> None:
    statement = parse_statement(
        """create or replace external function local_echo(string_col varchar)
           returns variant
           api_integration = demonstration_external_api_integration_01
           as 'https://xyz.execute-api.us-west-2.amazonaws.com/prod/remote_echo';"""
    )
    assert isinstance(statement, CreateExternalFunction)
    assert statement.create_mode is CreateMode.OR_REPLACE
    assert statement.name.parts == ("LOCAL_ECHO",)
    function = statement.function
    assert function.signature.name == "local_echo"
    assert function.signature.format_arguments() == "(STRING_COL VARCHAR)"
    assert function.integration == "DEMONSTRATION_EXTERNAL_API_INTEGRATION_01"
    assert function.comment == DEFAULT_COMMENT
    assert function.compression is RequestCompression.AUTO


def test_every_clause_is_read_in_any_order() -> None:
    clauses: dict[str, dict[str, Any]] = {
        "RETURNS NULL ON NULL INPUT": {"null_input": NullInputAction.STRICT},
        "IMMUTABLE": {"volatility": Volatility.IMMUTABLE},
        "NOT NULL": {"returns_null": False},
        "COMMENT = 'it''s'": {"comment": "it's"},
        "HEADERS = ('volume-measure' = 'liters', 'x' = 'a\\'b')": {
            "headers": (("volume-measure", "liters"), ("x", "a'b"))
        },
        "CONTEXT_HEADERS = (current_timestamp, CURRENT_USER())": {
            "context_headers": ("CURRENT_TIMESTAMP", "CURRENT_USER")
        },
        "MAX_BATCH_ROWS = 5": {"max_batch_rows": 5},
        'COMPRESSION = "gzip"': {"compression": RequestCompression.GZIP},
        "MAX_IN_FLIGHT = 4": {"max_in_flight": 4},
        "RATE_LIMIT = 0.5": {"rate_limit": 0.5},
        "ROW_ERRORS = RETURN_NULL": {"row_errors": FailureAction.RETURN_NULL},
        "CACHE = OFF": {"cache_bytes": 0},
        "MAX_BATCH_SIZE = 1000": {"max_batch_bytes": 1000},
        "ON_BATCH_FAILURE = 'RETURN_NULL'": {"on_batch_failure": FailureAction.RETURN_NULL},
        "MAX_BATCH_RETRIES = 0": {"max_batch_retries": 0},
        "BATCH_TIMEOUT_SECS = 30": {"batch_timeout_s": 30.0},
        "API_INTEGRATION = i": {"integration": "I"},
        "REQUEST_TRANSLATOR = a.b.c": {},
        "RESPONSE_TRANSLATOR = t": {},
    }
    expected = {key: value for each in clauses.values() for key, value in each.items()}
    for seed in range(20):
        words = list(clauses)
        random.Random(seed).shuffle(words)
        statement = parse_statement(HEAD + " ".join(words) + " AS 'https://h/x'")
        assert isinstance(statement, CreateExternalFunction)
        assert statement.request_translator is not None
        assert statement.request_translator.parts == ("A", "B", "C")
        for field, value in expected.items():
            assert getattr(statement.function, field) == value, field


@pytest.mark.parametrize(
    ("text", "sql"),
    [
        ("x NUMBER DEFAULT 7", "7"),
        ("x NUMBER(3,1) DEFAULT -12.5", "-12.5"),
        ("x FLOAT DEFAULT 1e-7", "1e-7"),
        ("x VARCHAR DEFAULT 'it''s \\\\'", "'it''s \\\\'"),
        ("x BOOLEAN DEFAULT TRUE", "TRUE"),
        ("x DATE DEFAULT '2026-11-21'", "'2026-11-21'"),
        ("x VARIANT DEFAULT NULL", "NULL"),
    ],
)
def test_defaults_are_constants_of_their_type(text: str, sql: str) -> None:
    function = created(f"CREATE EXTERNAL FUNCTION f(a INT, {text}) RETURNS INT{TAIL}")
    assert function.signature.arguments[1].default == sql
    assert function.signature.min_arguments == 1


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("(a INT DEFAULT 'x')", "Expected a constant of type NUMBER"),
        ("(a NUMBER(2,0) DEFAULT 100)", "100 is not a NUMBER(2,0)"),
        ("(a INT DEFAULT 1.5)", "1.5 is not a NUMBER(38,0)"),
        ("(a DATE DEFAULT '21.11.2026')", "'21.11.2026' is not a DATE"),
        ("(a BINARY DEFAULT 'xyz')", "'xyz' is not a BINARY"),
        ("(a VARCHAR(1) DEFAULT 'ab')", "'ab' is not a VARCHAR(1)"),
        ("(a ARRAY DEFAULT 1)", "The DEFAULT of ARRAY can only be NULL"),
        ("(a INT DEFAULT 1, b INT)", "Argument B needs a DEFAULT"),
        ("(a INT, A INT)", "Argument A is specified twice"),
        ('(a INT, "a" INT)', "Argument A is specified twice"),
        ("(a GEOGRAPHY)", "GEOGRAPHY cannot be sent"),
        ("(a NUMBER(39,0))", "'NUMBER(39,0)' needs a precision"),
        ("(a)", "Expected a type here"),
        ("", "Expected the arguments in parentheses here"),
    ],
)
def test_a_wrong_argument_is_pointed_at(text: str, reason: str) -> None:
    told, column = refusal(f"CREATE EXTERNAL FUNCTION f{text} RETURNS INT{TAIL}")
    assert told.startswith(reason)
    assert column > 26


@pytest.mark.parametrize(
    ("clauses", "reason", "column"),
    [
        ("", "API_INTEGRATION is missing", 69),
        ("API_INTEGRATION = i VOLATILE IMMUTABLE", "IMMUTABLE repeats or contradicts", 97),
        ("API_INTEGRATION = i STRICT CALLED ON NULL INPUT", "CALLED ON NULL INPUT repeats", 95),
        ("COMMENT = 'a' COMMENT = 'b'", "COMMENT is given twice", 82),
        ("COLOUR = 'a'", "COLOUR is not a clause of an external function. Valid clauses:", 68),
        ("HEADERS = ('a_b' = 'c')", "HEADERS: header name 'a_b'", 78),
        ("HEADERS = ('a' = 'x', 'A' = 'y')", "HEADERS contains 'a' twice", 78),
        ("HEADERS = ('a' = 'x  y')", "HEADERS: the value of header 'a'", 78),
        ("HEADERS = ()", "Expected the name of a header", 79),
        ("CONTEXT_HEADERS = (now)", "now is not a context function. Valid functions:", 87),
        ("CONTEXT_HEADERS = ('CURRENT_USER')", "CONTEXT_HEADERS requires functions", 87),
        ("CONTEXT_HEADERS = (CURRENT_USER, current_user)", "CONTEXT_HEADERS has", 86),
        ("MAX_BATCH_ROWS = 0", "A number of rows must be between 1 and", 85),
        ("MAX_BATCH_ROWS = 'x'", "Expected a number of rows (1 to", 85),
        ("COMPRESSION = LZ4", "COMPRESSION must be AUTO, NONE, GZIP or DEFLATE, not LZ4", 82),
        ("RATE_LIMIT = 0", "A number of calls per second must be above 0", 81),
        ("RATE_LIMIT = -1", "Expected a number of calls per second here", 81),
        ("CACHE = ON", "CACHE must be a number of bytes or OFF, not ON", 76),
        ("ROW_ERRORS = IGNORE", "ROW_ERRORS must be ABORT or RETURN_NULL, not IGNORE", 81),
        ("BATCH_TIMEOUT_SECS = 100000", "A number of seconds must be above 0", 89),
        ("REQUEST_TRANSLATOR = a.b.c.d", "The name of a translator has at most 3", 94),
    ],
)
def test_a_wrong_clause_is_pointed_at(clauses: str, reason: str, column: int) -> None:
    told, at = refusal(f"{HEAD}{clauses} AS 'https://h/x'")
    assert told.startswith(reason)
    assert at == column + len(HEAD) - 67


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (HEAD + "API_INTEGRATION = i", "Expected AS and the URL"),
        (HEAD + "API_INTEGRATION = i AS x", "Expected the URL of the service in single quotes"),
        (HEAD + "API_INTEGRATION = i AS 'https://u:p@h/'", "AS: The URL has a user or password"),
        (
            HEAD + "API_INTEGRATION = i AS 'https://h/' STRICT",
            "Expected the end of the statement after the URL",
        ),
        ("CREATE OR ALTER TABLE t (x INT)", "OR ALTER is only supported for an EXTERNAL FUNCTION"),
        ("CREATE SECURE FUNCTION f()", "SECURE is only supported for an EXTERNAL FUNCTION"),
        ("CREATE OR REPLACE EXTERNAL FUNCTION IF NOT EXISTS f()", "OR REPLACE and IF NOT"),
        ("CREATE EXTERNAL FUNCTION f() RETURNS TABLE (x INT)", "RETURNS TABLE is not supported"),
        ("DROP FUNCTION f", "Write the types of the function's arguments, such as f(NUMBER"),
        ("ALTER FUNCTION f() SET", "Expected a clause of ALTER FUNCTION here. Valid clauses:"),
        (
            "ALTER FUNCTION f() SET URL = 'x'",
            "URL is not a clause of ALTER FUNCTION. Valid clauses:",
        ),
        ("ALTER FUNCTION f() UNSET API_INTEGRATION", "API_INTEGRATION cannot be UNSET"),
        ("ALTER FUNCTION f() DROP x", "Expected SET, UNSET or RENAME here"),
        ("GRANT SELECT ON FUNCTION f() TO ROLE r", "SELECT cannot be granted on a function"),
        ("CREATE EXTERNAL TABLE t (x INT)", "EXTERNAL is not supported"),
    ],
)
def test_what_cannot_be_said_is_refused_with_a_sentence(text: str, reason: str) -> None:
    assert refusal(text)[0].startswith(reason)


def test_no_error_shows_a_url_with_its_key() -> None:
    told, _ = refusal(HEAD + "API_INTEGRATION = i AS 'https://h/a/../b?code=hunter2'")
    assert "hunter2" not in told


def test_other_statements_name_functions_with_types() -> None:
    types = (parse_sql_type_text("NUMBER"), parse_sql_type_text("DOUBLE PRECISION"))
    drop = parse_statement("DROP FUNCTION IF EXISTS a.b.c(NUMBER, DOUBLE PRECISION)")
    assert isinstance(drop, DropFunction)
    assert (drop.function.name.parts, drop.function.types) == (("A", "B", "C"), types)
    assert (drop.if_exists, drop.external) == (True, False)
    described = parse_statement("DESC FUNCTION c()")
    assert isinstance(described, DescribeFunction)
    assert described.function.types == ()
    grant = parse_statement("GRANT USAGE ON FUNCTION c(INT) TO ROLE r;")
    assert isinstance(grant, GrantOnFunction)
    assert grant.grant == PrivilegeGrant(("USAGE",), "R", False)
    shown = parse_statement("SHOW GRANTS ON FUNCTION c(INT)")
    assert isinstance(shown, ShowGrants)
    assert (shown.kind, shown.types) == ("FUNCTION", (parse_sql_type_text("INT"),))
    renamed = parse_statement("ALTER EXTERNAL FUNCTION c(INT) RENAME TO d")
    assert isinstance(renamed, RenameFunction)
    assert (renamed.new_name_text, renamed.new_name.parts) == ("d", ("D",))


def test_alter_sets_and_unsets_with_commas_or_without() -> None:
    statement = parse_statement(
        "ALTER FUNCTION c(INT) SET SECURE, COMMENT = 'x' MAX_BATCH_ROWS = 9"
    )
    assert isinstance(statement, AlterFunction)
    assert statement.changes == {"secure": True, "comment": "x", "max_batch_rows": 9}
    statement = parse_statement(
        "ALTER FUNCTION c(INT) UNSET SECURE, COMMENT, CACHE, REQUEST_TRANSLATOR;"
    )
    assert isinstance(statement, AlterFunction)
    assert statement.changes == {
        "secure": False,
        "comment": DEFAULT_COMMENT,
        "cache_bytes": None,
        "request_translator": None,
    }


_texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
_names = st.text(st.characters(categories=["L", "N", "P"]), min_size=1, max_size=8).filter(
    lambda name: name == name.upper() and '"' not in name
)
_visible = st.text(st.sampled_from("abcXYZ019-'\\!"), min_size=1, max_size=6)
_type_texts = st.sampled_from(
    [
        "NUMBER(10,2)",
        "INT",
        "FLOAT",
        "VARCHAR",
        "VARCHAR(3)",
        "BOOLEAN",
        "DATE",
        "TIME(3)",
        "ARRAY",
        "TIMESTAMP_NTZ",
        "TIMESTAMP_TZ(6)",
        "VARIANT",
        "OBJECT",
        "BINARY",
    ]
)


@st.composite
def signatures(draw: st.DrawFn) -> FunctionSignature:
    names = draw(st.lists(_names, max_size=4, unique=True))
    arguments = [FunctionArgument(name, parse_sql_type_text(draw(_type_texts))) for name in names]
    if draw(st.booleans()):
        text = quote_literal(draw(_texts))
        arguments.append(FunctionArgument("LAST_ONE", parse_sql_type_text("VARCHAR"), default=text))
    return FunctionSignature("f", tuple(arguments), parse_sql_type_text(draw(_type_texts)))


_maybe = st.none() | st.integers(1, 1000)
functions = st.builds(
    ExternalFunction,
    signature=signatures(),
    url=st.sampled_from(["https://h/x", "https://h/'?a=%27"]),
    integration=_names,
    returns_null=st.booleans(),
    null_input=st.sampled_from(NullInputAction),
    volatility=st.sampled_from(Volatility),
    secure=st.booleans(),
    comment=_texts,
    headers=st.lists(
        st.tuples(_visible.filter(lambda name: "\\" not in name), _visible),
        max_size=3,
        unique_by=lambda pair: pair[0].lower(),
    ).map(tuple),
    context_headers=st.lists(
        st.sampled_from(sorted(CONTEXT_FUNCTIONS)), max_size=3, unique=True
    ).map(tuple),
    max_batch_rows=_maybe,
    max_batch_bytes=_maybe,
    compression=st.sampled_from(RequestCompression),
    max_in_flight=_maybe,
    rate_limit=st.none() | st.floats(0, 1000, exclude_min=True, allow_subnormal=False),
    row_errors=st.sampled_from(FailureAction),
    cache_bytes=st.none() | st.integers(0, 1000),
    on_batch_failure=st.sampled_from(FailureAction),
    max_batch_retries=st.none() | st.integers(0, 100),
    batch_timeout_s=st.none() | st.floats(0.001, 1000),
)


@pytest.mark.slow
@given(function=functions, order=st.randoms(use_true_random=False))
def test_a_statement_that_is_written_reads_back_in_any_order_of_its_clauses(
    function: ExternalFunction, order: random.Random
) -> None:
    text = format_create_function(function, "f", to_display_name(function.integration))
    assert created(text) == function
    # A comment may hold line feeds, so that lines are clauses only where it has none.
    if "\n" not in function.comment and not any(
        "\n" in (each.default or "") for each in function.signature.arguments
    ):
        head, returns, *clauses, url = text.split("\n")
        order.shuffle(clauses)
        assert created("\n".join((head, returns, *clauses, url))) == function


@given(
    text=st.lists(
        st.sampled_from((HEAD + TAIL + " HEADERS = ('a' = 'b') STRICT").split()), max_size=12
    )
)
def test_any_words_are_read_or_refused_and_nothing_else(text: list[Any]) -> None:
    with contextlib.suppress(StatementError):
        parse_statement("CREATE EXTERNAL FUNCTION " + " ".join(text))

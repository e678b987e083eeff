"""A signature reads back from the header it writes."""

from __future__ import annotations

from snowmelt.functions.signature import (
    FunctionArgument,
    FunctionSignature,
    HeaderStyle,
    parse_arguments,
    parse_sql_type_text,
)

SEED = FunctionSignature(
    "ext_func",
    (FunctionArgument("n", parse_sql_type_text("INTEGER")),),
    parse_sql_type_text("VARCHAR"),
)


def test_the_published_example_has_its_published_header_values():
    style = HeaderStyle()
    assert SEED.format_header_name(style) == "ext_func"
    assert SEED.format_arguments() == "(N NUMBER)"
    assert SEED.format_return_type(style) == "VARCHAR(16777216)"


def test_newer_capitals_and_lengths_are_a_setting():
    style = HeaderStyle(upper_name=True, text_length=134217728)
    assert SEED.format_header_name(style) == "EXT_FUNC"
    assert SEED.format_return_type(style) == "VARCHAR(134217728)"


def test_a_header_gives_names_and_types_back():
    header = "(MODEL VARCHAR, N NUMBER(10,2), MESSAGES ARRAY)"
    assert parse_arguments(header) == (
        ("MODEL", parse_sql_type_text("VARCHAR")),
        ("N", parse_sql_type_text("NUMBER(10,2)")),
        ("MESSAGES", parse_sql_type_text("ARRAY")),
    )
    assert parse_arguments("()") == ()
    assert parse_arguments("(A, B VARCHAR)") is None
    assert parse_arguments("gibberish") is None


def test_arguments_with_defaults_may_be_left_out():
    seven = FunctionArgument("k", parse_sql_type_text("INTEGER"), default="7")
    signature = FunctionSignature("f", (*SEED.arguments, seven), SEED.returns)
    assert signature.min_arguments == 1
    assert signature.format_ddl() == "f(N NUMBER(38,0), K NUMBER(38,0) DEFAULT 7)\nRETURNS VARCHAR"
    assert signature.format_arguments() == "(N NUMBER, K NUMBER)"

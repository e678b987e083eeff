"""A signature reads back from the header it writes."""

from __future__ import annotations

from snowmelt.functions.signature import Argument, HeaderStyle, Signature, arguments_of, parse_type

SEED = Signature("ext_func", (Argument("n", parse_type("INTEGER")),), parse_type("VARCHAR"))


def test_the_published_example_has_its_published_header_values():
    style = HeaderStyle()
    assert SEED.name_text(style) == "ext_func"
    assert SEED.arguments_text() == "(N NUMBER)"
    assert SEED.returns_text(style) == "VARCHAR(16777216)"


def test_newer_capitals_and_lengths_are_a_setting():
    style = HeaderStyle(upper_name=True, text_length=134217728)
    assert SEED.name_text(style) == "EXT_FUNC"
    assert SEED.returns_text(style) == "VARCHAR(134217728)"


def test_a_header_gives_names_and_types_back():
    header = "(MODEL VARCHAR, N NUMBER(10,2), MESSAGES ARRAY)"
    assert arguments_of(header) == (
        ("MODEL", parse_type("VARCHAR")),
        ("N", parse_type("NUMBER(10,2)")),
        ("MESSAGES", parse_type("ARRAY")),
    )
    assert arguments_of("()") == ()
    assert arguments_of("(A, B VARCHAR)") is None
    assert arguments_of("gibberish") is None


def test_arguments_with_defaults_may_be_left_out():
    seven = Argument("k", parse_type("INTEGER"), default="7")
    signature = Signature("f", (*SEED.arguments, seven), SEED.returns)
    assert signature.least_arguments == 1
    assert signature.ddl() == "f(N NUMBER(38,0), K NUMBER(38,0) DEFAULT 7)\nRETURNS VARCHAR"
    assert signature.arguments_text() == "(N NUMBER, K NUMBER)"

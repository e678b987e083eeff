"""Types have the texts that DDL and headers write."""

from __future__ import annotations

import pytest

from snowmelt.functions.errors import DeclarationInvalid
from snowmelt.functions.signature import parse_sql_type_text


@pytest.mark.parametrize(
    ("text", "ddl", "bare", "full"),
    [
        ("integer", "NUMBER(38,0)", "NUMBER", "NUMBER(38,0)"),
        ("number( 10 , 2 )", "NUMBER(10,2)", "NUMBER", "NUMBER(10,2)"),
        ("varchar", "VARCHAR", "VARCHAR", "VARCHAR(16777216)"),
        ("STRING(7)", "VARCHAR(7)", "VARCHAR", "VARCHAR(7)"),
        ("double precision", "FLOAT", "FLOAT", "FLOAT"),
        ("timestamp", "TIMESTAMP_NTZ", "TIMESTAMP_NTZ", "TIMESTAMP_NTZ(9)"),
        ("timestamp_tz(3)", "TIMESTAMP_TZ(3)", "TIMESTAMP_TZ", "TIMESTAMP_TZ(3)"),
        ("binary", "BINARY", "BINARY", "BINARY(8388608)"),
        ("variant", "VARIANT", "VARIANT", "VARIANT"),
    ],
)
def test_a_type_has_three_texts(text, ddl, bare, full):
    found = parse_sql_type_text(text)
    assert (found.ddl, found.base_name, found.format_with_parameters()) == (ddl, bare, full)


@pytest.mark.parametrize(
    "text",
    ["GEOGRAPHY", "NUMBER(39)", "NUMBER(3,4)", "DATE(3)", "VARCHAR(0)", "TIME(10)", "", "A B"],
)
def test_what_cannot_be_sent_is_refused(text):
    with pytest.raises(DeclarationInvalid):
        parse_sql_type_text(text)

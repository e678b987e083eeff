"""Types of external functions as Spark's SQL has them."""

from __future__ import annotations

import pytest

from snowmelt.functions.signature import parse_sql_type_text
from snowmelt.spark.functions import registry


@pytest.mark.parametrize(
    ("kind", "visible", "raw"),
    [
        ("NUMBER", "DECIMAL(38,0)", "DECIMAL(38,0)"),
        ("NUMBER(18,0)", "DECIMAL(18,0)", "BIGINT"),
        ("NUMBER(18,2)", "DECIMAL(18,2)", "DECIMAL(18,2)"),
        ("FLOAT", "DOUBLE", "DOUBLE"),
        ("VARCHAR(5)", "STRING", "STRING"),
        ("TIME", "TIME(6)", "TIME(6)"),
        ("TIME(3)", "TIME(3)", "TIME(6)"),
        ("TIMESTAMP_TZ", "TIMESTAMP", "TIMESTAMP"),
        ("VARIANT", "VARIANT", "STRING"),
        ("ARRAY", "VARIANT", "STRING"),
    ],
)
def test_values_have_the_types_of_columns(kind: str, visible: str, raw: str) -> None:
    sql_type = parse_sql_type_text(kind)
    assert registry.to_visible_type(sql_type) == visible
    assert registry.to_raw_type(sql_type) == raw


def test_what_needs_no_conversion_has_none() -> None:
    assert registry.build_value_sql(parse_sql_type_text("VARCHAR"), "f(x)") == "f(x)"
    assert registry.build_try_value_sql(parse_sql_type_text("FLOAT"), "f(x)") == "f(x)"
    assert registry.build_argument_sql(parse_sql_type_text("DATE"), "`d`", is_visible=True) == "`d`"


@pytest.mark.parametrize("kind", ["VARIANT", "OBJECT", "TIME(3)", "NUMBER(5,0)"])
def test_a_call_is_written_once_so_that_it_is_made_once(kind: str) -> None:
    sql_type = parse_sql_type_text(kind)
    assert registry.build_try_value_sql(sql_type, "f(x)").count("f(x)") == 1
    assert registry.build_value_sql(sql_type, "f(x)").count("f(x)") == 1
    assert registry.build_argument_sql(sql_type, "g(x)").count("g(x)") == 1


def test_numbers_that_do_not_fit_are_cut_by_nobody() -> None:
    narrow = registry.build_argument_sql(parse_sql_type_text("NUMBER(5,0)"), "x")
    assert narrow == "CAST(CAST(x AS DECIMAL(5,0)) AS BIGINT)"

"""COPY_HISTORY(…) becomes a query of the view; every argument counts, others are refused."""

from __future__ import annotations

import re

import pytest

from snowmelt.errors import StatementError
from snowmelt.schema.types import TableName
from snowmelt.spark.sql.table_functions import rewrite_table_functions


def rewrite(text: str, namespace: tuple[str, ...] = ("DEMO", "PUBLIC")) -> tuple[str, list[str]]:
    asked: list[TableName] = []
    return rewrite_table_functions(text, namespace, asked.append), [str(each) for each in asked]


@pytest.mark.parametrize(
    ("call", "table"),
    [
        (
            "INFORMATION_SCHEMA.COPY_HISTORY(TABLE_NAME => 't', START_TIME => now())",
            "DEMO.PUBLIC.T",
        ),
        (
            "other.information_schema.copy_history(table_name=>'t',start_time=>now())",
            "OTHER.PUBLIC.T",
        ),
        ("copy_history(START_TIME => now(), TABLE_NAME => 'a.b.\"c\"')", 'A.B."c"'),
    ],
)
def test_a_call_is_replaced_where_it_stands(call: str, table: str) -> None:
    text, asked = rewrite(f"SELECT 'copy_history(' FROM TABLE({call}) h WHERE row_count > 1")
    assert asked == [table]
    assert text.startswith("SELECT 'copy_history(' FROM (SELECT file_name AS FILE_NAME")
    assert text.endswith("AND end_time >= (now())) h WHERE row_count > 1")


def test_units_and_ends_of_time_are_those_of_spark() -> None:
    text, _ = rewrite(
        "SELECT * FROM TABLE(COPY_HISTORY(TABLE_NAME => 't', START_TIME => "
        "DATEADD(hours, -1, CURRENT_TIMESTAMP()), END_TIME => dateadd('minute', -1, now())))"
    )
    assert "end_time >= (DATEADD(hour, -1, CURRENT_TIMESTAMP()))" in text
    assert "end_time <= (dateadd(minute, -1, now()))" in text


def test_other_queries_stay_as_they_are() -> None:
    for text in ("SELECT * FROM copy_history", "SELECT copy_history (1) FROM TABLE(other(1))"):
        assert rewrite(text) == (text, [])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("TABLE_NAME => 't'", "needs START_TIME"),
        ("START_TIME => now()", "needs TABLE_NAME"),
        ("'t', now()", "has the arguments TABLE_NAME"),
        ("TABLE_NAME => t, START_TIME => now()", "in single quotes"),
        ("TABLE_NAME => 't', TABLE_NAME => 't'", "given twice"),
        ("TABLE_NAME => 't', RESULT_LIMIT => 1", "has the arguments TABLE_NAME"),
        ("TABLE_NAME => 't', START_TIME => (now()", "Expected ) after"),
    ],
)
def test_wrong_arguments_are_refused(arguments: str, message: str) -> None:
    with pytest.raises(StatementError, match=re.escape(message)):
        rewrite(f"SELECT * FROM TABLE(COPY_HISTORY({arguments}))")

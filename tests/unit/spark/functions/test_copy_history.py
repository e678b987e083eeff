"""COPY_HISTORY(…) becomes a query of the view; every argument counts, others are refused."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest

from snowmelt.errors import StatementError
from snowmelt.spark.functions.call_rewriter import (
    CallArgument,
    FunctionCall,
    find_calls,
    rewrite_calls,
)
from snowmelt.spark.functions.copy_history import HistoryCall


def rewrite(text: str, namespace: tuple[str, ...] = ("DEMO", "PUBLIC")) -> tuple[str, list[str]]:
    tables: list[str] = []
    calls = find_calls(text)

    def render(call: FunctionCall, given: Sequence[CallArgument]) -> str:
        history = HistoryCall(call, given, calls.tokens[call.start], namespace)
        tables.append(str(history.table))
        return history.build_query()

    return rewrite_calls(calls, {each.start: each for each in calls.history_calls}, render), tables


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
    assert "end_time >= (DATEADD(HOUR, -1, CURRENT_TIMESTAMP()))" in text
    assert "end_time <= (dateadd(MINUTE, -1, now()))" in text
    text, _ = rewrite(
        "SELECT * FROM TABLE(COPY_HISTORY(TABLE_NAME => 't', START_TIME => f('DATEADD(DAYS, 1)')))"
    )
    assert "end_time >= (f('DATEADD(DAYS, 1)'))" in text


CALL = "TABLE(COPY_HISTORY(TABLE_NAME => 't', START_TIME => now()))"


@pytest.mark.parametrize(
    "around",
    [
        r'"it\"s {}", ',
        "'it''s {}', ",
        r"r'\', ' {} ', ",
        "/* /* {} */ {} */ ",
        "-- {}\n",
        "`{}`, ",
    ],
)
def test_strings_comments_and_names_beside_a_call_stay_as_they_are(around: str) -> None:
    call = CALL.replace("'", "") if "'{}" in around or "' {}" in around else CALL
    before = "SELECT " + around.replace("{}", call.replace("'", "")) + "1 FROM "
    text, asked = rewrite(before + CALL)
    assert asked == ["DEMO.PUBLIC.T"]
    assert text.startswith(before + "(SELECT file_name")


def test_a_time_may_come_from_a_query() -> None:
    start = f"(SELECT max(LAST_LOAD_TIME) FROM {CALL})"
    text, asked = rewrite(
        f"SELECT 1 FROM TABLE(COPY_HISTORY(START_TIME => {start}, TABLE_NAME => 'u'))"
    )
    assert asked == ["DEMO.PUBLIC.T", "DEMO.PUBLIC.U"]
    assert text.count("FROM copy_history WHERE") == 2


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
        (r"TABLE_NAME => 'a\'b', START_TIME => now()", "without backslashes"),
        ('TABLE_NAME => "t", START_TIME => now()', "in single quotes"),
    ],
)
def test_wrong_arguments_are_refused(arguments: str, message: str) -> None:
    with pytest.raises(StatementError, match=re.escape(message)):
        rewrite(f"SELECT * FROM TABLE(COPY_HISTORY({arguments}))")

"""A task tells where it is in its query, the same for every attempt."""

from __future__ import annotations

import datetime as dt
from types import SimpleNamespace
from typing import Any

import pytest

from snowmelt.functions.caller.plan import CallPlan
from snowmelt.functions.definition import ApiIntegration, ExternalFunction
from snowmelt.functions.signature import FunctionArgument, FunctionSignature, parse_sql_type_text
from snowmelt.spark.functions.call_log import CallLogFiles
from snowmelt.spark.functions.worker import TIME_HEADERS, FunctionUse, find_query_position

SESSION = "5a3e9c1e-2f0b-4d1c-8a57-3f1f6d2a9b10"


def task(stage: int = 3, partition: int = 2, attempt: int = 0, **properties: str) -> Any:
    """Return a task's context as PySpark shows it."""
    named = {name.replace("__", "."): value for name, value in properties.items()}
    return SimpleNamespace(
        stageId=lambda: stage,
        partitionId=lambda: partition,
        attemptNumber=lambda: attempt,
        getLocalProperty=named.get,
    )


def tagged(execution: int, **options: Any) -> Any:
    tags = f"spark-session-{SESSION}-execution-root-id-{execution},spark-session-{SESSION}"
    return task(spark__job__tags=tags, **options)


def test_attempts_are_at_the_same_place() -> None:
    first, second = (find_query_position(tagged(7, attempt=n), "other") for n in (0, 1))
    assert (first.query_id, first.stage, first.partition) == (second.query_id, 3, 2)
    assert (first.attempt, second.attempt) == (0, 1)


def test_executions_and_sessions_have_ids_of_their_own() -> None:
    places = [
        find_query_position(tagged(7), "s"),
        find_query_position(tagged(8), "s"),
        find_query_position(task(spark__sql__execution__root__id="7"), "s"),
        find_query_position(task(spark__sql__execution__root__id="7"), "t"),
        find_query_position(task(), "s"),
        find_query_position(task(stage=4), "s"),
    ]
    assert len({place.query_id for place in places}) == len(places)


def test_a_streaming_batch_keeps_its_id_in_another_run() -> None:
    stream: dict[str, Any] = {"sql__streaming__queryId": SESSION, "streaming__sql__batchId": "5"}
    before, after = task(stage=3, **stream), tagged(99, stage=41, **stream)
    assert find_query_position(before, "s") == find_query_position(after, "t")
    other = task(**{**stream, "streaming__sql__batchId": "6"})
    assert find_query_position(other, "s").query_id != find_query_position(before, "s").query_id


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("CURRENT_DATE", "2026-03-01"),
        ("CURRENT_TIME", "01:02:03"),
        ("CURRENT_TIMESTAMP", "2026-03-01 01:02:03.456 +0200"),
        ("LOCALTIMESTAMP", "2026-03-01 01:02:03.456 +0200"),
    ],
)
def test_instants_are_told_in_the_zone_of_the_session(name: str, text: str) -> None:
    zone = dt.timezone(dt.timedelta(hours=2))
    assert TIME_HEADERS[name](dt.datetime(2026, 3, 1, 1, 2, 3, 456789, zone)) == text


@pytest.mark.parametrize(
    ("arguments", "headers", "columns"),
    [(0, (), 1), (2, (), 2), (0, ("CURRENT_DATE",), 1), (1, ("CURRENT_TIME", "CURRENT_USER"), 2)],
)
def test_a_column_comes_for_the_instant_or_for_the_number_of_rows(
    arguments: int, headers: tuple[str, ...], columns: int
) -> None:
    text = parse_sql_type_text("VARCHAR")
    signature = FunctionSignature(
        "F", tuple(FunctionArgument(f"A{n}", text) for n in range(arguments)), text
    )
    function = ExternalFunction(signature, "http://h/f", "I", context_headers=headers)
    plan = CallPlan(function, ApiIntegration("I", "http", ("http://h",)), "UTC")
    use = FunctionUse(plan, False, SESSION, CallLogFiles("file:///nowhere", "F"))
    assert use.column_count == columns

"""Context headers say who asks."""

from __future__ import annotations

from snowmelt.spark.functions.registry import CallerContext, make_context_headers


def test_only_what_was_asked_for_is_told() -> None:
    asker = CallerContext("READER", "ann", "s1", ("DEMO", "public"), "select 1")
    names = ("CURRENT_ROLE", "CURRENT_SCHEMAS", "CURRENT_STATEMENT", "CURRENT_REGION")
    assert make_context_headers(names, asker) == {
        "CURRENT_ROLE": "READER",
        "CURRENT_SCHEMAS": '["DEMO.\\"public\\""]',
        "CURRENT_STATEMENT": "select 1",
        "CURRENT_REGION": "",
    }


def test_without_a_database_there_is_no_schema() -> None:
    names = ("CURRENT_DATABASE", "CURRENT_SCHEMA", "CURRENT_SCHEMAS")
    told = make_context_headers(names, CallerContext("READER", "ann", "s1"))
    assert told == {"CURRENT_DATABASE": "", "CURRENT_SCHEMA": "", "CURRENT_SCHEMAS": "[]"}

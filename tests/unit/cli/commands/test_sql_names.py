"""`snowmelt sql` and `snowmelt copy` with misspelled names: suggestions, before Spark starts."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from unit.cli.conftest import Finished

SCRIPT = """
CREATE DATABASE demo;
CREATE TABLE demo.public.events (id INT);
CREATE TABLE demo.public.people (id INT);
CREATE ROLE reading;
GRANT USAGE ON DATABASE demo TO ROLE reading;
GRANT USAGE ON SCHEMA demo.public TO ROLE reading;
GRANT SELECT ON TABLE demo.public.people TO ROLE reading;
CREATE API INTEGRATION here API_PROVIDER = http API_ALLOWED_PREFIXES = ('http://127.0.0.1:8700');
CREATE EXTERNAL FUNCTION demo.public.middle(a FLOAT) RETURNS FLOAT API_INTEGRATION = here
  AS 'http://127.0.0.1:8700/middle'
"""
NOT_FOUND = "does not exist, or this role may not use it."


@pytest.fixture
def ask(snowmelt: Callable[..., Finished]) -> Callable[..., str]:
    assert snowmelt("sql", SCRIPT).returncode == 0

    def refuse(command: str, *given: str) -> str:
        ended = snowmelt(command, *given)
        assert (ended.returncode, ended.stdout) == (1, "")
        return ended.stderr.removeprefix("snowmelt: ").removesuffix("\n")

    return refuse


def test_the_most_similar_visible_name_is_suggested(ask: Callable[..., str]) -> None:
    missing = f"Table DEMO.PUBLIC.EVENT {NOT_FOUND}"
    suggested = f"{missing} Did you mean DEMO.PUBLIC.EVENTS?"
    assert ask("sql", "SELECT * FROM demo.public.event") == suggested
    assert ask("sql", "ALTER TABLE demo.public.event DROP COLUMN id") == suggested
    assert ask("copy", "COPY demo.public.event FROM 'no.csv'") == suggested
    reading = ("--role", "reading")
    assert ask("sql", "SELECT * FROM demo.public.event", *reading) == missing
    assert ask("sql", "SELECT * FROM demo.public.events", *reading) == (
        f"Table DEMO.PUBLIC.EVENTS {NOT_FOUND}"
    )
    history = "demo.INFORMATION_SCHEMA.COPY_HISTORY(TABLE_NAME => 'people', START_TIME => now())"
    assert ask("sql", f"SELECT * FROM TABLE({history}) WHERE demo.public.middles(1) > 0") == (
        f"Function DEMO.PUBLIC.MIDDLES {NOT_FOUND} Did you mean DEMO.PUBLIC.MIDDLE?"
    )
    # The same name in another schema.
    assert ask("sql", "DROP TABLE demo.public2.people", *reading) == (
        f"Schema DEMO.PUBLIC2 {NOT_FOUND} Did you mean DEMO.PUBLIC.PEOPLE?"
    )
    assert ask("sql", "SELECT * FROM dem.public.people") == (
        f"Database DEM {NOT_FOUND} Did you mean DEMO.PUBLIC.PEOPLE?"
    )


def test_missing_names_of_other_queries_are_reported_without_spark(
    ask: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # A start of Spark would fail.
    monkeypatch.setitem(sys.modules, "snowmelt.spark.session", None)
    missing = f"Function DEMO.PUBLIC.MIDDLE2 {NOT_FOUND} Did you mean DEMO.PUBLIC.MIDDLE?"
    assert ask("sql", "SELECT demo.public.middle2(1)") == missing
    assert ask("sql", "SELECT abs(demo.public.middle2(id)) FROM demo.public.events") == missing
    join = "SELECT a.id FROM demo.public.events a JOIN demo.public.peoples b ON a.id = b.id"
    assert ask("sql", join) == (
        f"Table DEMO.PUBLIC.PEOPLES {NOT_FOUND} Did you mean DEMO.PUBLIC.PEOPLE?"
    )
    assert ask("sql", "SELECT demo.public.middle(1)", "--role", "reading") == (
        f"Function DEMO.PUBLIC.MIDDLE {NOT_FOUND}"
    )
    assert ask("sql", "DROP FUNCTION demo.public.middle2(FLOAT)") == (
        "Function DEMO.PUBLIC.MIDDLE2(FLOAT) does not exist. Did you mean DEMO.PUBLIC.MIDDLE?"
    )


def test_a_statement_without_quotes_gets_an_example(snowmelt: Callable[..., Finished]) -> None:
    expected = "snowmelt copy \"COPY demo.public.t FROM 'data.csv' DELIMITER ','\""
    ended = snowmelt("copy", "own.csv", "demo.public.events")
    assert ended.returncode == 2
    assert (
        f"unknown argument 'demo.public.events'. Write the statement as one argument in quotes: {expected}"
        in (ended.stderr)
    )
    ended = snowmelt("copy", "own.csv")
    assert ended.stderr == (
        "snowmelt: Expected a COPY statement, got 'own.csv'. Write it as one argument in quotes: "
        f"{expected}\n"
    )

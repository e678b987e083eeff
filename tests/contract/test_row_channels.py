"""What the row API keeps: requests that name no channel for a while, and the last refusal."""

from __future__ import annotations

import datetime as dt
from typing import Any

import sqlalchemy as sa

from fixtures.catalog import START, World
from snowmelt.catalog.db.database import Database
from snowmelt.catalog.streaming import row_request_state


def test_old_requests_are_forgotten_and_young_ones_known(database: Database) -> None:
    late = START + dt.timedelta(hours=1)
    with database.writing() as connection:
        row_request_state.save_request_ids(connection, 7, ["a", "b"], START)
        row_request_state.save_request_ids(connection, 7, ["c"], late)
    with database.writing() as connection:
        assert row_request_state.find_saved_request_ids(connection, 7, ["a", "c", "x"]) == {
            "a",
            "c",
        }
        assert row_request_state.find_saved_request_ids(connection, 8, ["a"]) == set()
        assert row_request_state.delete_request_ids(connection, late, limit=1) == 1
        assert row_request_state.delete_request_ids(connection, late, limit=10) == 1
        assert row_request_state.find_saved_request_ids(connection, 7, ["a", "b", "c"]) == {"c"}


def test_what_is_told_of_a_refused_row_may_hold_any_sign(world: World) -> None:
    table = world.table()
    channel = world.client().open("C").record
    told = row_request_state.AppendTotals(table.table_id, "C", "r", 1, 1, "no column a\0b", "7")
    with world.database.writing() as connection:
        row_request_state.apply_appends(connection, [told], world.now)
        found = row_request_state.find_row_channels(connection, channel.table_id, ["C"])["C"]
    assert found.last_error == "no column a␀b"


def test_statements_are_the_same_however_many_are_asked_for(world: World) -> None:
    table = world.table()
    names = {f"C{number}" for number in range(3)}
    for name in names:
        world.client().open(name)
    texts = set()
    with world.database.reading() as connection:

        @sa.event.listens_for(connection, "before_cursor_execute")
        def note(connection: Any, cursor: Any, statement: str, *more: Any) -> None:
            if statement.startswith("SELECT"):
                texts.add(statement)

        for count in (3, 40, 400):
            some = [f"C{number}" for number in range(count)]
            for find in (
                row_request_state.find_row_channels,
                row_request_state.find_channel_sequencers,
            ):
                assert set(find(connection, table.table_id, some)) == names
            assert not row_request_state.find_saved_request_ids(connection, table.table_id, some)
    assert len(texts) == 3

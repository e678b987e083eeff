"""Requests that name no channel are kept for a while, on each database."""

from __future__ import annotations

import datetime as dt

from fix_catalog import START
from snowmelt.catalog import row_channels


def test_old_requests_are_forgotten_and_young_ones_known(database):
    late = START + dt.timedelta(hours=1)
    with database.writing() as connection:
        row_channels.note_requests(connection, 7, ["a", "b"], START)
        row_channels.note_requests(connection, 7, ["c"], late)
    with database.writing() as connection:
        assert row_channels.known_requests(connection, 7, ["a", "c", "x"]) == {"a", "c"}
        assert row_channels.known_requests(connection, 8, ["a"]) == set()
        assert row_channels.forget_requests(connection, late, limit=1) == 1
        assert row_channels.forget_requests(connection, late, limit=10) == 1
        assert row_channels.known_requests(connection, 7, ["a", "b", "c"]) == {"c"}

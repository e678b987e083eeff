"""Registrations of many clients in one transaction."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from fixtures.chunks import Lakehouse, numbers
from snowmelt.catalog.streaming.registration import CommitCache, register_chunks


@pytest.mark.slow
def test_a_full_cache_loses_no_entry_that_the_same_registration_needs(tmp_path: Path) -> None:
    with contextlib.closing(Lakehouse(tmp_path)) as house:
        house.create()
        offers = []
        for client in ("A", "B"):
            # Each has a client prefix of its own.
            writer = Lakehouse(tmp_path, house.clock, house.database)
            writer.put(numbers(0, 1), channel=client)
            offers += writer.last_offers
        cache = CommitCache()
        with house.database.writing() as connection:
            register_chunks(connection, offers[:1], now=house.clock.now(), commit_cache=cache)
            cache.prefix_owners.update((str(number), "X") for number in range(100_001))
            cache.key_scopes.update((number, (0, "X")) for number in range(1000, 101_001))
            found = register_chunks(connection, offers, now=house.clock.now(), commit_cache=cache)
    assert [(verdict.code, verdict.is_replay) for [verdict] in found] == [(0, True), (0, True)]

"""Registrations record nothing, and a state has all of them."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa

from fixtures.chunks import NUMBERS, USER, numbers
from fixtures.replicas import TwoSites
from snowmelt.catalog import model
from snowmelt.catalog.db.database import open_and_upgrade_database
from snowmelt.catalog.db.replication_triggers import remove_triggers
from snowmelt.catalog.streaming.channels import drop_channel, find_channel, open_channel
from snowmelt.catalog.streaming.registration import register_chunks
from snowmelt.catalog.streaming.row_request_state import EmptyAppend, apply_empty_append
from snowmelt.schema.types import TableName

pytestmark = pytest.mark.slow

OTHER = TableName("DEMO", "PUBLIC", "OTHER")
TABLES = (NUMBERS, OTHER)


class Commits:
    """All kinds of writes to channels and chunks of two tables, at random."""

    def __init__(self, sites: TwoSites, seed: int) -> None:
        self.house = sites.first.house
        self.follower = sites.second.house
        self.clock = sites.clock
        self.random = random.Random(seed)
        self.house.create()
        self.house.create(OTHER, replace=True)
        self._number = 0
        self.kinds: tuple[Callable[[], object], ...] = (
            self.put,
            self.put_rows_of_several_channels,
            self.put_to_both_tables,
            self.commit_without_rows,
            self.append_nothing,
            self.open_with_token,
            self.drop_channel,
            self.delete_new_chunks,
            self.undrop,
        )

    def put(self) -> None:
        self.house.put(self._rows(), self._table(), channel=self._channel(), token=self._token())

    def put_rows_of_several_channels(self) -> None:
        self.house.put_all([(self._table(), self._rows())], channels="CDE", token=self._token())

    def put_to_both_tables(self) -> None:
        tables = [(name, self._rows()) for name in TABLES]
        self.house.put_all(tables, channels=[self._channel()], token=self._token())

    def commit_without_rows(self) -> None:
        self.put()
        [offer] = self.house.last_offers
        [advance] = offer.channels
        following = replace(
            advance, row_sequencer=advance.row_sequencer + 1, end_offset_token=self._token()
        )
        rowless = replace(offer, path=f"{offer.path}-2", rows=0, channels=(following,))
        with self.house.database.writing() as connection:
            [[verdict]] = register_chunks(connection, [rowless], now=self.clock.now())
        assert verdict.code == 0

    def append_nothing(self) -> None:
        self.put()
        [offer] = self.house.last_offers
        [advance] = offer.channels
        with self.house.database.writing() as connection:
            empty = EmptyAppend(
                self.house.table(offer.table).table_id,
                advance.name,
                USER,
                advance.client_sequencer,
                advance.row_sequencer + 1,
                self._token(),
            )
            assert apply_empty_append(connection, empty, self.clock.now())
        # The check finds no commit for it.
        self.house.is_damaged = self.follower.is_damaged = True

    def open_with_token(self) -> None:
        record = self.house.table(self._table())
        with self.house.database.writing() as connection:
            open_channel(
                connection,
                record,
                self._channel(),
                user=USER,
                client_prefix=None,
                request_id=None,
                offset_token=self._token(),
                now=self.clock.now(),
            )
        self.house.reopen()

    def drop_channel(self) -> None:
        record, channel = self.house.table(self._table()), self._channel()
        with self.house.database.writing() as connection:
            if find_channel(connection, record, channel) is not None:
                drop_channel(connection, record, channel, now=self.clock.now())
        self.house.reopen()

    def delete_new_chunks(self) -> None:
        name = self._table()
        self.house.put(self._rows(), name, channel=self._channel(), token=self._token())
        self.house.migrate(name)
        # The first round marks the chunks, the second one deletes them.
        for _ in range(2):
            self.house.collect(0.0)

    def undrop(self) -> None:
        name = self._table()
        self.house.drop(name)
        self.house.undrop(name)

    def _table(self) -> TableName:
        return self.random.choice(TABLES)

    def _channel(self) -> str:
        return self.random.choice("CDE")

    def _rows(self) -> object:
        return numbers(self._number, self.random.randint(1, 5))

    def _token(self) -> str:
        self._number += 5
        return str(self._number)


def count_recorded_changes(sites: TwoSites) -> int:
    with sites.first.house.database.reading() as connection:
        query = sa.select(sa.func.count()).select_from(model.changed_rows)
        return connection.execute(query).scalar_one()


def test_a_registration_records_nothing(sites: TwoSites) -> None:
    house = sites.first.house
    house.create()
    house.put(numbers(0, 10), token="10")
    house.put_all([(NUMBERS, numbers(10, 10))], channels="DE", token="20")
    sites.synchronize()
    house.put(numbers(20, 10), token="30")
    house.put_all([(NUMBERS, numbers(30, 10))], channels="DE", token="40")
    assert count_recorded_changes(sites) == 0
    assert sites.first.states.has_news(sites.second.make_request())
    sites.synchronize()
    sites.assert_equal()
    assert not sites.first.states.has_news(sites.second.make_request(reported=[]))


def test_each_kind_of_commit_reaches_the_follower(sites: TwoSites) -> None:
    commits = Commits(sites, seed=1)
    for kind in commits.kinds:
        kind()
        sites.synchronize()
        sites.assert_equal()


@pytest.mark.parametrize("seed", [1, 2])
def test_commits_between_two_states_reach_the_follower(sites: TwoSites, seed: int) -> None:
    commits = Commits(sites, seed)
    for _ in range(10):
        for _ in range(commits.random.randint(1, 6)):
            commits.random.choice(commits.kinds)()
        # An answer is lost: the next request repeats the state.
        if commits.random.random() < 0.3:
            sites.first.states.respond(sites.second.make_request())
            commits.put()
        sites.synchronize()
        sites.assert_equal()


@pytest.mark.postgres
def test_a_registration_that_commits_later_is_not_missed(tmp_path: Path, postgres_url: str) -> None:
    sites = TwoSites(tmp_path, postgres_url, None)
    house = sites.first.house
    commits = Commits(sites, seed=1)
    house.put(numbers(0, 5), NUMBERS, token="5")
    [offer] = house.last_offers
    [advance] = offer.channels
    rowless = replace(
        offer,
        path=f"{offer.path}-2",
        rows=0,
        channels=(replace(advance, row_sequencer=advance.row_sequencer + 1),),
    )
    sites.synchronize()
    with house.database.writing() as connection:
        register_chunks(connection, [rowless], now=sites.clock.now())
        # It commits earlier than the registration that began before it.
        house.put(numbers(5, 5), OTHER, token="10")
        sites.synchronize()
    sites.synchronize()
    sites.assert_equal()
    commits.put()
    sites.synchronize()
    sites.assert_equal()
    sites.close()


def test_an_upgrade_replaces_the_triggers(two_sites: TwoSites) -> None:
    house = two_sites.first.house
    house.create()
    house.put(numbers(0, 10), token="10")
    two_sites.synchronize()
    with house.database.writing() as connection:
        remove_triggers(connection)
        connection.exec_driver_sql(
            "CREATE TRIGGER snowmelt_record_channels_update AFTER UPDATE ON channels BEGIN "
            "INSERT INTO changed_rows (table_name, row_key) SELECT 'channels', '[1]'; END"
        )
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '0021'")
    open_and_upgrade_database(house.database.url).close()
    house.put(numbers(10, 10), token="20")
    assert count_recorded_changes(two_sites) == 0
    house.create(OTHER, replace=True)
    assert count_recorded_changes(two_sites) > 0
    two_sites.synchronize()
    two_sites.assert_equal()

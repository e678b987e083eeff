from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa

from fixtures.catalog import COLUMNS, NAME, START, Client, World, advance, advances
from snowmelt.catalog import model
from snowmelt.catalog.db.database import Database
from snowmelt.catalog.model.records import ObjectKind
from snowmelt.catalog.objects import namespaces, tables
from snowmelt.catalog.security import access_control
from snowmelt.catalog.streaming import channels, chunks, registration
from snowmelt.catalog.streaming.registration import ChannelAdvance
from snowmelt.errors import SnowmeltError, TransactionConflict
from snowmelt.schema.types import Column, LogicalType, TableName


@pytest.fixture
def client(world: World) -> Client:
    client = world.client()
    client.open("C")
    client.open("D")
    return client


def _channel(world: World, name: str = "C") -> channels.ChannelRecord | Any:
    with world.database.reading() as connection:
        return channels.find_channel(connection, world.table(), name)


def _seqs(world: World, name: TableName = NAME) -> list[chunks.ChunkRecord]:
    with world.database.reading() as connection:
        table = tables.find_table(connection, name)
        found = chunks.list_chunks(connection, table.table_id, 0, 1 << 60)
    assert [chunk.seq for chunk in found] == list(range(1, table.last_seq + 1))
    return found


# --- acceptance and order


def test_an_accepted_chunk_moves_channel_table_and_token(world: World, client: Client) -> None:
    offer = client.offer(advance("C", 0, 1, "a"))
    assert world.codes(offer) == [[0]]
    channel = _channel(world)
    assert channel is not None
    assert (channel.row_sequencer, channel.offset_token) == (1, "a")
    assert (channel.rows, channel.bytes) == (10, 1000)
    assert (channel.last_path, channel.last_chunk_offset) == (offer.path, 0)
    (chunk,) = _seqs(world)
    assert (chunk.path, chunk.md5, chunk.rows) == (offer.path, offer.md5, 10)
    assert chunk.registered_at == START


def test_chunks_of_one_call_build_on_each_other(world: World, client: Client) -> None:
    offers = [client.offer(step) for step in advances("C", 0, [1, 2, 3])]
    assert world.codes(*offers) == [[0], [0], [0]]
    assert _channel(world).offset_token == "3"
    assert [chunk.path for chunk in _seqs(world)] == [offer.path for offer in offers]


def test_a_row_sequencer_that_is_not_next_is_refused_and_leaves_no_gap(
    world: World, client: Client
) -> None:
    one, three, two = (client.offer(step) for step in advances("C", 0, [1, 3, 2]))
    assert world.codes(one, three, two) == [[0], [21], [0]]
    assert world.codes(client.offer(advance("C", 0, 2))) == [[21]]
    assert len(_seqs(world)) == 2


def test_a_chunk_without_a_token_keeps_the_last_one(world: World, client: Client) -> None:
    world.register(client.offer(advance("C", 0, 1, "a")), client.offer(advance("C", 0, 2, None)))
    assert _channel(world).offset_token == "a"


def test_a_chunk_is_taken_whole_or_not_at_all(world: World, client: Client) -> None:
    offer = client.offer(advance("C", 0, 1), advance("D", 0, 2), advance("E", 0, 1))
    assert world.codes(offer) == [[22, 21, 25]]
    assert (_channel(world).row_sequencer, _channel(world, "D").row_sequencer) == (0, 0)
    assert _seqs(world) == []
    assert world.codes(client.offer(advance("C", 0, 1), advance("D", 0, 1))) == [[0, 0]]


def test_a_channel_twice_in_a_chunk_is_refused(world: World, client: Client) -> None:
    twice = client.offer(*advances("C", 0, [1, 2]), advance("D", 0, 1))
    assert world.codes(twice) == [[23, 23, 22]]


def test_rows_of_a_shared_chunk_count_where_the_client_tells_them(
    world: World, client: Client
) -> None:
    world.register(
        client.offer(
            ChannelAdvance("C", 0, 1, None, None, rows=4),
            ChannelAdvance("D", 0, 1, None, None, rows=6),
        )
    )
    assert (_channel(world).rows, _channel(world).bytes) == (4, 400)
    world.register(client.offer(advance("C", 0, 2), advance("D", 0, 2)))
    assert _channel(world).rows is None


def test_an_unknown_channel_is_refused(world: World, client: Client) -> None:
    assert world.codes(client.offer(advance("NOBODY", 0, 1))) == [[25]]


def test_nothing_offered_is_nothing_answered(world: World) -> None:
    assert world.register() == []


def test_tables_number_their_chunks_independently(world: World, client: Client) -> None:
    other = TableName("DB", "PUBLIC", "U")
    world.create_table(other)
    client.open("C", name=other)
    key_id = world.key_id("LOADER", other)
    offers = [
        client.offer(advance("C", 0, 1)),
        client.offer(advance("C", 0, 1), table=other, key_id=key_id),
        client.offer(advance("C", 0, 2)),
    ]
    assert world.codes(*offers) == [[0], [0], [0]]
    assert (len(_seqs(world)), len(_seqs(world, other))) == (2, 1)


def test_a_clock_that_goes_back_breaks_no_sequence(world: World, client: Client) -> None:
    world.register(client.offer(advance("C", 0, 1)))
    world.clock.set_wall(START - dt.timedelta(days=400))
    assert world.codes(client.offer(advance("C", 0, 2))) == [[0]]
    assert client.open("C").record.client_sequencer == 1
    assert world.codes(client.offer(advance("C", 1, 3))) == [[0]]
    assert len(_seqs(world)) == 3


# --- repetition


def test_registering_twice_gets_the_same_answer_and_adds_nothing(
    world: World, client: Client
) -> None:
    offer = client.offer(advance("C", 0, 1), advance("D", 0, 1))
    assert world.codes(offer, offer) == [[0, 0], [0, 0]]
    world.register(client.offer(advance("C", 0, 2)))
    assert world.codes(offer) == [[0, 0]]
    assert len(_seqs(world)) == 2


def test_a_repetition_is_known_after_the_channel_was_reopened(world: World, client: Client) -> None:
    offer = client.offer(advance("C", 0, 1))
    world.register(offer)
    client.open("C")
    assert world.codes(offer) == [[0]]


def test_a_repetition_is_known_after_its_chunk_was_cleaned_up(world: World, client: Client) -> None:
    offer = client.offer(advance("C", 0, 1), advance("D", 0, 1))
    world.register(offer, client.offer(advance("D", 0, 2)))
    with world.database.writing() as connection:
        connection.execute(sa.delete(model.chunks))
    assert world.codes(offer) == [[0, 0]]
    changed = replace(offer, md5="0" * 32)
    assert world.codes(changed) == [[21, 21]]


def test_a_repetition_survives_checks_that_fail_by_now(world: World, client: Client) -> None:
    """The file may be gone and the role be revoked: what was registered stays registered."""
    offer = client.offer(advance("C", 0, 1))
    world.register(offer)
    with world.database.writing() as connection:
        access_control.grant_role(connection, "WRITER", "LOADER", revoke=True)
    assert world.codes(replace(offer, rejection=(38, "no file"))) == [[0]]
    fresh = client.offer(advance("C", 0, 2), rejection=(38, "no file"))
    assert world.codes(fresh) == [[38]]


@pytest.mark.parametrize(
    "change",
    [
        {"md5": "0" * 32},
        {"key_id": 999},
        {"channels": (advance("C", 0, 2),)},
        {"channels": (advance("C", 0, 1), advance("D", 0, 1))},
    ],
    ids=lambda change: next(iter(change)),
)
def test_another_chunk_under_a_registered_place_is_no_repetition(
    world: World, client: Client, change: Any
) -> None:
    offer = client.offer(advance("C", 0, 1))
    world.register(offer)
    (codes,) = world.codes(replace(offer, **change))
    assert 0 not in codes
    assert len(_seqs(world)) == 1


def test_a_place_is_registered_once(world: World, client: Client) -> None:
    offer = client.offer(advance("C", 0, 1))
    assert world.codes(offer, replace(offer, channels=(advance("C", 0, 2),))) == [[0], [34]]


def test_a_chunk_that_was_refused_may_come_again_under_the_same_place(
    world: World, client: Client
) -> None:
    early = client.offer(advance("C", 0, 2))
    assert world.codes(early) == [[21]]
    world.register(client.offer(advance("C", 0, 1)))
    assert world.codes(early) == [[0]]


def test_other_chunks_of_a_registered_blob_may_come_later(world: World, client: Client) -> None:
    first = client.offer(advance("C", 0, 1))
    world.register(first)
    second = replace(first, offset=1008, md5="1" * 32, channels=(advance("C", 0, 2),))
    assert world.codes(second) == [[0]]


# --- fencing


def test_a_reopened_channel_fences_the_old_owner(world: World, client: Client) -> None:
    world.register(client.offer(advance("C", 0, 1)))
    other = world.client()
    assert other.open("C").record.client_sequencer == 1
    assert world.codes(client.offer(advance("C", 0, 2))) == [[20]]
    assert world.codes(other.offer(advance("C", 1, 2))) == [[0]]


def test_a_sequencer_that_was_never_given_is_refused(world: World, client: Client) -> None:
    assert world.codes(client.offer(advance("C", 7, 1))) == [[20]]


def test_another_user_cannot_write_through_my_channel(world: World, client: Client) -> None:
    stranger = world.client("OTHER")
    assert world.codes(stranger.offer(advance("C", 0, 1))) == [[20]]


def test_two_services_never_accept_the_same_step(
    world: World, open_catalog: Callable[..., Database], client: Client
) -> None:
    """Both register the next chunk of one channel, from two processes' connections."""
    offers = [[client.offer(step) for step in advances("C", 0, range(1, 21))] for _ in "ab"]
    codes: list[list[int]] = [[], []]

    def work(which: int, database: Database) -> None:
        for offer in offers[which]:
            try:
                with database.writing() as connection:
                    verdicts = registration.register_chunks(connection, [offer], now=world.now)
                codes[which].append(verdicts[0][0].code)
            except TransactionConflict:
                codes[which].append(10)

    threads = [threading.Thread(target=work, args=(i, open_catalog())) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    accepted = [one.count(0) for one in codes]
    assert len(_seqs(world)) == sum(accepted) == _channel(world).row_sequencer


# --- names, privileges, keys, versions


def test_missing_names_are_told_apart(world: World, client: Client) -> None:
    names = [TableName("X", "Y", "Z"), TableName("DB", "Y", "Z"), TableName("DB", "PUBLIC", "Z")]
    offers = [client.offer(advance("C", 0, 1), table=name) for name in names]
    assert world.codes(*offers) == [[8], [9], [4]]


def test_a_dropped_table_refuses_and_its_chunks_never_show_again(
    world: World, client: Client
) -> None:
    offer = client.offer(advance("C", 0, 1, "a"))
    world.register(offer)
    before = world.table()
    with world.database.writing() as connection:
        tables.drop_table(connection, NAME, world.now)
    assert world.codes(offer, replace(offer, offset=16)) == [[4], [4]]
    after = world.create_table()
    assert (after.table_id, after.last_seq) == (before.table_id + 1, 0)
    assert world.codes(offer, replace(offer, offset=16)) == [[36], [36]]
    opened = client.open("C")
    assert (opened.record.client_sequencer, opened.record.offset_token) == (1, None)
    assert world.codes(client.offer(advance("C", 1, 1), key_id=world.key_id("LOADER"))) == [[0]]
    assert len(_seqs(world)) == 1


@pytest.mark.parametrize(
    ("kind", "privilege", "code"),
    [("DATABASE", "USAGE", 8), ("SCHEMA", "USAGE", 9), ("TABLE", "INSERT", 4)],
)
def test_each_privilege_is_needed(
    world: World, client: Client, kind: ObjectKind, privilege: str, code: int
) -> None:
    table = world.table()
    ids: dict[ObjectKind, int] = {
        "DATABASE": table.database_id,
        "SCHEMA": table.schema_id,
        "TABLE": table.table_id,
    }
    with world.database.writing() as connection:
        access_control.grant_privilege(
            connection, privilege, kind, ids[kind], "WRITER", revoke=True
        )
    assert world.codes(client.offer(advance("C", 0, 1))) == [[code]]
    with world.database.writing() as connection:
        access_control.grant_privilege(connection, privilege, kind, ids[kind], "PUBLIC")
    assert world.codes(client.offer(advance("C", 0, 1))) == [[0]]


def test_ownership_of_the_table_lets_insert(world: World, client: Client) -> None:
    table = world.table()
    with world.database.writing() as connection:
        access_control.grant_privilege(
            connection, "INSERT", "TABLE", table.table_id, "WRITER", revoke=True
        )
        access_control.grant_privilege(connection, "OWNERSHIP", "TABLE", table.table_id, "WRITER")
    assert world.codes(client.offer(advance("C", 0, 1))) == [[0]]


def test_a_role_that_is_not_granted_is_refused(world: World, client: Client) -> None:
    with world.database.writing() as connection:
        access_control.create_role(connection, "ELSE", now=world.now)
    offers = [client.offer(advance("C", 0, 1), role=role) for role in ("ELSE", "ACCOUNTADMIN")]
    assert world.codes(*offers) == [[37], [37]]


def test_no_role_means_the_users_default(world: World, client: Client) -> None:
    offer = client.offer(advance("C", 0, 1), role=None)
    assert world.codes(offer) == [[8]]
    with world.database.writing() as connection:
        access_control.set_default_role(connection, "LOADER", "WRITER")
    assert world.codes(offer) == [[0]]


def test_a_blob_of_a_foreign_prefix_is_refused(world: World, client: Client) -> None:
    stranger = world.client("OTHER")
    offers = [
        client.offer(advance("C", 0, 1), prefix=stranger.prefix),
        client.offer(advance("C", 0, 1), prefix="unheard"),
    ]
    assert world.codes(*offers) == [[34], [34]]


def test_a_key_of_another_user_is_refused(world: World, client: Client) -> None:
    offer = client.offer(advance("C", 0, 1), key_id=world.key_id("OTHER"))
    assert world.codes(offer) == [[36]]


def test_older_columns_are_taken_while_what_they_miss_may_be_null(
    world: World, client: Client
) -> None:
    def add_version(version: int, nullable: bool) -> None:
        added = Column(f"N{version}", LogicalType.REAL, version + 1, nullable=nullable)
        with world.database.writing() as connection:
            tables.add_schema_version(
                connection, world.table(), (*world.table().schema.columns, added), now=world.now
            )

    add_version(2, nullable=True)
    assert world.codes(client.offer(advance("C", 0, 1), schema_version=1)) == [[0]]
    assert world.codes(client.offer(advance("C", 0, 2), schema_version=2)) == [[0]]
    add_version(3, nullable=False)
    old = [client.offer(advance("C", 0, 3), schema_version=version) for version in (1, 2, 9)]
    assert world.codes(*old) == [[40], [40], [36]]
    assert world.codes(client.offer(advance("C", 0, 3), schema_version=3)) == [[0]]
    with world.database.reading() as connection:
        versions = tables.list_table_schema_versions(connection, world.table().table_id)
    assert {number: len(each.columns) for number, each in versions.items()} == {1: 2, 2: 3, 3: 4}
    assert versions[1].columns == COLUMNS


# --- age of blobs


def test_a_blob_counts_for_an_hour_from_its_first_sight(world: World, client: Client) -> None:
    late = client.offer(advance("C", 0, 2))
    assert world.codes(late) == [[21]]
    world.register(client.offer(advance("C", 0, 1)))
    world.clock.advance(3601)
    assert world.codes(late) == [[38]]
    assert world.codes(client.offer(advance("C", 0, 2))) == [[0]]


def test_a_tombstone_and_a_registration_exclude_each_other(world: World, client: Client) -> None:
    blob, other = client.offer(advance("C", 0, 1)), client.offer(advance("D", 0, 1))
    with world.database.writing() as connection:
        staged = [registration.StagedBlob(offer.prefix, offer.path) for offer in (blob, other)]
        registration.record_blob_sightings(connection, staged, world.now)
    assert world.codes(other) == [[0]]
    world.clock.advance(60)
    with world.database.writing() as connection:
        doomed = registration.tombstone_unregistered_blobs(
            connection, seen_before=world.now, now=world.now
        )
        assert doomed == [registration.StagedBlob(blob.prefix, blob.path)]
        assert (
            registration.tombstone_unregistered_blobs(
                connection, seen_before=world.now, now=world.now
            )
            == []
        )
        assert registration.filter_tombstoned_paths(connection, [blob.path, other.path]) == {
            blob.path
        }
    assert world.codes(blob) == [[38]]


def test_a_tombstone_waits_for_a_registration_that_has_not_committed(
    world: World, open_catalog: Callable[..., Database], client: Client
) -> None:
    offer = client.offer(advance("C", 0, 1))
    with world.database.writing() as connection:
        registration.record_blob_sightings(
            connection, [registration.StagedBlob(offer.prefix, offer.path)], world.now
        )
    later, doomed = world.now + dt.timedelta(minutes=1), []

    def clean_up(database: Database) -> None:
        with database.writing() as connection:
            doomed.append(
                registration.tombstone_unregistered_blobs(connection, seen_before=later, now=later)
            )

    thread = threading.Thread(target=clean_up, args=(open_catalog(),))
    with world.database.writing() as connection:
        verdicts = registration.register_chunks(connection, [offer], now=world.now)
        thread.start()
        thread.join(0.3)
        assert thread.is_alive()
    thread.join()
    assert (verdicts[0][0].code, doomed) == (0, [[]])


def test_a_blob_that_is_being_deleted_takes_no_more_chunks(world: World, client: Client) -> None:
    first = client.offer(advance("C", 0, 1))
    world.register(first)
    with world.database.writing() as connection:
        assert chunks.retire_chunks(connection, world.table().table_id, 1, world.now) == 1
    second = replace(first, offset=1008, md5="1" * 32, channels=(advance("C", 0, 2),))
    assert world.codes(second) == [[38]]
    assert world.codes(first) == [[0]]


def test_refused_offers_of_foreign_prefixes_leave_no_sighting(world: World, client: Client) -> None:
    world.register(client.offer(advance("C", 0, 1), prefix="unheard"))
    world.register(client.offer(advance("C", 0, 5), rejection=(38, "no file")))
    with world.database.reading() as connection:
        assert connection.execute(sa.select(model.sightings)).all() == []


# --- cost


def test_the_number_of_statements_does_not_depend_on_that_of_offers(
    world: World, client: Client
) -> None:
    def statements(offers: list[Any]) -> int:
        count = 0

        def note(*_args: Any) -> None:
            nonlocal count
            count += 1

        with world.database.writing() as connection:
            sa.event.listen(connection, "before_cursor_execute", note)
            assert {
                v.code
                for vs in registration.register_chunks(connection, offers, now=world.now)
                for v in vs
            } == {0}
        return count

    few = statements([client.offer(step) for step in advances("C", 0, [1])])
    many = statements([client.offer(step) for step in advances("C", 0, range(2, 202))])
    assert few == many <= 16


def test_a_registration_searches_by_index_only(
    world: World, client: Client, database: Database
) -> None:
    if database.dialect != "sqlite":
        pytest.skip("SQLite says plainly when it scans; PostgreSQL scans small tables on purpose")
    world.register(client.offer(advance("C", 0, 1)))
    plans: list[tuple[str, str]] = []

    def explain(
        connection: Any,
        cursor: Any,
        statement: Any,
        parameters: Any,
        _context: Any,
        executemany: Any,
    ) -> None:
        if not statement.startswith("EXPLAIN") and not executemany:
            plan = connection.exec_driver_sql("EXPLAIN QUERY PLAN " + statement, parameters)
            plans.extend((statement, row[3]) for row in plan)

    offer = client.offer(advance("C", 0, 2))
    with database.writing() as connection:
        sa.event.listen(connection, "before_cursor_execute", explain)
        registration.register_chunks(connection, [offer], now=world.now)
    scans = [
        plan
        for plan in plans
        # There is at most one failover group.
        if plan[1].startswith("SCAN") and "CONSTANT" not in plan[1] and "failover" not in plan[1]
    ]
    assert len(plans) > 8
    # The sets that the statements get as JSON are read from end to end, and nothing else is.
    assert not [plan for plan in scans if "VIRTUAL TABLE" not in plan[1]], scans


def test_dropping_a_database_ends_its_channels(world: World, client: Client) -> None:
    offer = client.offer(advance("C", 0, 1))
    with world.database.writing() as connection:
        namespaces.drop_database(connection, "DB", world.now)
    assert world.codes(offer) == [[8]]
    with pytest.raises(SnowmeltError):
        world.table()


def test_a_late_chunk_of_a_forgotten_blob_is_refused_and_a_repetition_is_not(
    world: World, client: Client
) -> None:
    first = client.offer(advance("C", 0, 1))
    world.register(first)
    late = client.offer(advance("C", 0, 2), path=first.path, offset=1008)
    with world.database.writing() as connection:
        chunks.retire_chunks(connection, world.table().table_id, 1, world.now)
        chunks.replace_with_tombstones(
            connection, chunks.list_deletable_blobs(connection), world.now
        )
    assert world.codes(late) == [[38]]
    assert world.codes(first) == [[0]]
    with world.database.writing() as connection:
        later = world.now + dt.timedelta(days=7)
        assert registration.delete_blob_tombstones(connection, world.now) == 0
        assert registration.delete_blob_tombstones(connection, later) == 1

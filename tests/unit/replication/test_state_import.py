"""A follower has a state of the primary: every row of the catalog, every object, and nothing else."""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import io
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fixtures.chunks import COLUMNS, NUMBERS, USER, numbers
from fixtures.replicas import Site, TwoSites, read_reported, run
from snowmelt.catalog.db.database import Database, open_database
from snowmelt.catalog.jobs import leases
from snowmelt.catalog.objects import failover_groups
from snowmelt.catalog.objects.failover_groups import GroupConflict
from snowmelt.catalog.statements.executor import execute_statement
from snowmelt.catalog.streaming.channels import find_channel
from snowmelt.catalog.streaming.row_request_state import EmptyAppend, apply_empty_append
from snowmelt.clock import ManualClock
from snowmelt.errors import (
    CatalogUnavailable,
    ChannelNotFound,
    SiteReadOnly,
    TableNotFound,
    UserError,
)
from snowmelt.replication.object_copy import ObjectDamaged, ObjectRemoved
from snowmelt.replication.protocol import (
    FOLLOWER_LEASE,
    EndOfState,
    TableHeader,
    TableRows,
    read_frames,
    write_frame,
)
from snowmelt.replication.state_export import StateSource
from snowmelt.replication.state_import import StateUnusable
from snowmelt.schema.types import TableName
from snowmelt.table.compaction import compact
from snowmelt.table.file_replacement_run import MaintenanceSettings, expire_snapshots
from snowmelt.table.garbage_collection import collect_garbage
from support.checked_site import commit_rejected_rows, drop_open_channel

pytestmark = pytest.mark.slow

HOUR = 3600.0
# One statement of each kind that changes the catalog, in an order in which they work.
STATEMENTS = (
    "CREATE DATABASE other COMMENT = 'with a NULL and a quote '''",
    "CREATE SCHEMA other.more",
    "CREATE ROLE writer",
    "CREATE USER ann DEFAULT_ROLE = writer",
    "GRANT ROLE writer TO USER ann",
    "GRANT USAGE ON DATABASE other TO ROLE writer",
    "GRANT SELECT ON FUTURE TABLES IN SCHEMA other.more TO ROLE writer",
    "GRANT REPLICATE ON ACCOUNT TO ROLE writer",
    "CREATE TABLE other.more.t (a NUMBER(9,0) NOT NULL, b VARCHAR(10), c TIMESTAMP_TZ)",
    "CREATE TABLE other.more.u (a VARIANT)",
    "ALTER TABLE other.more.t ADD COLUMN d BOOLEAN",
    "ALTER TABLE other.more.t DROP COLUMN b",
    "COMMENT ON TABLE other.more.t IS 'a table'",
    'CREATE BUCKET "data-1"',
    """CREATE PIPE other.more.p AS COPY INTO other.more.t FROM TABLE (DATA_SOURCE (TYPE => 'STREAMING'))
    MATCH_BY_COLUMN_NAME = CASE_INSENSITIVE""",
    """CREATE API INTEGRATION api API_PROVIDER = http
    API_ALLOWED_PREFIXES = ('http://127.0.0.1/') ENABLED = TRUE""",
    """CREATE EXTERNAL FUNCTION other.more.f(x NUMBER) RETURNS NUMBER API_INTEGRATION = api
    AS 'http://127.0.0.1/f'""",
    "ALTER INTEGRATION api SET ENABLED = FALSE",
    "ALTER TABLE other.more.t RENAME TO other.more.v",
    "ALTER TABLE other.more.u RENAME TO other.more.t",
    "ALTER TABLE other.more.v RENAME TO other.more.u",
    "DROP TABLE other.more.u",
    "UNDROP TABLE other.more.u",
    "TRUNCATE TABLE other.more.u",
    "REVOKE USAGE ON DATABASE other FROM ROLE writer",
    "DROP FUNCTION other.more.f(NUMBER)",
    "DROP INTEGRATION api",
    "DROP PIPE other.more.p",
    'DROP BUCKET "data-1"',
    "DROP USER ann",
    "DROP ROLE writer",
    "DROP SCHEMA other.more",
    "UNDROP SCHEMA other.more",
    "DROP DATABASE other",
)


@pytest.fixture(
    params=[
        "sqlite to sqlite",
        pytest.param("sqlite to postgres", marks=pytest.mark.postgres),
        pytest.param("postgres to sqlite", marks=pytest.mark.postgres),
    ]
)
def sites(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[TwoSites]:
    """Two sites whose catalogs are on these databases."""
    urls = [
        None if kind == "sqlite" else str(request.getfixturevalue("postgres_url"))
        for kind in request.param.split(" to ")
    ]
    found = TwoSites(tmp_path, urls[0], urls[1])
    yield found
    found.close()


@contextlib.contextmanager
def open_process(site: Site) -> Iterator[Database]:
    """Open the catalog of a site as another process does."""
    with contextlib.closing(open_database(site.house.database.url)) as database:
        yield database


def test_a_process_with_facts_of_another_history_writes_nothing(sites: TwoSites) -> None:
    first, second = sites.first, sites.second
    with open_process(second) as process, open_process(first) as other:
        process.bind_to_history()
        other.bind_to_history()
        first.house.create()
        sites.synchronize()
        assert process.has_other_history()
        assert not other.has_other_history()
        # The role of the site does not matter.
        run(second, "ALTER FAILOVER GROUP g PRIMARY")
        with pytest.raises(CatalogUnavailable, match="history of another site"):
            execute_statement(process, "CREATE DATABASE other", user=None, clock=second.clock)
        process.bind_to_history()
        execute_statement(process, "CREATE DATABASE other", user=None, clock=second.clock)
        # A former primary gets the history of the new one.
        with first.house.database.writing() as connection:
            failover_groups.fence(connection, "http://SITE2")
        while first.pull(second).has_changes:
            pass
        assert other.has_other_history()
        assert not process.has_other_history()


def test_every_statement_reaches_the_follower(sites: TwoSites) -> None:
    sites.synchronize()
    for text in STATEMENTS:
        run(sites.first, text)
        sites.synchronize()
        sites.assert_equal()


def test_statements_between_two_states_are_one_difference(two_sites: TwoSites) -> None:
    # Names of tables are exchanged, objects are dropped and created again under the same names.
    two_sites.synchronize()
    for start in range(0, len(STATEMENTS), 7):
        for text in STATEMENTS[start : start + 7]:
            run(two_sites.first, text)
        two_sites.synchronize()
        two_sites.assert_equal()


class Walk:
    """Random operations on a table of the primary."""

    def __init__(self, site: Site, seed: int) -> None:
        self.site = site
        self.house = site.house
        self.house.create()
        self.random = random.Random(seed)
        self.next = 0
        self.steps: tuple[Callable[[], object], ...] = (
            self.write,
            self.write,
            self.write,
            self.house.migrate,
            self.compact,
            self.truncate,
            self.drop_and_restore,
            self.replace,
            self.reject,
            self.comment,
            self.drop_channel,
            self.clean_up,
        )

    def step(self) -> None:
        self.random.choice(self.steps)()

    def write(self) -> None:
        count = self.random.randint(1, 20)
        channel = self.random.choice("CDE")
        self.house.put(numbers(self.next, count), channel=channel, token=str(self.next + count))
        self.next += count

    def compact(self) -> None:
        settings = MaintenanceSettings(self.house.warehouse.url, target_bytes=1 << 20, min_files=2)
        compact(self.house.database, NUMBERS, settings, clock=self.site.clock)

    def truncate(self) -> None:
        run(self.site, "TRUNCATE TABLE demo.public.numbers")

    def drop_and_restore(self) -> None:
        run(self.site, "DROP TABLE demo.public.numbers")
        run(self.site, "UNDROP TABLE demo.public.numbers")

    def replace(self) -> None:
        self.house.create(replace=True)

    def reject(self) -> None:
        commit_rejected_rows(self.house, self.random.choice("CDE"), str(self.next))

    def comment(self) -> None:
        run(self.site, "ALTER TABLE demo.public.numbers SET COMMENT = 'x'")

    def drop_channel(self) -> None:
        with contextlib.suppress(ChannelNotFound):
            drop_open_channel(self.house, self.random.choice("CDE"))

    def clean_up(self) -> None:
        self.house.collect(0.0)


def test_a_channel_that_a_commit_advanced_reaches_the_follower(sites: TwoSites) -> None:
    house = sites.first.house
    house.create()
    house.put(numbers(0, 10), token="0")
    sites.synchronize()
    table = house.table(NUMBERS)

    def write() -> None:
        house.put(numbers(10, 10), token="1")

    def migrate() -> None:
        # The chunk remains in the ledger only.
        house.put(numbers(20, 10), token="2")
        house.migrate()
        house.collect(0.0)

    def reject() -> None:
        commit_rejected_rows(house, "C", "3")

    def append_nothing() -> None:
        with house.database.writing() as connection:
            channel = find_channel(connection, table, "C")
            assert channel is not None
            sequencers = channel.client_sequencer, channel.row_sequencer + 1
            empty = EmptyAppend(table.table_id, "C", USER, *sequencers, "4")
            assert apply_empty_append(connection, empty, sites.clock.now())

    for number, commit in enumerate((write, migrate, reject, append_nothing), 1):
        commit()
        sites.synchronize()
        sites.assert_equal()
        with sites.second.house.database.reading() as connection:
            channel = find_channel(connection, table, "C")
        assert channel is not None
        assert channel.offset_token == str(number)


@pytest.mark.parametrize("seed", [2])
def test_a_follower_has_the_rows_tokens_and_files_of_the_primary(
    sites: TwoSites, seed: int
) -> None:
    walk = Walk(sites.first, seed)
    rows: list[int] = []
    for _ in range(12):
        for _ in range(walk.random.randint(1, 4)):
            walk.step()
        sites.synchronize()
        sites.assert_equal()
        rows = sorted(sites.first.house.read_numbers())
        assert sorted(sites.second.house.read_numbers()) == rows
    # What the follower deletes is not needed by its state.
    house = sites.second.house
    collect_garbage(
        house.database,
        house.stage,
        house.warehouse.store,
        clock=sites.clock,
        retention_s=0.0,
        is_replica=True,
    )
    assert sorted(sites.second.house.read_numbers()) == rows


def test_a_follower_rejects_writes(sites: TwoSites) -> None:
    sites.first.house.create()
    sites.synchronize()
    for text in ("CREATE DATABASE x", "DROP TABLE demo.public.numbers", "CREATE USER bob"):
        with pytest.raises(SiteReadOnly):
            run(sites.second, text)
    sites.assert_equal()


def test_an_installation_with_databases_cannot_become_a_replica(tmp_path: Path) -> None:
    sites = TwoSites(tmp_path, None, None)
    third = Site("SITE3", tmp_path / "site3", None, sites.clock)
    run(third, "CREATE DATABASE mine")
    with pytest.raises(GroupConflict, match="has the database MINE"):
        run(
            third,
            "CREATE FAILOVER GROUP g AS REPLICA OF site1.g URL = 'http://127.0.0.1:1' SITE = site3",
        )
    third.house.close()
    sites.close()


def test_a_site_that_is_not_allowed_gets_nothing(two_sites: TwoSites) -> None:
    run(two_sites.first, "ALTER FAILOVER GROUP g REMOVE site2 FROM ALLOWED_ACCOUNTS")
    with pytest.raises(UserError, match="Site SITE2 may not follow"):
        two_sites.second.pull(two_sites.first)


def test_a_torn_object_is_not_taken(two_sites: TwoSites) -> None:
    house = two_sites.first.house
    house.create()
    two_sites.synchronize()
    path = house.put(numbers(0, 10), token="10")
    data = house.stage.get(path)
    house.stage.put(path, data[:-20] + bytes(20))
    with pytest.raises(ObjectDamaged, match=path.rpartition("/")[2]):
        two_sites.synchronize()
    assert two_sites.second.house.read_numbers() == []
    house.stage.put(path, data)
    two_sites.synchronize()
    assert two_sites.second.house.read_numbers() == list(range(10))


def stop_time_for_reading(site: Site) -> None:
    """Let a primary read blobs for as long as it takes. On a busy machine its time ends earlier."""
    clock = ManualClock(site.clock.now())
    site.states = StateSource(dataclasses.replace(site.source, clock=clock))


def test_small_blobs_of_new_chunks_come_with_the_state(two_sites: TwoSites) -> None:
    house = two_sites.first.house
    stop_time_for_reading(two_sites.first)
    house.create()
    paths = [house.put(numbers(0, 10))]
    response, _ = two_sites.first.respond(two_sites.second.make_request())
    assert response.blobs == {}, "a whole state may have millions of blobs"
    two_sites.synchronize()
    paths += [house.put(numbers(start, 10)) for start in (10, 20)]
    house.stage.delete(paths[0])
    house.is_damaged = True
    response, _ = two_sites.first.respond(two_sites.second.make_request())
    assert response.blobs == {path: house.stage.get(path) for path in paths[1:]}
    two_sites.synchronize()
    assert two_sites.second.house.read_numbers() == list(range(30))


def test_blobs_beyond_the_size_of_a_response_are_requested(two_sites: TwoSites) -> None:
    first, house = two_sites.first, two_sites.first.house
    stop_time_for_reading(first)
    house.create()
    two_sites.synchronize()
    count = 30_000
    source = random.Random(1)
    words = [base64.b64encode(source.randbytes(75)).decode() for _ in range(count)]
    paths = [
        house.put(numbers(start * count, count).set_column(1, "WORD", [words]))
        for start in range(4)
    ]
    sizes = {path: len(house.stage.get(path)) for path in paths}
    response, _ = first.respond(two_sites.second.make_request())
    assert {path: len(content) for path, content in response.blobs.items()} == {
        path: sizes[path] for path in paths[: len(response.blobs)]
    }
    *before, _ = [sizes[path] for path in response.blobs]
    assert (
        sum(before) < 4 << 20 <= sum(sizes[path] for path in response.blobs) < sum(sizes.values())
    )
    two_sites.synchronize()
    assert two_sites.second.house.read_numbers() == list(range(4 * count))


def test_a_state_whose_objects_are_gone_is_not_applied(two_sites: TwoSites) -> None:
    house = two_sites.first.house
    house.create()
    two_sites.synchronize()
    house.put(numbers(0, 10), token="10")
    response, _ = two_sites.first.respond(two_sites.second.make_request())
    house.migrate()
    house.collect(0.0)
    # As from a primary that reads no blobs into its response.
    response.blobs.clear()
    with pytest.raises(ObjectRemoved):
        two_sites.second.copy_objects(two_sites.first, response, io.BytesIO(response.content))
    # The next state does not need it: the rows are in native files.
    two_sites.synchronize()
    assert two_sites.second.house.read_numbers() == list(range(10))


def test_a_primary_sees_without_a_state_whether_something_has_changed(two_sites: TwoSites) -> None:
    first, second = two_sites.first, two_sites.second
    first.house.create()
    two_sites.synchronize()
    request = second.make_request(reported=[])
    assert not first.states.has_news(request)
    assert first.states.is_unchanged(request)
    first.house.put(numbers(0, 10), token="10")
    assert not first.states.is_unchanged(request)
    assert first.states.has_news(request)
    two_sites.synchronize()
    # Another request has taken the next state.
    assert not first.states.is_unchanged(request)
    with first.house.database.writing() as connection:
        failover_groups.fence(connection, "http://SITE2")
    assert not first.states.is_unchanged(second.make_request(reported=[]))


def test_a_state_is_applied_once_and_in_order(two_sites: TwoSites) -> None:
    house = two_sites.first.house
    house.create()
    two_sites.synchronize()
    house.put(numbers(0, 10), token="10")
    first, second = two_sites.first, two_sites.second
    late, _ = first.respond(second.make_request())
    second.copy_objects(first, late, io.BytesIO(late.content))
    house.put(numbers(10, 10), token="20")
    two_sites.synchronize()
    with pytest.raises(StateUnusable, match="newer state"):
        second.apply(late, io.BytesIO(late.content))
    two_sites.assert_equal()


def test_a_process_that_lost_the_lease_of_its_site_applies_nothing(two_sites: TwoSites) -> None:
    first, second = two_sites.first, two_sites.second
    first.house.create()

    def acquire(owner: str) -> leases.Lease:
        with second.house.database.writing() as connection:
            found = leases.acquire_lease(
                connection, FOLLOWER_LEASE, owner, ttl_s=0.0, now=second.clock.now()
            )
        assert found is not None
        return found

    slow = acquire("slow")
    response, _ = first.respond(second.make_request())
    content = io.BytesIO(response.content)
    second.copy_objects(first, response, content)
    # Another process of the site follows meanwhile, and confirms a token.
    acquire("other")
    two_sites.synchronize()
    first.house.put(numbers(0, 10), token="10")
    two_sites.synchronize()
    with pytest.raises(StateUnusable, match="another process"):
        second.apply(response, content, slow)
    two_sites.assert_equal()
    assert second.house.read_numbers() == list(range(10))


def test_tables_exchange_their_names_however_far_apart_their_rows_are(two_sites: TwoSites) -> None:
    first, second = two_sites.first, two_sites.second
    run(first, "CREATE DATABASE d")
    run(first, "CREATE TABLE d.public.a (n INT)")
    run(first, "CREATE TABLE d.public.b (n INT)")
    two_sites.synchronize()
    for names in (("a", "c"), ("b", "a"), ("c", "b")):
        run(first, "ALTER TABLE d.public.{} RENAME TO d.public.{}".format(*names))
    response, _ = first.respond(second.make_request())
    # Each row in a frame of its own, as the rows of a large state are in several.
    content = io.BytesIO()
    count = 0
    for frame in read_frames(io.BytesIO(response.content)):
        some = [TableRows([row]) for row in frame.rows] if isinstance(frame, TableRows) else [frame]
        for each in some:
            write_frame(content, each)
            count += 1
    write_frame(content, EndOfState(count))
    second.apply(response, content)
    two_sites.assert_equal()


def test_a_cut_state_is_not_applied(two_sites: TwoSites) -> None:
    two_sites.first.house.create()
    response, _ = two_sites.first.respond(two_sites.second.make_request())
    for size in (0, 5, len(response.content) // 2, len(response.content) - 1):
        with pytest.raises(EOFError):
            two_sites.second.apply(response, io.BytesIO(response.content[:size]))
    assert two_sites.second.group.epoch == -1


def test_a_promoted_site_takes_no_state_of_the_old_primary(two_sites: TwoSites) -> None:
    two_sites.first.house.create()
    two_sites.synchronize()
    run(two_sites.first, "CREATE DATABASE late")
    response, _ = two_sites.first.respond(two_sites.second.make_request())
    run(two_sites.second, "ALTER FAILOVER GROUP g PRIMARY")
    with pytest.raises(StateUnusable, match="promoted"):
        two_sites.second.apply(response, io.BytesIO(response.content))


def test_a_state_writes_no_table_that_each_site_has_of_its_own(two_sites: TwoSites) -> None:
    two_sites.first.house.create()
    response, _ = two_sites.first.respond(two_sites.second.make_request())
    forged = io.BytesIO()
    write_frame(forged, TableHeader("failover_groups", ("name", "role"), None))
    write_frame(forged, TableRows([["G", "primary"]]))
    write_frame(forged, EndOfState(2))
    with pytest.raises(StateUnusable, match=r"failover_groups\.name"):
        two_sites.second.apply(response, forged)
    assert two_sites.second.group.role == "secondary"


# Tokens.


def test_a_token_is_reported_when_a_follower_has_it(sites: TwoSites) -> None:
    house = sites.first.house
    house.create()
    house.put(numbers(0, 10), token="10")
    # Nobody follows yet: what is committed is reported.
    assert read_reported(sites.first) is None
    sites.synchronize()
    house.put(numbers(10, 10), token="20")
    reported = read_reported(sites.first)
    assert reported is not None
    assert reported.offset_token == "10"
    sites.second.pull(sites.first)
    reported = read_reported(sites.first)
    assert reported is not None
    assert reported.offset_token == "10", "the follower has not confirmed yet"
    sites.synchronize()
    reported = read_reported(sites.first)
    assert reported is not None
    assert reported.offset_token == "20"


def test_what_was_reported_before_the_protection_is_in_the_state_that_a_promotion_needs(
    two_sites: TwoSites,
) -> None:
    first, second = two_sites.first, two_sites.second
    first.house.create()
    second.pull(first)
    # Reported at once, because the follower has not confirmed its first state yet.
    first.house.put(numbers(0, 10), token="10")
    assert read_reported(first) is None
    response, _ = first.respond(second.make_request())
    reported = read_reported(first)
    assert reported is not None
    assert reported.offset_token == "10"
    with pytest.raises(GroupConflict, match="reported"):
        second.promote()
    second.copy_objects(first, response, io.BytesIO(response.content))
    second.apply(response, io.BytesIO(response.content))
    second.promote()
    assert second.house.read_numbers() == list(range(10))


def test_a_removed_follower_holds_no_token(two_sites: TwoSites) -> None:
    first = two_sites.first
    first.house.create()
    first.house.put(numbers(0, 10), token="10")
    two_sites.synchronize()
    first.house.put(numbers(10, 10), token="20")
    assert read_reported(first) is not None
    run(first, "ALTER FAILOVER GROUP g REMOVE site2 FROM ALLOWED_ACCOUNTS")
    assert read_reported(first) is None


def test_a_token_is_reported_when_every_follower_has_it(tmp_path: Path) -> None:
    sites = TwoSites(tmp_path, None, None)
    third = sites.add_follower("SITE3")
    first = sites.first
    first.house.create()
    first.house.put(numbers(0, 10), token="10")
    for site in (sites.second, third):
        while site.pull(first).has_changes:
            pass
    first.house.put(numbers(10, 10), token="20")
    while sites.second.pull(first).has_changes:
        pass
    reported = read_reported(first)
    assert reported is not None
    assert reported.offset_token == "10", "the third site may be promoted"
    while third.pull(first).has_changes:
        pass
    reported = read_reported(first)
    assert reported is not None
    assert reported.offset_token == "20"
    # A site that is removed holds nothing back.
    first.house.put(numbers(20, 10), token="30")
    while sites.second.pull(first).has_changes:
        pass
    run(first, "ALTER FAILOVER GROUP g REMOVE site3 FROM ALLOWED_ACCOUNTS")
    reported = read_reported(first)
    assert reported is not None
    assert reported.offset_token == "30"
    third.house.close()
    sites.close()


# Promotion.


def test_a_promotion_fences_the_clients_of_the_old_primary(sites: TwoSites) -> None:
    first, second = sites.first, sites.second
    first.house.create()
    first.house.put(numbers(0, 10), token="10")
    sites.synchronize()
    assert second.promote() == 2
    with second.house.database.reading() as connection:
        floor = failover_groups.read_epoch(connection) * failover_groups.SEQUENCERS_PER_EPOCH
    second.house.put(numbers(10, 10), token="20")
    assert second.house.last_offers[0].channels[0].client_sequencer > floor
    assert second.house.read_numbers() == list(range(20))


def test_a_former_primary_joins_the_new_line_and_keeps_aside_what_it_had_alone(
    sites: TwoSites,
) -> None:
    first, second = sites.first, sites.second
    first.house.create()
    first.house.put(numbers(0, 10), token="10")
    sites.synchronize()
    # Not replicated: a chunk, a table, a native commit.
    path = first.house.put(numbers(100, 5), token="105")
    first.house.migrate()
    run(first, "CREATE TABLE demo.public.lost (a NUMBER)")
    second.promote()
    second.house.put(numbers(10, 10), token="20")
    # It hears of the new epoch.
    with first.house.database.writing() as connection:
        failover_groups.fence(connection, "http://SITE2")
    with pytest.raises(SiteReadOnly):
        run(first, "CREATE DATABASE x")
    while first.pull(second).has_changes:
        pass
    sites.assert_equal()
    assert first.house.read_numbers() == list(range(20))
    with pytest.raises(TableNotFound):
        first.house.table(TableName("DEMO", "PUBLIC", "LOST"))
    found = run(first, "SHOW DIVERGED CHANGES").rows
    assert {(row[2], row[3], row[4]) for row in found} == {
        ("chunk", "DEMO.PUBLIC.NUMBERS", None),
        ("channel", "DEMO.PUBLIC.NUMBERS", "C"),
        ("table", "DEMO.PUBLIC.LOST", None),
    }
    assert path in {row[5] for row in found}


def test_a_former_primary_gets_files_back_that_only_its_own_line_removed(
    two_sites: TwoSites,
) -> None:
    first, second = two_sites.first, two_sites.second
    first.house.create()
    for start in (0, 10):
        first.house.put(numbers(start, 10))
        first.house.migrate()
    two_sites.synchronize()
    settings = MaintenanceSettings(first.house.warehouse.url, min_files=2)
    clock = ManualClock(first.clock.now())
    assert compact(first.house.database, NUMBERS, settings, clock=clock)
    clock.advance(2 * HOUR)
    assert expire_snapshots(first.house.database, NUMBERS, settings, clock)
    clock.advance(2 * HOUR)
    # The metadata files of earlier snapshots remain.
    collect_garbage(
        first.house.database,
        first.house.stage,
        first.house.warehouse.store,
        clock=clock,
        retention_s=HOUR,
    )
    second.promote()
    with first.house.database.writing() as connection:
        failover_groups.fence(connection, "http://SITE2")
    while first.pull(second).has_changes:
        pass
    two_sites.assert_equal()
    assert sorted(first.house.read_numbers()) == list(range(20))


def test_a_planned_switch_loses_nothing(sites: TwoSites) -> None:
    first, second = sites.first, sites.second
    first.house.create()
    sites.synchronize()
    first.house.put(numbers(0, 10), token="10")
    run(second, "ALTER FAILOVER GROUP g PRIMARY PLANNED")
    for _ in range(10):
        if second.pull(first).handed_over:
            break
    assert second.group.role == "primary"
    assert first.group.role == "fenced"
    assert second.house.read_numbers() == list(range(10))
    second.house.put(numbers(10, 10), token="20")
    while first.pull(second).has_changes:
        pass
    sites.assert_equal()
    assert run(first, "SHOW DIVERGED CHANGES").rows == ()


def test_an_interrupted_switch_is_completed_by_the_next_request(two_sites: TwoSites) -> None:
    first, second = two_sites.first, two_sites.second
    first.house.create()
    two_sites.synchronize()
    run(second, "ALTER FAILOVER GROUP g PRIMARY PLANNED")
    # The answer that hands over is lost.
    while True:
        response, _ = first.respond(second.make_request())
        if response.handed_over:
            break
        second.pull(first)
    assert second.group.role == "secondary"
    second.pull(first)
    assert second.group.role == "primary"


def test_a_primary_that_was_left_in_a_switch_accepts_writes_again(two_sites: TwoSites) -> None:
    first, second = two_sites.first, two_sites.second
    first.house.create()
    two_sites.synchronize()
    run(second, "ALTER FAILOVER GROUP g PRIMARY PLANNED")
    first.respond(second.make_request())
    assert first.group.role == "closing"
    with pytest.raises(SiteReadOnly):
        run(first, "CREATE DATABASE x")
    with first.house.database.writing() as connection:
        failover_groups.reopen_primary(connection)
    run(first, "CREATE DATABASE x")
    run(second, "ALTER FAILOVER GROUP g RESUME")


def test_two_sites_never_take_the_same_epoch(two_sites: TwoSites) -> None:
    first, second = two_sites.first, two_sites.second
    first.house.create()
    two_sites.synchronize()
    second.promote()
    with first.house.database.writing() as connection:
        failover_groups.fence(connection, None)
    assert first.promote(force=True) != second.group.epoch


def test_a_replication_group_holds_no_token_and_is_never_promoted(tmp_path: Path) -> None:
    sites = TwoSites(tmp_path, None, None, kind="REPLICATION")
    sites.first.house.create()
    sites.first.house.put(numbers(0, 10), token="10")
    sites.synchronize()
    assert read_reported(sites.first) is None
    assert sites.second.house.read_numbers() == list(range(10))
    with pytest.raises(GroupConflict, match="never promoted"):
        run(sites.second, "ALTER REPLICATION GROUP g PRIMARY FORCE")
    sites.close()


def test_a_replica_of_a_replication_group_cannot_fence_the_primary(tmp_path: Path) -> None:
    sites = TwoSites(tmp_path, None, None, kind="REPLICATION")
    sites.first.house.create()
    sites.synchronize()
    with pytest.raises(GroupConflict, match="never promoted"):
        sites.second.pull(sites.first, epoch=sites.first.group.epoch + 1)
    assert sites.first.group.role == "primary"
    run(sites.first, "CREATE DATABASE still_written")
    sites.close()


def test_a_dropped_group_leaves_an_installation_of_its_own(two_sites: TwoSites) -> None:
    first, second = two_sites.first, two_sites.second
    first.house.create(columns=COLUMNS)
    first.house.put(numbers(0, 10), token="10")
    two_sites.synchronize()
    run(second, "DROP FAILOVER GROUP g")
    second.house.put(numbers(10, 5), token="15")
    assert second.house.read_numbers() == list(range(15))
    run(first, "DROP FAILOVER GROUP g")
    first.house.put(numbers(10, 7), token="17")
    assert first.house.read_numbers() == list(range(17))

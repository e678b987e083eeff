"""Published snapshots have every row up to one point of the commit sequence, each once."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fixtures.chunks import NUMBERS, numbers
from snowmelt import failpoints
from snowmelt.catalog.db.database import open_and_upgrade_database
from snowmelt.catalog.jobs import leases
from snowmelt.catalog.objects.published_snapshots import (
    PublicationLag,
    find_stalled_reason,
    hold_publication,
    measure_publication_lag,
)
from snowmelt.catalog.statements.executor import execute_statement
from snowmelt.clock import ManualClock
from snowmelt.errors import LeaseLost
from snowmelt.failpoints import Failpoint
from snowmelt.schema.chunk_types import chunk_arrow_schema
from snowmelt.table.compaction import compact
from snowmelt.table.file_replacement_run import MaintenanceSettings
from snowmelt.table.migration import abort_orphaned_migrations
from snowmelt.table.snapshot_publication import (
    LISTED_PUBLICATIONS,
)
from support.interleaving import begin_beside
from support.published_tables import PublishedLakehouse, published_lakehouse

pytestmark = pytest.mark.slow


MINUTE, HOUR = 60.0, 3600.0


@pytest.fixture
def house(tmp_path: Path) -> Iterator[PublishedLakehouse]:
    with published_lakehouse(tmp_path) as found:
        yield found


def _fail() -> None:
    raise RuntimeError


def test_an_empty_table_is_published_without_a_snapshot(house: PublishedLakehouse) -> None:
    assert house.publish() is not None
    assert house.published_numbers() == []
    assert house.open(house.published()[0]).current_snapshot() is None


def test_a_publication_has_waiting_and_migrated_rows(house: PublishedLakehouse) -> None:
    house.put_numbers(0, 10)
    house.migrate()
    house.put_numbers(10, 5)
    made = house.publish()
    assert made is not None
    assert (made.up_to_seq, made.pointer) == (2, house.table().pointer)
    assert sorted(house.published_numbers()) == list(range(15))


def test_nothing_new_is_not_published_again(house: PublishedLakehouse) -> None:
    house.put_numbers(0, 10)
    assert house.publish() is not None
    assert house.publish() is None
    assert len(house.published()) == 1


def test_values_and_columns_are_those_of_the_table(house: PublishedLakehouse) -> None:
    house.put_numbers(0, 20)
    house.publish()
    found = house.open(house.published()[0])
    assert found.scan().to_arrow().sort_by("N").to_pylist() == house.read().sort_by("N").to_pylist()
    assert [field.field_id for field in found.schema().fields] == [1, 2]


def test_fresh_files_are_joined_and_stay_few(house: PublishedLakehouse) -> None:
    for start in range(300):
        house.put_numbers(start, 1)
        house.publish()
        assert len(house.fresh_files()) <= 16 + 8 + 3
    assert sorted(house.published_numbers()) == list(range(300))
    levels = [file.level for file in house.fresh_files()]
    assert levels == sorted(levels, reverse=True)
    assert levels[0] == 2


def test_a_migration_adopts_joined_files_as_they_are(house: PublishedLakehouse) -> None:
    for start in range(30):
        house.put_numbers(start, 1)
        house.publish()
    [joined, *_] = house.fresh_files()
    assert joined.level == 1
    result = house.migrate()
    assert (result.rows, result.files) == (30, 2)
    assert joined.path in house.data_files()
    assert sorted(house.read_numbers()) == list(range(30))
    house.publish()
    assert house.fresh_files() == []
    assert sorted(house.published_numbers()) == list(range(30))


def test_files_are_joined_only_when_there_are_many(house: PublishedLakehouse) -> None:
    for start in range(24):
        house.put_numbers(start, 1)
        house.publish()
    assert [file.level for file in house.fresh_files()] == [0] * 24
    house.put_numbers(24, 1)
    house.publish()
    assert [file.level for file in house.fresh_files()] == [1] + [0] * 9
    assert sorted(house.published_numbers()) == list(range(25))


def test_a_join_that_is_not_committed_changes_nothing(house: PublishedLakehouse) -> None:
    for start in range(24):
        house.put_numbers(start, 1)
        house.publish()
    house.put_numbers(24, 1)
    failpoints.arm(Failpoint.PUBLICATION_JOINED, _fail)
    with pytest.raises(RuntimeError):
        house.publish()
    assert [file.level for file in house.fresh_files()] == [0] * 24
    assert sorted(house.published_numbers()) == list(range(24))
    house.publish()
    assert [file.level for file in house.fresh_files()] == [1] + [0] * 9
    assert sorted(house.published_numbers()) == list(range(25))


def test_files_joined_without_new_chunks_are_published_too(house: PublishedLakehouse) -> None:
    # A migration that fails has held up the join.
    def fail() -> None:
        for start in range(25):
            house.put_numbers(100 + start, 1)
            house.publish()
        raise RuntimeError

    house.put_numbers(0, 1)
    failpoints.arm(Failpoint.MIGRATION_WRITTEN, fail)
    with pytest.raises(RuntimeError):
        house.migrate()
    with house.database.writing() as connection:
        abort_orphaned_migrations(connection, house.table().table_id, house.clock)
    assert {file.level for file in house.fresh_files()} == {0}
    made = house.publish()
    assert made is not None
    assert {file.level for file in house.fresh_files()} >= {1}
    house.clock.advance(2 * HOUR)
    house.collect(HOUR)
    assert len(house.open(made).scan().to_arrow()) == 26


def test_a_large_file_that_a_migration_has_split_is_written_again(
    house: PublishedLakehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    house.put_numbers(0, 1)

    def put_and_publish() -> None:
        for start in range(1, 30):
            house.put_numbers(start, 1)
            house.clock.advance(0.1)
        house.publish()

    failpoints.arm(Failpoint.MIGRATION_STAGED, put_and_publish)
    house.migrate()
    [file] = house.fresh_files()
    assert (file.from_seq, file.to_seq) == (0, 30)
    monkeypatch.setattr("snowmelt.table.snapshot_publication.MAX_ROUND_BYTES", 1)
    made = house.publish()
    assert made is not None
    assert made.up_to_seq == 30
    assert sorted(house.published_numbers()) == list(range(30))


def test_a_migration_in_progress_keeps_its_files(house: PublishedLakehouse) -> None:
    for start in range(24):
        house.put_numbers(start, 1)
        house.publish()
    failpoints.arm(Failpoint.MIGRATION_STAGED, lambda: (house.put_numbers(24, 4), house.publish()))
    house.migrate()
    house.publish()
    assert sorted(house.published_numbers()) == list(range(28))
    assert sorted(house.read_numbers()) == list(range(28))


def test_a_file_that_a_migration_has_split_is_written_again(house: PublishedLakehouse) -> None:
    house.put_numbers(0, 1)
    failpoints.arm(Failpoint.MIGRATION_STAGED, lambda: (house.put_numbers(1, 1), house.publish()))
    house.migrate()
    [file] = house.fresh_files()
    assert (file.from_seq, file.to_seq) == (0, 2)
    house.publish()
    [file] = house.fresh_files()
    assert (file.from_seq, file.to_seq) == (1, 2)
    assert sorted(house.published_numbers()) == [0, 1]


def test_a_held_snapshot_stays_readable_across_migration_compaction_and_clean_up(
    house: PublishedLakehouse,
) -> None:
    held = []
    for start in range(0, 60, 10):
        house.put_numbers(start, 10)
        house.publish()
        held.append((house.open(house.published()[0]), start + 10))
        house.migrate()
        house.clock.advance(5 * MINUTE)
        house.collect(HOUR)
    compact(
        house.database,
        NUMBERS,
        MaintenanceSettings(house.warehouse.url, min_files=2),
        clock=house.clock,
    )
    house.publish()
    house.clock.advance(15 * MINUTE)
    house.collect(HOUR)
    for table, count in held:
        assert sorted(table.scan().to_arrow()["N"].to_pylist()) == list(range(count))


@pytest.mark.postgres
def test_an_engine_holds_no_publication_that_the_next_one_does_not_contain(
    tmp_path: Path, postgres_url: str
) -> None:
    clock = ManualClock(dt.datetime.now(dt.UTC))
    database = open_and_upgrade_database(postgres_url)
    with contextlib.closing(PublishedLakehouse(tmp_path, clock, database)) as house:
        house.create()
        house.put_numbers(0, 10)
        house.publish()
        [first] = house.published()
        house.put_numbers(10, 5)

        def hold() -> bool:
            with database.writing() as connection:
                return hold_publication(connection, first, clock.now())

        holding: list[Future[bool]] = []
        failpoints.arm(
            Failpoint.PUBLICATION_INSIDE_COMMIT,
            lambda: holding.append(begin_beside(database, hold)),
        )
        assert house.publish() is not None
        assert not holding[0].result(60)


def test_clean_up_deletes_what_no_reader_can_hold(house: PublishedLakehouse) -> None:
    for start in range(40):
        house.put_numbers(start, 1)
        house.publish()
    before = house.files()
    house.clock.advance(2 * HOUR)
    house.collect(HOUR)
    kept = {path for path in house.files() if "/published/" in path or "/fresh/" in path}
    assert len(kept) < len(before) / 3
    assert sorted(house.published_numbers()) == list(range(40))
    [last] = house.published()
    assert set(last.files) <= kept


def test_clean_up_spares_files_of_a_publication_in_progress(house: PublishedLakehouse) -> None:
    house.put_numbers(0, 1)

    def clean_up() -> None:
        house.clock.advance(2 * HOUR)
        house.collect(HOUR)

    failpoints.arm(Failpoint.PUBLICATION_WRITTEN, clean_up)
    house.publish()
    assert house.published_numbers() == [0]


def test_clean_up_deletes_leftovers_of_a_crash_after_a_day(house: PublishedLakehouse) -> None:
    house.put_numbers(0, 1)
    failpoints.arm(Failpoint.PUBLICATION_WRITTEN, lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        house.publish()
    assert len(house.files()) == 4
    house.clock.advance(25 * HOUR)
    house.collect(HOUR)
    assert house.files() == set()
    house.publish()
    assert house.published_numbers() == [0]


def test_native_snapshots_are_published_alone(house: PublishedLakehouse) -> None:
    house.put_numbers(0, 10)
    house.migrate()
    house.put_numbers(10, 10)
    house.publish(native_only=True)
    assert sorted(house.published_numbers(native_only=True)) == list(range(10))
    assert house.fresh_files() == []
    assert house.publish(native_only=True) is None


def test_native_snapshots_stay_listed_for_time_travel(house: PublishedLakehouse) -> None:
    for start in range(0, 30, 10):
        house.put_numbers(start, 10)
        house.migrate()
        house.clock.advance(1)
    house.put_numbers(30, 10)
    house.publish()
    found = house.open(house.published()[0])
    counts = [
        found.scan(snapshot_id=each.snapshot_id).to_arrow().num_rows for each in found.snapshots()
    ]
    assert counts == [10, 20, 30, 40]


def test_earlier_publications_stay_listed(house: PublishedLakehouse) -> None:
    made = LISTED_PUBLICATIONS + 5
    for start in range(made):
        house.put_numbers(start, 1)
        house.publish()
    found = house.open(house.published()[0])
    assert len(found.snapshots()) == LISTED_PUBLICATIONS
    for number, each in enumerate(found.snapshots(), start=6):
        assert found.scan(snapshot_id=each.snapshot_id).to_arrow().num_rows == number


def test_a_metadata_file_has_what_engines_need(house: PublishedLakehouse) -> None:
    house.put_numbers(0, 3)
    house.migrate()
    house.put_numbers(3, 4)
    house.publish()
    path = house.published()[0].metadata_path
    document = json.loads(house.warehouse.store.get(path))
    current = document["current-snapshot-id"]
    assert path.rpartition("/")[2].split("-")[0].isdigit()
    assert path.endswith(".metadata.json")
    # DuckDB chooses by the log, Java by the reference.
    assert document["snapshot-log"][-1]["snapshot-id"] == current
    assert document["refs"]["main"]["snapshot-id"] == current
    [entry] = [each for each in document["snapshots"] if each["snapshot-id"] == current]
    # ClickHouse cannot write without totals.
    assert entry["summary"]["total-records"] == "7"
    assert int(entry["summary"]["total-files-size"]) > 0
    assert entry["sequence-number"] == document["last-sequence-number"] == 2
    assert "file:" not in json.dumps({**document, "properties": {}})


def test_the_first_publication_is_dated_back_for_transactions_that_have_begun(
    house: PublishedLakehouse,
) -> None:
    house.clock.advance(1)
    house.put_numbers(0, 1)
    began = house.clock.now()
    made = house.publish()
    assert made is not None
    assert made.timestamp_ms <= began.timestamp() * 1000


def test_columns_of_alter_table_are_published(house: PublishedLakehouse) -> None:
    house.put_numbers(0, 5)
    house.publish()
    execute_statement(
        house.database, f"ALTER TABLE {NUMBERS} ADD COLUMN EXTRA VARCHAR", clock=house.clock
    )
    made = house.publish()
    assert made is not None
    assert made.schema_version == house.table().schema.version
    rows = house.open(made).scan().to_arrow()
    assert rows.column_names == ["N", "WORD", "EXTRA"]
    assert rows["EXTRA"].to_pylist() == [None] * 5


def test_a_damaged_blob_stops_publications_before_it(house: PublishedLakehouse) -> None:
    house.is_damaged = True
    house.put_numbers(0, 5)
    path = house.put_numbers(5, 5)
    house.put_numbers(10, 5)
    good = house.stage.get(path)
    house.stage.put(path, b"x" * len(good))
    made = house.publish()
    assert made is not None
    assert made.up_to_seq == 1
    table_id = house.table().table_id
    with house.database.reading() as connection:
        reason = find_stalled_reason(connection, table_id, native_only=False)
    assert reason is not None
    assert path.partition("/")[2] in reason
    # A migration passes over the chunk; its rows are committed, so no publication may.
    house.migrate()
    assert house.publish() is None
    assert house.published_numbers() == list(range(5))
    house.stage.put(path, good)
    execute_statement(house.database, f"ALTER TABLE {NUMBERS} SET COMMENT = 'x'", clock=house.clock)


def lag_of(house: PublishedLakehouse) -> PublicationLag:
    with house.database.reading() as connection:
        return measure_publication_lag(
            connection, since=house.clock.now() - dt.timedelta(minutes=10)
        )


def test_the_lag_is_that_of_the_oldest_chunk_without_a_publication(
    house: PublishedLakehouse,
) -> None:
    house.is_damaged = True
    house.put_numbers(0, 5)
    assert lag_of(house) == PublicationLag(0, 0, None)
    house.publish()
    assert lag_of(house) == PublicationLag(1, 0, None)
    at = house.clock.now()
    path = house.put_numbers(5, 5)
    house.clock.advance(1)
    house.put_numbers(10, 5)
    lag = lag_of(house)
    assert (lag.tables, lag.stalled_tables) == (1, 0)
    assert abs(lag.oldest_unpublished_at - at) < dt.timedelta(milliseconds=1)
    house.stage.put(path, b"x")
    house.publish()
    assert lag_of(house) == PublicationLag(1, 1, lag.oldest_unpublished_at)


def test_another_process_may_have_taken_over(house: PublishedLakehouse) -> None:
    house.put_numbers(0, 1)
    with house.database.writing() as connection:
        mine = leases.acquire_lease(connection, "p", "a", ttl_s=5, now=house.clock.now())
        leases.acquire_lease(
            connection, "p", "b", ttl_s=5, now=house.clock.now() + dt.timedelta(seconds=6)
        )
    with pytest.raises(LeaseLost):
        house.publish(lease=mine)
    assert house.published() == []
    assert house.fresh_files() == []


def test_chunks_of_one_registration_are_published_together(
    house: PublishedLakehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("snowmelt.table.snapshot_publication.MAX_ROUND_BYTES", 1)
    # Chunks of one registration have one time.
    house.put_numbers(0, 1)
    house.put_numbers(1, 1)
    house.clock.advance(1)
    house.put_numbers(2, 1)
    ends = []
    while (made := house.publish()) is not None:
        ends.append(made.up_to_seq)
    assert ends == [2, 3]
    assert sorted(house.published_numbers()) == [0, 1, 2]


def test_a_round_has_at_most_a_million_rows_that_compress_well(house: PublishedLakehouse) -> None:
    count = 400_000
    zeros = numbers(0, 1).take(pa.array([0] * count))
    for _ in range(6):
        path = house.put(zeros)
        assert len(house.stage.get(path)) < count
        house.clock.advance(1)
    ends = []
    while (made := house.publish()) is not None:
        ends.append(made.up_to_seq)
    assert ends == [3, 6]


class PublicationMachine(RuleBasedStateMachine):
    """Any order of chunks, publications, migrations, compactions, changes and clean-ups."""

    @initialize()
    def begin(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        clock = ManualClock(dt.datetime.now(dt.UTC))
        self.house = PublishedLakehouse(Path(self._folder.name), clock)
        self.house.create()
        self.next_number = 0
        self.numbers_by_seq = [0]
        self.last_up_to = 0
        self.last_timestamp = 0
        self.snapshot_ids: set[int | None] = set()
        self.columns = 0

    def teardown(self) -> None:
        if hasattr(self, "house"):
            self.house.close()
            self._folder.cleanup()

    @rule(count=st.integers(1, 3), chunks=st.integers(1, 20))
    def put(self, count: int, chunks: int) -> None:
        for _ in range(chunks):
            rows = numbers(self.next_number, count)
            self.house.put(self._widen(rows))
            self.next_number += count
            self.numbers_by_seq.append(self.next_number)

    def _widen(self, rows: Any) -> Any:
        schema = chunk_arrow_schema(self.house.table().schema)
        for field in schema:
            if field.name not in rows.column_names:
                rows = rows.append_column(field, pa.nulls(rows.num_rows, field.type))
        return rows.select(schema.names).cast(schema)

    @precondition(lambda self: self.columns < 2)
    @rule()
    def add_column(self) -> None:
        self.columns += 1
        statement = f"ALTER TABLE {NUMBERS} ADD COLUMN EXTRA{self.columns} NUMBER(9,0)"
        execute_statement(self.house.database, statement, clock=self.house.clock)

    @rule()
    def publish(self) -> None:
        made = self.house.publish()
        if made is None:
            return
        assert made.up_to_seq >= self.last_up_to
        if made.snapshot is not None:
            assert made.timestamp_ms > self.last_timestamp
            self.last_timestamp = made.timestamp_ms
        table = self.house.open(made)
        expected = Counter(range(self.numbers_by_seq[made.up_to_seq]))
        assert Counter(int(n) for n in table.scan().to_arrow()["N"].to_pylist()) == expected
        ids = [each.snapshot_id for each in table.snapshots()]
        assert len(ids) == len(set(ids))
        times = [each.timestamp_ms for each in table.metadata.snapshot_log]
        assert times == sorted(times)
        self.last_up_to = made.up_to_seq

    @rule()
    def migrate(self) -> None:
        self.house.migrate()

    @rule()
    def publish_within_a_migration(self) -> None:
        def put_and_publish() -> None:
            self.put(1, 2)
            self.publish()

        failpoints.arm(Failpoint.MIGRATION_STAGED, put_and_publish)
        self.house.migrate()
        failpoints.disarm()

    @rule()
    def compact(self) -> None:
        if self.house.table().pointer is not None:
            where = MaintenanceSettings(self.house.warehouse.url, min_files=2)
            compact(self.house.database, NUMBERS, where, clock=self.house.clock)

    @rule(minutes=st.sampled_from([1, 20, 90]))
    def collect(self, minutes: Any) -> None:
        self.house.clock.advance(minutes * MINUTE)
        self.house.collect(HOUR)

    @invariant()
    def the_last_publication_is_readable_while_its_native_table_is(self) -> None:
        if not hasattr(self, "house"):
            return
        for made in self.house.published()[:1]:
            if made.is_readable(self.house.table().pointer, self.house.clock.now()):
                found = self.house.open(made).scan().to_arrow()
                assert found.num_rows == self.numbers_by_seq[made.up_to_seq]


TestPublicationMachine = pytest.mark.slow(PublicationMachine.TestCase)
TestPublicationMachine.settings = settings(
    max_examples=settings().max_examples // 5,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)

"""A snapshot with fresh files has the rows of the snapshot with chunks, each once."""

from __future__ import annotations

import contextlib
import datetime as dt
import random
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from fixtures.chunks import NUMBERS
from snowmelt import failpoints
from snowmelt.catalog import model
from snowmelt.catalog.db.database import open_and_upgrade_database
from snowmelt.catalog.objects.published_snapshots import list_demand
from snowmelt.catalog.statements.executor import execute_statement
from snowmelt.catalog.streaming.chunks import discard_quarantined_chunks
from snowmelt.clock import ManualClock
from snowmelt.errors import BlobCorrupt
from snowmelt.failpoints import Failpoint
from snowmelt.schema.types import Column, LogicalType, TableName
from snowmelt.spark.tables.partition import filter_rows
from snowmelt.table.chunk_reader import concatenate_native_tables, run_chunk_read_task
from snowmelt.table.compaction import compact
from snowmelt.table.file_replacement_run import MaintenanceSettings
from snowmelt.table.fresh_files import describe_fresh_file
from snowmelt.table.migration import MigrationSettings, abort_orphaned_migrations, migrate_table
from snowmelt.table.native_file import read_native_file
from snowmelt.table.pruning import (
    Comparison,
    InList,
    IsNull,
    Predicate,
    StartsWith,
    prune_chunks,
    prune_files,
)
from snowmelt.table.snapshot import MANY_CHUNKS, TableSnapshot, take_snapshots
from snowmelt.table.table_reader import make_chunk_read_tasks
from support.published_tables import PublishedLakehouse, published_lakehouse
from support.random_rows import DEFAULTS, TYPES, make_random_rows

if TYPE_CHECKING:
    import pyarrow as pa

pytestmark = pytest.mark.slow

HOUR = 3600.0


@pytest.fixture
def house(tmp_path: Path) -> Iterator[PublishedLakehouse]:
    with published_lakehouse(tmp_path) as found:
        yield found


def take(
    house: PublishedLakehouse, name: TableName = NUMBERS, *, with_fresh_files: bool = True
) -> TableSnapshot:
    [snapshot] = take_snapshots(
        house.database, [name], clock=house.clock, with_fresh_files=with_fresh_files
    )
    return snapshot


def read(
    house: PublishedLakehouse, snapshot: TableSnapshot, predicates: tuple[Predicate, ...] = ()
) -> pa.Table:
    """Return the rows of a snapshot from the files and chunks that remain after pruning."""
    schema = snapshot.table.schema
    files = snapshot.list_native_files()
    files += [describe_fresh_file(file, house.warehouse) for file in snapshot.fresh]
    chunks = prune_chunks(snapshot.chunks, schema, snapshot.schemas, predicates)
    tasks = make_chunk_read_tasks(house.database, house.keyring, house.stage.url, chunks, schema)
    parts = [read_native_file(file.path, schema) for file in prune_files(files, schema, predicates)]
    parts += [run_chunk_read_task(task) for task in tasks]
    return filter_rows(concatenate_native_tables(parts, schema), predicates)


def read_numbers(house: PublishedLakehouse, snapshot: TableSnapshot | None = None) -> list[int]:
    rows = read(house, snapshot or take(house))
    return sorted(int(number) for number in rows["N"].to_pylist())


def alter(house: PublishedLakehouse, change: str) -> None:
    execute_statement(house.database, f"ALTER TABLE {NUMBERS} {change}", clock=house.clock)
    house.reopen_channels()


def covered_by(snapshot: TableSnapshot) -> list[tuple[int, int]]:
    return [(file.from_seq, file.to_seq) for file in snapshot.fresh]


def test_fresh_files_replace_the_chunks_that_they_cover(house: PublishedLakehouse) -> None:
    for start in range(0, 30, 10):
        house.put_numbers(start, 10)
        house.publish()
    house.put_numbers(30, 10)
    snapshot = take(house)
    assert covered_by(snapshot) == [(0, 1), (1, 2), (2, 3)]
    assert snapshot.chunk_numbers == {4}
    assert read_numbers(house, snapshot) == list(range(40))
    without = take(house, with_fresh_files=False)
    assert (without.fresh, sorted(without.chunk_numbers)) == ((), [1, 2, 3, 4])


def list_requested(house: PublishedLakehouse) -> list[str]:
    """Return the incarnations of the tables that were requested within the last minute."""
    since = house.clock.now() - dt.timedelta(minutes=1)
    with house.database.reading() as connection:
        return [each.incarnation for each in list_demand(connection, since=since)]


def put_many_chunks(house: PublishedLakehouse) -> None:
    for start in range(MANY_CHUNKS):
        house.put_numbers(start, 1)
    house.clock.advance(HOUR)


def test_a_read_of_many_chunks_requests_fresh_files(house: PublishedLakehouse) -> None:
    for start in range(MANY_CHUNKS - 1):
        house.put_numbers(start, 1)
    house.clock.advance(HOUR)
    take(house)
    assert list_requested(house) == []
    house.put_numbers(MANY_CHUNKS - 1, 1)
    take(house, with_fresh_files=False)
    assert list_requested(house) == []
    snapshot = take(house)
    assert list_requested(house) == [house.table().incarnation]
    assert read_numbers(house, snapshot) == list(range(MANY_CHUNKS))
    house.publish()
    # The request is repeated while the chunks are not migrated, but at most once a minute.
    house.clock.advance(59)
    assert covered_by(take(house)) == [(0, MANY_CHUNKS)]
    house.clock.advance(2)
    assert list_requested(house) == []
    take(house)
    assert list_requested(house) == [house.table().incarnation]
    house.migrate()
    house.clock.advance(HOUR)
    take(house)
    assert list_requested(house) == []


def test_a_table_that_hides_fresh_rows_is_not_requested(house: PublishedLakehouse) -> None:
    alter(house, "SET ICEBERG_FRESH = FALSE")
    put_many_chunks(house)
    assert read_numbers(house) == list(range(MANY_CHUNKS))
    assert list_requested(house) == []


def test_a_query_works_if_its_request_for_fresh_files_fails(house: PublishedLakehouse) -> None:
    put_many_chunks(house)
    impatient = open_and_upgrade_database(house.database.url, busy_timeout_s=0.1)
    with contextlib.closing(impatient), house.database.writing() as connection:
        # The first write locks the catalog.
        connection.execute(sa.update(model.tables).values(last_seq=model.tables.c.last_seq))
        [snapshot] = take_snapshots(impatient, [NUMBERS], clock=house.clock, with_fresh_files=True)
    assert list_requested(house) == []
    assert read_numbers(house, snapshot) == list(range(MANY_CHUNKS))


def test_fresh_files_continue_the_native_files(house: PublishedLakehouse) -> None:
    house.put_numbers(0, 10)
    house.publish()
    house.migrate()
    house.put_numbers(10, 10)
    # The record of the migrated file remains until the next publication.
    assert covered_by(take(house)) == []
    assert read_numbers(house) == list(range(20))
    house.publish()
    assert covered_by(take(house)) == [(1, 2)]
    assert read_numbers(house) == list(range(20))


def test_a_file_within_which_a_migration_ended_is_not_used(house: PublishedLakehouse) -> None:
    house.put_numbers(0, 1)
    failpoints.arm(Failpoint.MIGRATION_STAGED, lambda: (house.put_numbers(1, 1), house.publish()))
    house.migrate()
    [file] = house.fresh_files()
    assert (file.from_seq, file.to_seq, house.table().migrated_seq) == (0, 2, 1)
    snapshot = take(house)
    assert (snapshot.fresh, sorted(snapshot.chunk_numbers)) == ((), [2])
    assert read_numbers(house, snapshot) == [0, 1]


def test_files_after_a_gap_are_not_used(house: PublishedLakehouse) -> None:
    # A migration ended within the first file, and the publisher has not written the rest again.
    house.put_numbers(0, 1)

    def publish_twice() -> None:
        for start in (1, 2):
            house.put_numbers(start, 1)
            house.publish()

    failpoints.arm(Failpoint.MIGRATION_STAGED, publish_twice)
    house.migrate()
    assert [(file.from_seq, file.to_seq) for file in house.fresh_files()] == [(0, 2), (2, 3)]
    snapshot = take(house)
    assert (snapshot.fresh, sorted(snapshot.chunk_numbers)) == ((), [2, 3])
    assert read_numbers(house, snapshot) == [0, 1, 2]
    house.publish()
    assert covered_by(take(house)) == [(1, 2), (2, 3)]
    assert read_numbers(house) == [0, 1, 2]


def test_conditions_skip_fresh_files_by_their_bounds(house: PublishedLakehouse) -> None:
    for start in range(0, 50, 10):
        house.put_numbers(start, 10)
        house.publish()
    snapshot = take(house)
    files = [describe_fresh_file(file, house.warehouse) for file in snapshot.fresh]

    def rows_opened(*predicates: Predicate) -> list[int]:
        kept = prune_files(files, snapshot.table.schema, predicates)
        return [files.index(file) for file in kept]

    assert rows_opened(Comparison("N", "=", 25)) == [2]
    assert rows_opened(Comparison("N", ">", 49)) == []
    assert rows_opened(InList("N", (5, 41))) == [0, 4]
    assert rows_opened(StartsWith("WORD", "word 3")) == [0, 3]
    assert rows_opened(IsNull("N")) == []
    assert rows_opened(Comparison("N", "<", 20), IsNull("WORD")) == [0, 1]


def test_files_of_a_snapshot_are_readable_until_its_deadline(house: PublishedLakehouse) -> None:
    """Compaction by the publisher, adoption, compaction and deletes do not remove what is planned."""
    for start in range(24):
        house.put_numbers(start, 1)
        house.publish()
    snapshots = [take(house)]
    for start in range(24, 30):
        house.put_numbers(start, 1)
        house.publish()
    assert {file.level for file in house.fresh_files()} == {0, 1}
    snapshots.append(take(house))
    house.migrate()
    house.publish()
    snapshots.append(take(house))
    assert house.fresh_files() == []
    maintenance = MaintenanceSettings(house.warehouse.url, min_files=2)
    assert compact(house.database, NUMBERS, maintenance, clock=house.clock) is not None
    while house.clock.now() < snapshots[0].deadline:
        house.collect(HOUR)
        for snapshot, count in zip(snapshots, (24, 30, 30), strict=True):
            assert read_numbers(house, snapshot) == list(range(count))
        house.clock.advance(HOUR / 4)
    house.clock.advance(HOUR)
    house.collect(HOUR)
    with pytest.raises(FileNotFoundError):
        read_numbers(house, snapshots[0])


def test_a_blob_that_is_damaged_later_does_not_matter_until_the_migration(
    house: PublishedLakehouse,
) -> None:
    house.is_damaged = True
    house.put_numbers(0, 5)
    path = house.put_numbers(5, 5)
    house.put_numbers(10, 5)
    house.publish()
    house.put_numbers(15, 5)
    good = house.stage.get(path)
    house.stage.put(path, b"x" * len(good))
    assert read_numbers(house) == list(range(20))
    house.migrate()
    house.migrate()
    # The chunk is quarantined, and its rows are in no native file.
    snapshot = take(house)
    assert (snapshot.fresh, sorted(snapshot.chunk_numbers)) == ((), [2])
    with pytest.raises(BlobCorrupt):
        read_numbers(house, snapshot)
    house.stage.put(path, good)
    assert read_numbers(house, snapshot) == list(range(20))


def test_discarded_chunks_are_in_no_fresh_file_that_is_used(house: PublishedLakehouse) -> None:
    house.is_damaged = True
    house.put_numbers(0, 5)
    path = house.put_numbers(5, 5)
    house.publish()
    house.put_numbers(10, 5)
    house.stage.put(path, b"x" * len(house.stage.get(path)))
    house.migrate()
    house.migrate()
    with house.database.writing() as connection:
        table_id = house.table().table_id
        assert discard_quarantined_chunks(connection, table_id, house.clock.now()) == 1
    for _ in range(2):
        assert read_numbers(house) == [*range(5), *range(10, 15)]
        house.publish()
    house.put_numbers(15, 5)
    house.publish()
    assert len(take(house).fresh) == 1
    assert read_numbers(house) == [*range(5), *range(10, 20)]


def test_a_blob_that_is_damaged_before_the_publication_is_an_error(
    house: PublishedLakehouse,
) -> None:
    house.is_damaged = True
    house.put_numbers(0, 5)
    path = house.put_numbers(5, 5)
    house.put_numbers(10, 5)
    house.stage.put(path, b"x" * len(house.stage.get(path)))
    house.publish()
    snapshot = take(house)
    assert (covered_by(snapshot), sorted(snapshot.chunk_numbers)) == ([(0, 1)], [2, 3])
    with pytest.raises(BlobCorrupt):
        read_numbers(house, snapshot)
    # A query that does not need the chunk has its rows.
    assert len(read(house, snapshot, (Comparison("N", ">=", 10),))) == 5


@pytest.mark.parametrize("statement", ["TRUNCATE TABLE {}", "DROP TABLE {}"])
def test_a_replaced_table_does_not_have_the_fresh_files_of_the_former(
    house: PublishedLakehouse, statement: str
) -> None:
    house.put_numbers(0, 5)
    house.publish()
    before = take(house)
    execute_statement(house.database, statement.format(NUMBERS), clock=house.clock)
    if "DROP" in statement:
        house.create(replace=True)
    house.reopen_channels()
    assert take(house).fresh == ()
    assert read_numbers(house) == []
    house.put_numbers(5, 2)
    house.publish()
    assert len(take(house).fresh) == 1
    assert read_numbers(house) == [5, 6]
    assert read_numbers(house, before) == list(range(5))
    execute_statement(house.database, f"DROP TABLE {NUMBERS}", clock=house.clock)
    house.undrop()
    assert read_numbers(house) == [5, 6]
    # The former table again, after garbage collection.
    execute_statement(
        house.database, f"ALTER TABLE {NUMBERS} RENAME TO demo.public.newer", clock=house.clock
    )
    house.clock.advance(2 * HOUR)
    house.collect(HOUR)
    house.undrop()
    snapshot = take(house)
    assert covered_by(snapshot) == [(0, 1)]
    assert read_numbers(house, snapshot) == list(range(5))
    house.put_numbers(7, 1)
    house.publish()
    assert read_numbers(house) == [*range(5), 7]


# --- Any order of chunks, publications, migrations and changes of columns, with every type.


def _choose_condition(rows: pa.Table, chance: random.Random) -> Predicate | None:
    """Return a condition on a value of the rows, or on NULL."""
    column = chance.choice(rows.schema.names)
    if chance.random() < 0.2 or "$" in column:
        return IsNull(column, negated=chance.random() < 0.5) if "$" not in column else None
    values = [each for each in rows[column].to_pylist() if each is not None]
    if not values or values[0] != values[0]:
        return None
    value = chance.choice(values)
    if isinstance(value, str) and chance.random() < 0.5:
        return StartsWith(column, value[: chance.randint(0, 20)])
    if chance.random() < 0.3:
        return InList(column, (value, chance.choice(values)))
    return Comparison(column, chance.choice(("=", "<", "<=", ">", ">=", "<>")), value)


def _count_rows(rows: pa.Table) -> Counter[str]:
    return Counter(map(repr, rows.to_pylist()))


class SnapshotMachine(RuleBasedStateMachine):
    """Snapshots with and without fresh files have the rows that were written."""

    @initialize(seed=st.integers(0, 2**32))
    def begin(self, seed: int) -> None:
        self._folder = tempfile.TemporaryDirectory()
        clock = ManualClock(dt.datetime.now(dt.UTC))
        self.house = PublishedLakehouse(Path(self._folder.name), clock)
        columns = (Column("ID", LogicalType.FIXED, 1, nullable=False, precision=9, scale=0),)
        self.house.create(columns=columns)
        self.chance = random.Random(seed)
        self.names = 0
        self.rows = 0
        # By row, the native form of each field when the row was written.
        self.written: dict[int, dict[bytes, Any]] = {}
        for _ in range(4):
            self.add_column()

    def teardown(self) -> None:
        if hasattr(self, "house"):
            self.house.close()
            self._folder.cleanup()

    @rule(chunks=st.integers(1, 4))
    def put(self, chunks: int) -> None:
        schema = self.house.table().schema
        for _ in range(chunks):
            count = self.chance.choice((1, 2, 8))
            self.house.put(make_random_rows(schema, self.rows, count, self.chance))
            self.rows += count
        self._record_rows()

    def _record_rows(self) -> None:
        """Store the rows that were just written, as the chunks have them."""
        found = read(self.house, take(self.house, with_fresh_files=False))
        keys = [field.metadata[b"PARQUET:field_id"] for field in found.schema]
        for row in zip(*(column.to_pylist() for column in found.columns), strict=True):
            values = dict(zip(keys, row, strict=True))
            self.written.setdefault(int(values[b"1"]), values)

    @rule()
    def publish(self) -> None:
        self.house.publish()

    @rule(max_chunks=st.sampled_from([2, 5, 1000]))
    def migrate(self, max_chunks: int) -> None:
        places = MigrationSettings(
            self.house.stage.url, self.house.warehouse.url, max_chunks=max_chunks
        )
        migrate_table(
            self.house.database, self.house.keyring, NUMBERS, places, clock=self.house.clock
        )

    @rule(has_failed=st.booleans())
    def publish_during_a_migration(self, has_failed: bool) -> None:
        def act() -> None:
            self.put(2)
            self.house.publish()
            if has_failed:
                raise RuntimeError

        point = Failpoint.MIGRATION_WRITTEN if has_failed else Failpoint.MIGRATION_STAGED
        failpoints.arm(point, act)
        with contextlib.suppress(RuntimeError):
            self.house.migrate()
        failpoints.disarm()
        with self.house.database.writing() as connection:
            table_id = self.house.table().table_id
            abort_orphaned_migrations(connection, table_id, self.house.clock)

    @rule()
    def compact(self) -> None:
        if self.house.table().pointer is not None:
            where = MaintenanceSettings(self.house.warehouse.url, min_files=2)
            compact(self.house.database, NUMBERS, where, clock=self.house.clock)

    @rule()
    def collect(self) -> None:
        self.house.clock.advance(2 * HOUR)
        self.house.collect(HOUR)

    @rule()
    def add_column(self) -> None:
        self.names += 1
        kind = self.chance.choice(TYPES)
        alter(self.house, f"ADD COLUMN C{self.names} {kind}")
        if kind in DEFAULTS:
            alter(self.house, f"ALTER COLUMN C{self.names} SET DEFAULT {DEFAULTS[kind]}")

    @rule(comes_back=st.booleans())
    def drop_column(self, comes_back: bool) -> None:
        """Drop a column. Another may get its name."""
        name = self._choose_column()
        if name is None:
            return
        alter(self.house, f"DROP COLUMN {name}")
        if comes_back:
            alter(self.house, f"ADD COLUMN {name} {self.chance.choice(TYPES)}")

    @rule()
    def rename_column(self) -> None:
        if (name := self._choose_column()) is not None:
            self.names += 1
            alter(self.house, f"RENAME COLUMN {name} TO C{self.names}")

    def _choose_column(self) -> str | None:
        table = self.house.table()
        names = {each.name for each in table.schema.columns} - {"ID", *table.cluster_by}
        return self.chance.choice(sorted(names)) if names else None

    @rule()
    def widen_columns(self) -> None:
        for column in self.house.table().schema.columns:
            if column.kind is LogicalType.FIXED and (column.precision or 38) < 38:
                digits = self.chance.randint((column.precision or 0) + 1, 38)
                change = f"NUMBER({digits},{column.scale})"
                alter(self.house, f"ALTER COLUMN {column.name} SET DATA TYPE {change}")
            elif column.kind is LogicalType.TEXT and column.length == 30:
                alter(self.house, f"ALTER COLUMN {column.name} SET DATA TYPE VARCHAR(200)")

    @rule()
    def cluster(self) -> None:
        kinds = (LogicalType.VARIANT, LogicalType.ARRAY, LogicalType.OBJECT)
        names = [each.name for each in self.house.table().schema.columns if each.kind not in kinds]
        alter(self.house, f"CLUSTER BY ({', '.join(self.chance.sample(names, 1))})")

    @invariant()
    def rows_are_those_that_were_written(self) -> None:
        if not hasattr(self, "house"):
            return
        with_files = take(self.house)
        with_chunks = take(self.house, with_fresh_files=False)
        rows = read(self.house, with_files)
        keys = [field.metadata[b"PARQUET:field_id"] for field in rows.schema]
        expected = Counter(
            repr(dict(zip(rows.schema.names, (row.get(key) for key in keys), strict=True)))
            for row in self.written.values()
        )
        assert _count_rows(rows) == expected
        for _ in range(4 if len(rows) else 0):
            if (condition := _choose_condition(rows, self.chance)) is None:
                continue
            wanted = _count_rows(filter_rows(rows, [condition]))
            assert _count_rows(read(self.house, with_files, (condition,))) == wanted, condition
            assert _count_rows(read(self.house, with_chunks, (condition,))) == wanted, condition


TestSnapshots = SnapshotMachine.TestCase
TestSnapshots.settings = settings(
    max_examples=settings().max_examples // 5,
    stateful_step_count=15,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)

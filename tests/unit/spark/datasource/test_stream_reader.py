"""A stream's batches, without Spark: each row once whatever is done to the table in between."""

from __future__ import annotations

import datetime as dt
import json
import random
from typing import Any

import pyarrow as pa
import pytest

from fixtures.chunks import NUMBERS, Lakehouse, numbers
from snowmelt.catalog.jobs.load_history import LoadTotals
from snowmelt.catalog.objects.published_snapshots import list_fresh_files
from snowmelt.clock import ManualClock, SystemClock
from snowmelt.errors import LoadRefused, TableNotFound
from snowmelt.spark.datasource.catalog_connection import LakeConnection
from snowmelt.spark.datasource.reader import read_requested_schema
from snowmelt.spark.datasource.stream_reader import TableStreamReader
from snowmelt.spark.datasource.write_commit import WriteId, commit_write, resolve_write_target
from snowmelt.spark.datasource.write_task import write_native_files
from snowmelt.table.compaction import compact
from snowmelt.table.file_replacement_run import MaintenanceSettings
from snowmelt.table.garbage_collection import collect_garbage
from snowmelt.table.iceberg import list_native_files
from snowmelt.table.load_commit import LoadRequest, LoadResult, begin_load, commit_load
from snowmelt.table.snapshot import load_current_native_table
from snowmelt.table.snapshot_publication import PublicationSettings, SnapshotPublisher

TABLE = "demo.public.numbers"


class Query:
    """What Spark does with a source: offsets go through JSON, a batch may be asked for twice."""

    def __init__(self, lakehouse: Lakehouse, **options: str) -> None:
        self.lakehouse, self.options = lakehouse, {"table": TABLE, **options}
        self.connection = LakeConnection(
            catalog=lakehouse.database.url,
            stage=lakehouse.stage.url,
            warehouse=lakehouse.warehouse.url,
            keys=lakehouse.folder / "keys",
        )
        self.schema = read_requested_schema(self.connection, {"table": TABLE, "columns": "n"})
        self.restart()
        self.offset = self.reader.initialOffset()

    def restart(self) -> None:
        self.reader = TableStreamReader(self.connection, self.options, self.schema)

    def rows(self, start: Any, end: Any) -> list[Any]:
        return sorted(
            int(value)
            for part in self.reader.partitions(start, end)
            for batch in self.reader.read(part)
            for value in batch.column(0).to_pylist()
        )

    def batch(self) -> Any:
        """Read one batch, None where there is none."""
        end = self.reader.latestOffset(self.offset, self.reader.getDefaultReadLimit())
        if end == self.offset:
            return None
        start, end = (json.loads(json.dumps(each)) for each in (self.offset, end))
        found = self.rows(start, end)
        self.restart()
        assert self.rows(start, end) == found
        self.offset = end
        return found

    def all(self) -> list[Any]:
        batches = iter(self.batch, None)
        return [batch for batch in batches if batch]


def load(query: Query, first: int, count: int, once: WriteId | None = None) -> bool:
    """Write rows as a task and the driver of Spark do; tell whether it was done."""
    target = resolve_write_target(query.connection, NUMBERS, ["n"], "test")
    batch = pa.record_batch([pa.array(range(first, first + count))], names=["n"])
    return commit_write(target, [write_native_files(target.plan, [batch])], write_id=once)


def join_files(lakehouse: Lakehouse) -> None:
    settings = MaintenanceSettings(lakehouse.warehouse.url, min_files=2)
    compact(lakehouse.database, NUMBERS, settings, clock=SystemClock())


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_each_row_comes_once_whatever_happens_between_batches(
    lakehouse: Lakehouse, seed: int
) -> None:
    pick = random.Random(seed)
    lakehouse.create()
    options = [{}, {"maxChunksPerTrigger": "2"}, {"maxRowsPerTrigger": "25"}][seed % 3]
    query = Query(lakehouse, **options)
    written = 0
    read: list[Any] = []
    for _ in range(30):
        step = pick.choice(["put", "put", "load", "migrate", "join", "read", "read"])
        if step == "put":
            lakehouse.put(numbers(written, 10))
            written += 10
        elif step == "load":
            load(query, written, 7)
            written += 7
        elif step == "migrate":
            lakehouse.migrate()
        elif step == "join":
            join_files(lakehouse)
        else:
            found = query.batch()
            read += found or []
    read += [row for batch in query.all() for row in batch]
    assert sorted(read) == list(range(written))


@pytest.mark.slow
def test_chunks_are_kept_until_streams_have_read_them(lakehouse: Lakehouse) -> None:
    lakehouse.create()
    query = Query(lakehouse)
    lakehouse.put(numbers(0, 10))
    assert query.all() == [list(range(10))]
    query.reader.commit(query.offset)
    for start in range(10, 50, 10):
        lakehouse.put(numbers(start, 10))
    lakehouse.migrate()
    load(query, 100, 5)
    assert lakehouse.collect(retention_s=0.0).blobs == 1
    query.restart()
    assert query.all() == [[*range(10, 50), *range(100, 105)]]
    query.reader.commit(query.offset)
    assert lakehouse.collect(retention_s=0.0).blobs == 4


def gone(lakehouse: Lakehouse) -> None:
    """Clean up two days later: streams are not waited for any more."""
    later = ManualClock(lakehouse.clock.now() + dt.timedelta(days=2))
    house = lakehouse.warehouse.store
    collect_garbage(lakehouse.database, lakehouse.stage, house, clock=later, retention_s=0.0)


@pytest.mark.slow
def test_what_migrations_took_is_found_in_their_files_after_chunks_are_gone(
    lakehouse: Lakehouse,
) -> None:
    lakehouse.create()
    query = Query(lakehouse)
    lakehouse.put(numbers(0, 10))
    lakehouse.migrate()
    assert query.all() == [list(range(10))]
    for start in range(10, 50, 10):
        lakehouse.put(numbers(start, 10))
        if start != 20:
            lakehouse.migrate()
    load(query, 100, 5)
    gone(lakehouse)
    query.restart()
    assert query.all() == [[*range(10, 50), *range(100, 105)]]


@pytest.mark.slow
def test_a_range_that_is_not_to_be_told_from_others_is_refused(lakehouse: Lakehouse) -> None:
    lakehouse.create()
    query = Query(lakehouse, startingOffset="0", maxChunksPerTrigger="1")
    for start in range(0, 30, 10):
        lakehouse.put(numbers(start, 10))
    assert query.batch() == list(range(10))
    lakehouse.migrate()
    gone(lakehouse)
    with pytest.raises(
        LoadRefused, match=r"one migration wrote commits 1 to 3 into the same files.*startingOffset"
    ):
        query.batch()
    lakehouse.create(replace=True)
    with pytest.raises(TableNotFound, match="Start the stream with a new checkpoint"):
        query.batch()


@pytest.mark.slow
def test_a_stream_begins_where_it_is_told_and_ends_with_what_is_there(lakehouse: Lakehouse) -> None:
    lakehouse.create()
    for start in range(0, 30, 10):
        lakehouse.put(numbers(start, 10))
    latest, second = Query(lakehouse, startingOffset="latest"), Query(lakehouse, startingOffset="2")
    assert latest.all() == []
    now = Query(lakehouse, where="n >= 15")
    now.reader.prepareForTriggerAvailableNow()
    lakehouse.put(numbers(30, 10))
    begin, limit = now.reader.initialOffset(), now.reader.getDefaultReadLimit()
    assert now.rows(begin, now.reader.latestOffset(begin, limit)) == list(range(15, 30))
    assert latest.all() == [list(range(30, 40))]
    assert second.all() == [list(range(20, 40))]
    for options, why in (
        ({"startingOffset": "9"}, "the last commit of DEMO.PUBLIC.NUMBERS is number 4"),
        ({"startingOffset": "soon"}, "expected earliest, latest or a commit number"),
        ({"maxRowsPerTrigger": "0"}, "an integer of at least 1"),
        ({"maxRows": "1"}, "Option maxRows"),
    ):
        with pytest.raises(LoadRefused, match=why):
            Query(lakehouse, **options).batch()


def test_a_batch_is_committed_once(lakehouse: Lakehouse) -> None:
    lakehouse.create()
    query = Query(lakehouse)
    assert load(query, 0, 3, WriteId("spark:a", 0))
    assert not load(query, 0, 3, WriteId("spark:a", 0))
    assert load(query, 0, 3, WriteId("spark:b", 0))
    assert load(query, 3, 3, WriteId("spark:a", 1))
    assert sorted(lakehouse.read_numbers()) == [0, 0, 1, 1, 2, 2, 3, 4, 5]


@pytest.mark.slow
@pytest.mark.parametrize("migrated", [True, False])
def test_rows_that_another_engine_replaces_end_a_stream(
    lakehouse: Lakehouse, migrated: bool
) -> None:
    lakehouse.create()
    query = Query(lakehouse)
    lakehouse.put(numbers(0, 10))
    assert query.all() == [list(range(10))]
    if migrated:
        lakehouse.migrate()
        assert query.all() == []
        native = load_current_native_table(lakehouse.table())
        assert native is not None
        replaced = [file.path for file in list_native_files(native)]
    else:
        publisher = SnapshotPublisher(
            lakehouse.database,
            lakehouse.keyring,
            PublicationSettings(lakehouse.stage.url, lakehouse.warehouse.url),
            lakehouse.clock,
        )
        publisher.publish(lakehouse.table().table_id)
        with lakehouse.database.reading() as connection:
            fresh = list_fresh_files(connection, lakehouse.table().table_id)
        replaced = [lakehouse.warehouse.to_address(file.path) for file in fresh]
    target = resolve_write_target(query.connection, NUMBERS, ["n"], "test")
    batch = pa.record_batch([pa.array(range(1, 10))], names=["n"])
    written = write_native_files(target.plan, [batch])
    opened = begin_load(
        lakehouse.database,
        LoadRequest(NUMBERS, "test", "ACCOUNTADMIN", load_id=target.plan.load_id),
        warehouse_url=lakehouse.warehouse.url,
        clock=lakehouse.clock,
    )
    removed = frozenset(map(lakehouse.warehouse.to_path, replaced))
    totals = LoadTotals(1, 9, 0, 1)
    result = LoadResult(written.files, (), totals, removed=removed)
    commit_load(lakehouse.database, opened, result, clock=lakehouse.clock)
    assert lakehouse.read().num_rows == 9
    lakehouse.put(numbers(20, 5))
    with pytest.raises(LoadRefused, match="another engine has deleted or changed"):
        query.all()
    again = Query(lakehouse, startingOffset="earliest")
    assert sorted(row for each in again.all() for row in each) == [*range(1, 10), *range(20, 25)]

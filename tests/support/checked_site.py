"""Data folder with every kind of data that `snowmelt check` verifies."""

from __future__ import annotations

import datetime as dt
import random
from pathlib import Path

from fixtures.chunks import COLUMNS, NUMBERS, USER, Lakehouse, numbers
from snowmelt.catalog.objects.tables import create_table, find_table
from snowmelt.catalog.statements.executor import execute_statement
from snowmelt.catalog.streaming.channels import drop_channel, find_channel
from snowmelt.catalog.streaming.commit_rules import ChannelAdvance, ChunkOffer
from snowmelt.catalog.streaming.registration import register_chunks
from snowmelt.clock import ManualClock
from snowmelt.integrity.checker import CheckSettings, IntegrityChecker
from snowmelt.integrity.findings import Finding
from snowmelt.schema.types import TableName
from snowmelt.table import iceberg
from snowmelt.table.compaction import compact
from snowmelt.table.file_replacement_run import MaintenanceSettings
from support.numbered_loads import load_numbers

SORTED = TableName("DEMO", "PUBLIC", "SORTED")
_CHANNELS = ("A", "B", "C")


def build_site(folder: Path, seed: int) -> None:
    """Fill a folder: channels, rejects, migrations, a load, compaction, garbage collection, chunks."""
    chooser = random.Random(seed)
    house = Lakehouse(folder, ManualClock(dt.datetime.now(dt.UTC)))
    house.create()
    with house.database.writing() as connection:
        create_table(
            connection,
            SORTED,
            COLUMNS,
            cluster_by=("WORD",),
            owner="ACCOUNTADMIN",
            now=house.clock.now(),
        )
    row = 0
    for part in range(6):
        for _ in range(chooser.randrange(4, 9)):
            count = chooser.randrange(8, 30)
            channel = chooser.choice(_CHANNELS)
            rows = numbers(row, count)
            row += count
            if chooser.random() < 0.2:
                house.put_all([(NUMBERS, rows), (SORTED, rows)], channel=channel, token=str(row))
            else:
                house.put(rows, channel=channel, token=str(row))
            if part == 5:
                house.put(numbers(row, 5), channel="A", token=str(row + 5))
                row += 5
            house.clock.advance(1)
        row += 1
        # The last commit of one channel has a chunk. The last commits of the others have no rows.
        for number, channel in enumerate(_CHANNELS if part < 5 else _CHANNELS[1:]):
            commit_rejected_rows(house, channel, str(10 * row + number))
        if part == 5:
            break
        house.migrate()
        house.migrate(SORTED)
        if part in {1, 3}:
            load_numbers(house, 100_000 + part * 100, 20, f"part{part}.csv")
        if part == 2:
            house.put(numbers(row, 10), channel="GONE", token="gone")
            row += 10
            house.migrate()
            drop_open_channel(house, "GONE")
        if part == 3:
            compact(
                house.database,
                NUMBERS,
                MaintenanceSettings(house.warehouse.url, min_files=2),
                clock=house.clock,
            )
            house.clock.advance(7200)
            house.collect(3600.0)
            execute_statement(
                house.database,
                "ALTER TABLE demo.public.numbers ADD COLUMN more NUMBER",
                clock=house.clock,
            )
            execute_statement(
                house.database,
                "ALTER TABLE demo.public.numbers DROP COLUMN more",
                clock=house.clock,
            )
    house.is_damaged = True
    house.close()


def drop_open_channel(house: Lakehouse, name: str) -> None:
    with house.database.writing() as connection:
        table = find_table(connection, NUMBERS)
        drop_channel(connection, table, name, user=USER, now=house.clock.now())
    house.reopen_channels()


def commit_rejected_rows(house: Lakehouse, channel: str, token: str) -> None:
    """Commit an insert call of a channel whose rows are all rejected."""
    now = house.clock.now()
    with house.database.writing() as connection:
        table = find_table(connection, NUMBERS)
        found = find_channel(connection, table, channel)
        if found is None or house._prefix is None:
            return
        key = house.keyring.get_or_create_data_key(connection, table, USER)
        advance = ChannelAdvance(
            channel, found.client_sequencer, found.row_sequencer + 1, None, token
        )
        offer = ChunkOffer(
            path=f"rejected-{channel}-{token}",
            blob_md5="",
            prefix=house._prefix,
            user=USER,
            role="ACCOUNTADMIN",
            table=NUMBERS,
            offset=0,
            length=0,
            md5="",
            key_id=key.key_id,
            rows=0,
            schema_version=table.schema.version,
            statistics=b"",
            first_insert_ms=None,
            last_insert_ms=None,
            channels=(advance,),
        )
        [verdicts] = register_chunks(connection, [offer], now=now)
        assert [verdict.code for verdict in verdicts] == [0], verdicts


def check_site(folder: Path, *, deep: bool) -> list[Finding]:
    """Check a folder without the caches of this process. Return the findings."""
    for cached in (iceberg.load_native_table, iceberg._read_manifest_list, iceberg._read_manifest):
        cached.cache_clear()
    house = Lakehouse(folder)
    house.is_damaged = True
    try:
        checker = IntegrityChecker(
            house.database,
            house.keyring,
            house.stage,
            house.warehouse,
            house.clock,
            settings=CheckSettings(deep=deep),
        )
        found = [each for report in checker.check_all() for each in report.findings]
        return found + checker.check_stage()
    finally:
        house.close()

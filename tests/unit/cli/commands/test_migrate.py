"""`snowmelt migrate`."""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from snowmelt.catalog.db.database import open_and_upgrade_database
from snowmelt.catalog.jobs import leases
from snowmelt.catalog.objects.tables import find_table
from snowmelt.embedded import EmbeddedService
from snowmelt.schema.types import TableName
from snowmelt.table.migration import migration_lease_name

if TYPE_CHECKING:
    from pathlib import Path

    from unit.cli.conftest import Finished

pytestmark = pytest.mark.slow

FIRST = TableName("DEMO", "PUBLIC", "FIRST")


@pytest.fixture
def streamed(snowmelt: Callable[..., Finished], tmp_path: Path) -> Path:
    """A data folder with three committed rows in `first`, two in `second`, none in `empty`."""
    tables = "".join(f"CREATE TABLE demo.public.{t} (a INT);" for t in ("first", "second", "empty"))
    assert snowmelt("sql", f"CREATE DATABASE demo; {tables}").returncode == 0
    folder = tmp_path / "snowmelt-data"
    with EmbeddedService(folder) as service, service.client() as client:
        for table, rows in (("first", 3), ("second", 2)):
            channel = client.open_channel("c", table=f"demo.public.{table}")
            channel.insert_rows([{"a": n} for n in range(rows)], offset_token="end")
            channel.wait_for_commit("end")
    return folder


def positions(folder: Path) -> dict[str, tuple[int, int]]:
    """Last and migrated sequence of each table."""
    from snowmelt.catalog.objects.tables import list_tables

    with (
        contextlib.closing(open_and_upgrade_database(str(folder / "catalog.db"))) as database,
        database.reading() as connection,
    ):
        found = list_tables(connection)
    return {table.name.table: (table.last_seq, table.migrated_seq) for table in found}


def test_everything_committed_is_migrated_a_line_each(
    snowmelt: Callable[..., Finished], streamed: Path
) -> None:
    ended = snowmelt("migrate", "--engine", "local")
    assert (ended.returncode, ended.stderr) == (0, "")
    first, second = sorted(ended.stdout.splitlines())
    assert first.startswith("DEMO.PUBLIC.FIRST: 3 rows of chunks 1 to 1 in 1 file, ")
    assert second.startswith("DEMO.PUBLIC.SECOND: 2 rows of chunks 1 to 1 in 1 file, ")
    assert positions(streamed) == {"FIRST": (1, 1), "SECOND": (1, 1), "EMPTY": (0, 0)}
    again = snowmelt("migrate", "--engine", "local")
    assert (again.returncode, again.stdout) == (0, "")


def test_named_tables_alone_are_migrated(snowmelt: Callable[..., Finished], streamed: Path) -> None:
    assert snowmelt("migrate", "demo.public.second", "--engine", "local").returncode == 0
    assert positions(streamed) == {"FIRST": (1, 0), "SECOND": (1, 1), "EMPTY": (0, 0)}
    refused = snowmelt("migrate", "demo.public.third", "--engine", "local")
    assert refused.returncode == 1
    assert "DEMO.PUBLIC.THIRD does not exist" in refused.stderr


def test_another_migrator_is_waited_for(snowmelt: Callable[..., Finished], streamed: Path) -> None:
    with (
        contextlib.closing(open_and_upgrade_database(str(streamed / "catalog.db"))) as database,
        database.writing() as connection,
    ):
        name = migration_lease_name(find_table(connection, FIRST))
        now = dt.datetime.now(dt.UTC)
        assert leases.acquire_lease(connection, name, "another", ttl_s=15.0, now=now)
    ended = snowmelt("migrate", "demo.public.first", "--engine", "local")
    waited, migrated = ended.stdout.splitlines()
    assert waited == "DEMO.PUBLIC.FIRST: another migrator is working on the table; waiting for it"
    assert migrated.startswith("DEMO.PUBLIC.FIRST: 3 rows")


def test_the_loop_migrates_what_is_due(streamed: Path) -> None:
    environment = os.environ | {
        "SNOWMELT_MIGRATE_INTERVAL_S": "0.2",
        "SNOWMELT_MIGRATE_MAX_AGE_S": "0",
    }
    command = [sys.executable, "-m", "snowmelt", "migrate", "--loop", "--engine", "local"]
    with subprocess.Popen(
        command, cwd=streamed.parent, env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "Checking for chunks to migrate every 0.2 s\n"
        lines = sorted([process.stdout.readline() for _ in range(2)])
        process.send_signal(signal.SIGINT)
        # The signal itself where it came while text was executed: see test_main.
        assert process.wait(200) in (130, -signal.SIGINT)
    assert [line.partition(": ")[0] for line in lines] == [
        "DEMO.PUBLIC.FIRST",
        "DEMO.PUBLIC.SECOND",
    ]


def test_the_loop_leaves_small_and_young_backlogs(streamed: Path) -> None:
    environment = os.environ | {"SNOWMELT_MIGRATE_INTERVAL_S": "0.1"}
    command = [sys.executable, "-m", "snowmelt", "migrate", "--loop", "--engine", "local"]
    environment["SNOWMELT_MIGRATE_MAX_AGE_S"] = "3600"
    with subprocess.Popen(
        command, cwd=streamed.parent, env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(2)
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=200)[0] == ""
    assert positions(streamed)["FIRST"] == (1, 0)


@pytest.mark.spark
def test_spark_migrates_too(snowmelt_process: Callable[..., Finished], streamed: Path) -> None:
    ended = snowmelt_process("migrate", "demo.public.first", "--engine", "spark")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.startswith("DEMO.PUBLIC.FIRST: 3 rows of chunks 1 to 1 in 1 file, ")
    assert positions(streamed)["FIRST"] == (1, 1)

"""Replay inserts the rows of an error table once, despite kills and repeated runs."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fixtures.service import KeyPair, ServiceProcess
from snowmelt.catalog.db.database import open_and_upgrade_database
from snowmelt.catalog.security.encryption_keys import KeyRing, load_master_key
from snowmelt.schema.types import TableName
from snowmelt.storage.store_factory import open_store
from snowmelt.table.table_reader import read_table
from support import forked_processes
from support.sdk_table import T

if TYPE_CHECKING:
    from subprocess import CompletedProcess

ERRORS = "sdk.public.replayed"


@pytest.fixture
def refused(service: ServiceProcess, connect: Any) -> None:
    """Three rejected rows: one lacks a column that is added later, one is too long, one is invalid."""
    service.sql(
        f"DROP TABLE IF EXISTS {ERRORS}",
        "CREATE OR REPLACE TABLE sdk.public.t (id NUMBER(3,0) NOT NULL, name VARCHAR(4))"
        f" ERROR_TABLE = {ERRORS}",
        "GRANT INSERT ON TABLE sdk.public.t TO ROLE loading",
    )
    with connect().open_channel("c", table=T, on_error="continue") as channel:
        bad = [{"id": 1, "gate": "A"}, {"id": 2, "name": "long one"}, {"id": "x"}]
        assert len(channel.insert_rows([{"id": 0}, *bad], "3").errors) == 3


@pytest.fixture
def replay(
    service: ServiceProcess, key_pair: KeyPair, tmp_path: Path
) -> Callable[..., CompletedProcess[str]]:
    key = tmp_path / "key.pem"
    key.write_text(key_pair.private_pem)

    def run(*more: str, killed_at: str | None = None) -> CompletedProcess[str]:
        faults = {} if killed_at is None else {"SNOWMELT_FAULT": f"{killed_at}=kill"}
        return forked_processes.run(
            [
                sys.executable, "-m", "snowmelt", "--data-dir", str(service.data_dir), "replay", T,
                "--url", service.url, "--user", "loader", "--private-key", str(key), *more,
            ],
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
            env=os.environ | faults,
        )  # fmt: skip

    return run


def stored(service: ServiceProcess, *columns: str) -> list[tuple[object, ...]]:
    settings = service.settings
    with contextlib.closing(open_and_upgrade_database(settings.catalog_url)) as catalog:
        table = read_table(
            catalog,
            KeyRing(load_master_key(settings.keys_dir)),
            open_store(settings.stage_url),
            TableName("SDK", "PUBLIC", "T"),
            list(columns),
        )
    return sorted(zip(*(column.to_pylist() for column in table.columns), strict=True), key=str)


@pytest.mark.usefixtures("refused")
def test_rows_go_in_once_the_table_takes_them(
    service: ServiceProcess, replay: Callable[..., CompletedProcess[str]]
) -> None:
    looked = replay("--dry-run")
    assert looked.stdout.startswith("0 rows would be inserted, 3 rejected again:\n"), looked
    assert looked.returncode == 2
    service.sql("ALTER TABLE sdk.public.t ADD COLUMN gate VARCHAR")
    told = replay()
    assert told.stdout.startswith("1 row inserted, 2 rejected again:\n"), told
    assert "  1 × The given row cannot be converted" in told.stdout
    assert "rowIndex" not in told.stdout
    service.sql("ALTER TABLE sdk.public.t ALTER name SET DATA TYPE VARCHAR(20)")
    told = replay("--set", "id=7", "--since", "2020-01-01")
    assert told.stdout == "2 rows inserted, 1 inserted before.\n", told
    assert told.returncode == 0
    assert replay().stdout == "0 rows inserted, 3 inserted before.\n"
    assert stored(service, "ID", "GATE", "NAME") == [
        (0, None, None), (1, "A", None), (7, None, "long one"), (7, None, None),
    ]  # fmt: skip


def test_rows_of_the_sdk_with_local_times_need_their_time_zone(
    service: ServiceProcess, connect: Any, replay: Callable[..., CompletedProcess[str]]
) -> None:
    service.sql(
        f"DROP TABLE IF EXISTS {ERRORS}",
        "CREATE OR REPLACE TABLE sdk.public.t (id NUMBER(1,0), at TIMESTAMP_LTZ(0))"
        f" ERROR_TABLE = {ERRORS}",
        "GRANT INSERT ON TABLE sdk.public.t TO ROLE loading",
    )
    with connect().open_channel("c", table=T, on_error="continue") as channel:
        local, zoned = "2026-07-01T00:00:00", "2026-07-01T00:00:00Z"
        rows = [{"id": 1, "at": local}, {"id": 20, "at": local}, {"id": 30, "at": zoned}]
        assert len(channel.insert_rows(rows, "1").errors) == 2
    service.sql("ALTER TABLE sdk.public.t ALTER id SET DATA TYPE NUMBER(2,0)")
    told = replay()
    assert told.stdout.startswith("1 row inserted, 1 rejected again:\n  1 × AT: the time has no")
    assert replay("--time-zone", "America/Los_Angeles").returncode == 0
    (_, first), (_, second), (_, third) = stored(service, "ID", "AT")
    assert first == second != third


@pytest.mark.usefixtures("refused")
@pytest.mark.parametrize("step", ["replay.marked", "replay.inserted"])
def test_a_replay_that_is_killed_is_taken_up(
    service: ServiceProcess, replay: Callable[..., CompletedProcess[str]], step: str
) -> None:
    service.sql("ALTER TABLE sdk.public.t ADD COLUMN gate VARCHAR")
    assert replay(killed_at=step).returncode < 0
    went_in = {"replay.marked": "1 row inserted", "replay.inserted": "0 rows inserted, 1 inserted"}
    again = replay()
    assert again.stdout.startswith(went_in[step]), again
    assert [row for row in stored(service, "ID", "GATE") if row[1]] == [(1, "A")]


def test_a_table_without_an_error_table_is_told(
    replay: Callable[..., CompletedProcess[str]],
) -> None:
    told = replay()
    assert (told.returncode, told.stdout) == (1, "")
    assert "has no error table" in told.stderr
    assert "Expected a time" in replay("--since", "yesterday").stderr

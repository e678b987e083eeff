"""`snowmelt doctor`."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from snowmelt.catalog.db.database import open_and_upgrade_database
from snowmelt.catalog.objects.published_snapshots import record_demand, set_stalled_reason
from snowmelt.catalog.objects.tables import find_table
from snowmelt.cli.commands.doctor import CheckStatus, check_clock_skew, check_storage_locations
from snowmelt.clock import ManualClock, SystemClock
from snowmelt.config import Settings
from snowmelt.embedded import EmbeddedService
from snowmelt.schema.types import TableName
from snowmelt.table.migration import MigrationSettings, migrate_table

if TYPE_CHECKING:
    from unit.cli.conftest import Finished


def lines(output: str) -> dict[str, str]:
    """What was checked, and how it ended."""
    return {line.split()[1]: line.split()[0] for line in output.splitlines()}


def test_doctor_finds_nothing_wrong_before_the_first_start(
    snowmelt: Callable[..., Finished], tmp_path: Path
) -> None:
    ended = snowmelt("doctor", port="1")
    assert ended.returncode == 0, ended.stdout
    found = lines(ended.stdout)
    assert found["versions"] == found["java"] == found["data"] == "ok"
    assert found["catalog"] == found["keys"] == found["service"] == "note"
    assert not (tmp_path / "snowmelt-data").exists()


@pytest.mark.slow
def test_doctor_counts_what_is_in_the_catalog(snowmelt: Callable[..., Finished]) -> None:
    snowmelt("sql", "CREATE DATABASE demo; CREATE TABLE demo.public.t (a INT)")
    told = snowmelt("doctor").stdout
    assert "ok     contents        sqlite, 1 table, 0 channels\n" in told
    assert "ok     catalog         reachable, version 0" in told


def test_doctor_finds_what_is_wrong_and_goes_on(
    snowmelt: Callable[..., Finished], tmp_path: Path
) -> None:
    keys = tmp_path / "snowmelt-data" / "keys"
    keys.mkdir(parents=True)
    keys.chmod(0o755)
    (tmp_path / "snowmelt-data" / "catalog.db").write_text("not a database" * 100)
    ended = snowmelt("doctor")
    assert ended.returncode == 1
    assert lines(ended.stdout)["keys"] == lines(ended.stdout)["catalog"] == "wrong"
    assert "service" in lines(ended.stdout)


@pytest.mark.slow
def test_doctor_names_chunks_that_were_set_aside(
    snowmelt: Callable[..., Finished], tmp_path: Path
) -> None:
    with EmbeddedService(tmp_path / "snowmelt-data") as embedded, embedded.client() as client:
        embedded.sql("CREATE DATABASE demo")
        embedded.sql("CREATE TABLE demo.public.t (a INT)")
        with client.open_channel("c", table="demo.public.t") as channel:
            channel.insert_rows([{"a": 1}, {"a": 2}])
        (blob,) = (tmp_path / "snowmelt-data" / "stage").rglob("*.bdec")
        whole = blob.read_bytes()
        blob.write_bytes(bytes([whole[0] ^ 1]) + whole[1:])
        service, settings = embedded.service, embedded.service.settings
        migrate_table(
            service.database,
            service.keyring,
            TableName("DEMO", "PUBLIC", "T"),
            MigrationSettings(settings.stage_url, settings.warehouse_url),
        )
    ended = snowmelt("doctor")
    assert ended.returncode == 1
    start = "wrong  chunk           1 of DEMO.PUBLIC.T (2 rows) cannot be read"
    (line,) = (line for line in ended.stdout.splitlines() if line.startswith(start))
    assert blob.name in line


def test_doctor_names_tables_whose_newest_rows_engines_cannot_see(
    snowmelt: Callable[..., Finished], tmp_path: Path
) -> None:
    snowmelt("sql", "CREATE DATABASE demo; CREATE TABLE demo.public.t (a INT)")
    database = open_and_upgrade_database(f"sqlite:///{tmp_path}/snowmelt-data/catalog.db")
    with contextlib.closing(database), database.writing() as connection:
        table = find_table(connection, TableName("DEMO", "PUBLIC", "T"))
        now = dt.datetime.now(dt.UTC)
        record_demand(connection, table.table_id, native_only=False, now=now)
        set_stalled_reason(connection, table.table_id, "Blob b is damaged.", native_only=False)
    ended = snowmelt("doctor")
    assert ended.returncode == 1
    assert "engines cannot see the newest rows of DEMO.PUBLIC.T: Blob b is damaged." in ended.stdout


def test_each_check_is_an_object_where_json_is_asked_for(snowmelt: Callable[..., Finished]) -> None:
    ended = snowmelt("doctor", "--format", "json", port="1")
    found = [json.loads(line) for line in ended.stdout.splitlines()]
    assert {"finding", "what", "detail"} == set.intersection(*map(set, found))
    assert {"versions", "java", "settings", "stage", "catalog"} <= {each["what"] for each in found}


def test_a_setting_that_does_not_fit_is_a_finding(snowmelt: Callable[..., Finished]) -> None:
    ended = snowmelt("doctor", select_dialect="oracle")
    assert ended.returncode == 1
    assert lines(ended.stdout)["settings"] == "wrong"
    assert "expected aws, ceph or ceph-2020" in ended.stdout


def test_a_variable_that_is_no_setting_is_told_with_the_one_meant(
    snowmelt: Callable[..., Finished],
) -> None:
    ended = snowmelt("doctor", stage_ulr="s3://b", port="1")
    assert ended.returncode == 0
    assert (
        "Unknown setting SNOWMELT_STAGE_ULR in the environment, ignored. "
        "Did you mean SNOWMELT_STAGE_URL?" in ended.stdout
    )


def test_stores_are_written_and_read_and_left_as_they_were(
    snowmelt: Callable[..., Finished], tmp_path: Path
) -> None:
    for name in ("stage", "warehouse"):
        (tmp_path / "snowmelt-data" / name).mkdir(parents=True)
    told = snowmelt("doctor", port="1").stdout
    assert lines(told)["stage"] == lines(told)["warehouse"] == "ok"
    assert told.count("written and read") == 2
    files = [path for path in (tmp_path / "snowmelt-data").rglob("*") if path.is_file()]
    assert files == []


def test_a_place_that_cannot_be_written_is_a_finding(tmp_path: Path) -> None:
    stage = tmp_path / "data" / "stage"
    stage.parent.mkdir()
    stage.write_text("a file, not a folder")
    found = check_storage_locations(Settings.load(tmp_path / "data"), SystemClock())
    (check,) = (check for check in found if check.what == "stage")
    assert check.finding is CheckStatus.WRONG
    assert "is a file, not a folder" in check.detail


def test_what_a_service_would_not_start_with_is_found_before(
    snowmelt: Callable[..., Finished], tmp_path: Path
) -> None:
    ended = snowmelt(
        "doctor",
        host="0.0.0.0",
        s3_port="0",
        metrics_token_file="nowhere",
        stage_url="ftp://elsewhere/stage",
        warehouse_url="az://container/path",
        catalog_url=str(tmp_path / "no.db"),
        foo="1",
    )
    assert ended.returncode == 1
    for told in (
        "Unknown setting SNOWMELT_FOO in the environment, ignored.\n",
        "Setting s3_port: clients upload to the S3 endpoint",
        "Setting metrics_token_file: nowhere cannot be read",
        "Give a folder, or an address that begins with s3://",
        "Set AZURE_STORAGE_ACCOUNT_NAME",
        "note   tls             clients reach 0.0.0.0 without TLS",
        "note   catalog         does not exist yet",
    ):
        assert told in ended.stdout
    assert not (tmp_path / "no.db").exists()


@pytest.mark.slow
def test_a_catalog_of_a_newer_snowmelt_is_a_finding_and_an_older_one_stays_as_it_is(
    snowmelt: Callable[..., Finished], tmp_path: Path
) -> None:
    snowmelt("sql", "CREATE DATABASE demo")
    catalog = tmp_path / "snowmelt-data" / "catalog.db"
    for version, finding, text in (
        ("9999", "wrong", "install the release that the other services run"),
        ("0001", "note", "the next `snowmelt serve` upgrades the catalog to"),
    ):
        with sqlite3.connect(catalog) as connection:
            connection.execute("UPDATE alembic_version SET version_num = ?", [version])
        connection.close()
        told = snowmelt("doctor", port="1").stdout
        assert lines(told)["catalog"] == finding
        assert text in told


@pytest.mark.parametrize(("days", "finding"), [(0, "ok"), (390, "note"), (400, "wrong")])
def test_a_certificate_is_told_of_before_it_ends(
    snowmelt: Callable[..., Finished], tmp_path: Path, days: int, finding: str
) -> None:
    assert snowmelt("cert", "--out", "certs").returncode == 0
    certs = tmp_path / "certs"
    settings = Settings.load(
        tmp_path, tls_cert=str(certs / "server.pem"), tls_key=str(certs / "server.key")
    )
    now = dt.datetime.now(dt.UTC) + dt.timedelta(days=days)
    (check,) = (
        check
        for check in check_storage_locations(settings, ManualClock(now))
        if check.what == "tls"
    )
    assert check.finding == finding, check.detail


def test_clocks_that_differ_are_a_finding() -> None:
    assert check_clock_skew("t", 1.0, "it").finding is CheckStatus.FINE
    assert "30 s behind" in check_clock_skew("t", -30.0, "it").detail
    assert check_clock_skew("t", 30.0, "it").finding is CheckStatus.WRONG

"""`snowmelt doctor`."""

from __future__ import annotations

from snowmelt.embedded import Embedded
from snowmelt.schema.types import TableName
from snowmelt.table.migration import MigrationSettings, migrate_locally


def lines(output: str) -> dict[str, str]:
    """What was checked, and how it ended."""
    return {line.split()[1]: line.split()[0] for line in output.splitlines()}


def test_doctor_finds_nothing_wrong_before_the_first_start(snowmelt, tmp_path):
    ended = snowmelt("doctor", port="1")
    assert ended.returncode == 0, ended.stdout
    found = lines(ended.stdout)
    assert found["versions"] == found["java"] == found["data"] == "ok"
    assert found["catalog"] == found["keys"] == found["service"] == "note"
    assert not (tmp_path / "snowmelt-data").exists()


def test_doctor_counts_what_is_in_the_catalog(snowmelt):
    snowmelt("sql", "CREATE DATABASE demo; CREATE TABLE demo.public.t (a INT)")
    assert "ok     catalog     sqlite, 1 tables, 0 channels\n" in snowmelt("doctor").stdout


def test_doctor_finds_what_is_wrong_and_goes_on(snowmelt, tmp_path):
    keys = tmp_path / "snowmelt-data" / "keys"
    keys.mkdir(parents=True)
    keys.chmod(0o755)
    (tmp_path / "snowmelt-data" / "catalog.db").write_text("not a database" * 100)
    ended = snowmelt("doctor")
    assert ended.returncode == 1
    assert lines(ended.stdout)["keys"] == lines(ended.stdout)["catalog"] == "wrong"
    assert "service" in lines(ended.stdout)


def test_doctor_names_chunks_that_were_set_aside(snowmelt, tmp_path):
    with Embedded(tmp_path / "snowmelt-data") as embedded, embedded.client() as client:
        embedded.sql("CREATE DATABASE demo")
        embedded.sql("CREATE TABLE demo.public.t (a INT)")
        with client.open_channel("c", table="demo.public.t") as channel:
            channel.insert_rows([{"a": 1}, {"a": 2}])
        (blob,) = (tmp_path / "snowmelt-data" / "stage").rglob("*.bdec")
        whole = blob.read_bytes()
        blob.write_bytes(bytes([whole[0] ^ 1]) + whole[1:])
        service, settings = embedded.service, embedded.service.settings
        migrate_locally(
            service.database,
            service.keyring,
            TableName("DEMO", "PUBLIC", "T"),
            MigrationSettings(settings.stage_url, settings.warehouse_url),
        )
    ended = snowmelt("doctor")
    assert ended.returncode == 1
    start = "wrong  chunk       1 of DEMO.PUBLIC.T (2 rows) cannot be read"
    (line,) = (line for line in ended.stdout.splitlines() if line.startswith(start))
    assert blob.name in line

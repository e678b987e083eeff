from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import cast

import psycopg
import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from snowmelt.catalog import model
from snowmelt.catalog.db.database import (
    CatalogVersion,
    Database,
    open_and_upgrade_database,
    read_catalog_version,
    read_server_time,
)
from snowmelt.clock import SystemClock
from snowmelt.errors import CatalogBusy, CatalogUnavailable, ConfigurationError, UnknownOutcome


@pytest.fixture
def counter(database: Database) -> None:
    """One row with a number."""
    with database.writing() as connection:
        connection.execute(sa.text("CREATE TABLE counter (n INTEGER NOT NULL)"))
        connection.execute(sa.text("INSERT INTO counter VALUES (0)"))


def _read(connection: sa.Connection) -> int:
    return cast("int", connection.execute(sa.text("SELECT n FROM counter")).scalar_one())


def _lock(database: Database) -> str:
    return " FOR UPDATE" if database.dialect == "postgresql" else ""


def test_no_update_is_lost_between_two_services_that_read_then_write(
    open_catalog: Callable[..., Database], counter: None
) -> None:
    def work(database: Database) -> None:
        for _ in range(25):
            with database.writing() as connection:
                query = sa.text("SELECT n FROM counter" + _lock(database))
                n = connection.execute(query).scalar_one()
                connection.execute(sa.text("UPDATE counter SET n = :n"), {"n": n + 1})

    databases = [open_catalog(), open_catalog()]
    threads = [threading.Thread(target=work, args=(databases[i % 2],)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with databases[0].reading() as connection:
        assert _read(connection) == 100


def test_a_reader_sees_one_state_while_others_commit(database: Database, counter: None) -> None:
    with database.reading() as reader:
        before = _read(reader)
        with database.writing() as writer:
            writer.execute(sa.text("UPDATE counter SET n = 7"))
        assert _read(reader) == before == 0
    with database.reading() as reader:
        assert _read(reader) == 7


def test_a_reader_cannot_write(database: Database, counter: None) -> None:
    with pytest.raises((sa.exc.DBAPIError, CatalogUnavailable)), database.reading() as connection:
        connection.execute(sa.text("UPDATE counter SET n = 1"))


def test_a_block_that_raises_leaves_nothing(database: Database, counter: None) -> None:
    def fail() -> None:
        with database.writing() as connection:
            connection.execute(sa.text("UPDATE counter SET n = 1"))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    with database.reading() as connection:
        assert _read(connection) == 0


def test_a_lock_held_by_another_process_ends_in_a_clear_error(
    open_catalog: Callable[..., Database], counter: None
) -> None:
    holder, waiter = open_catalog(), open_catalog(busy_timeout_s=0.1)
    with holder.writing() as connection:
        connection.execute(sa.text("UPDATE counter SET n = 1"))
        with (
            pytest.raises(CatalogBusy, match=r"another transaction has held its lock for 0\.1 s"),
            waiter.writing() as other,
        ):
            other.execute(sa.text("UPDATE counter SET n = 2"))
    with waiter.writing() as other:
        other.execute(sa.text("UPDATE counter SET n = n + 2"))
    with holder.reading() as connection:
        assert _read(connection) == 3


def test_a_commit_without_an_answer_has_an_unknown_outcome(
    database: Database, counter: None
) -> None:
    """The connection is cut between the last statement and the COMMIT."""

    def lose_the_answer() -> None:
        with database.writing() as connection:
            connection.execute(sa.text("UPDATE counter SET n = 1"))
            if database.dialect == "postgresql":
                _cut(database.url, connection)
            else:
                assert connection.connection.driver_connection is not None
                connection.connection.driver_connection.close()

    with pytest.raises(UnknownOutcome):
        lose_the_answer()
    with database.writing() as connection:
        assert _read(connection) == 0


def _cut(url: str, connection: sa.Connection) -> None:
    pid = connection.execute(sa.text("SELECT pg_backend_pid()")).scalar_one()
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as killer:
        killer.execute("SELECT pg_terminate_backend(%s, 5000)", [pid])


def test_a_new_catalog_is_what_the_model_says(database: Database) -> None:
    with database.reading() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, model.metadata) == []


def test_a_catalog_of_the_first_version_gets_what_came_later(
    open_catalog: Callable[..., Database], catalog_url: str
) -> None:
    later = [model.metadata.tables[name] for name in _LATER_TABLES]
    with open_catalog().writing() as connection:
        model.metadata.drop_all(connection, tables=later)
        connection.execute(sa.text("DROP INDEX ix_sightings_tombstoned_at"))
        for column in _LATER_COLUMNS.split():
            table, _, name = column.partition(".")
            connection.execute(sa.text(f"ALTER TABLE {table} DROP COLUMN {name}"))
        connection.execute(sa.text("UPDATE alembic_version SET version_num = '0001'"))
    with contextlib.closing(open_and_upgrade_database(catalog_url)) as database:
        with database.reading() as connection:
            context = MigrationContext.configure(connection, opts={"compare_type": True})
            assert compare_metadata(context, model.metadata) == []
            assert connection.execute(sa.select(sa.func.count(model.roles.c.name))).scalar() == 2
        assert (
            read_catalog_version(database.url).current == read_catalog_version(database.url).newest
        )


_LATER_TABLES = (
    *("access_keys", "buckets", "dropped_files", "objects", "prefix_grants", "upload_parts"),
    *("uploads", "libraries", "load_functions", "loads", "loaded_files", "stream_offsets"),
    *("api_integrations", "external_functions", "translators", "maintenance_runs", "services"),
    *("security_integrations", "pipes", "row_channels", "row_requests", "row_clients"),
    *("future_grants", "file_pipes", "pipe_files", "pipe_notices"),
)
_LATER_COLUMNS = """
    deployment.master_key_check tables.schema_evolution tables.purged_at tables.error_table_id
    databases.retention_days databases.kept_until databases.comment
    schemas.retention_days schemas.kept_until schemas.comment schemas.dropped_with_parent
    tables.retention_days tables.kept_until tables.comment tables.dropped_with_parent
"""


def test_opening_again_changes_nothing(open_catalog: Callable[..., Database]) -> None:
    deployments = set()
    for _ in range(2):
        with open_catalog().reading() as connection:
            deployments.add(
                connection.execute(sa.select(model.deployment.c.deployment_id)).scalar_one()
            )
    assert len(deployments) == 1


def test_several_processes_may_open_a_new_catalog_at_once(tmp_path: Path) -> None:
    _open_at_once(*[f"sqlite:///{tmp_path}/new.db"] * 4)


@pytest.mark.postgres
def test_several_processes_may_open_a_new_catalog_at_once_on_postgres(
    empty_postgres_url: str,
) -> None:
    _open_at_once(*[empty_postgres_url] * 4)


def test_several_new_catalogs_may_be_opened_at_once_in_one_process(tmp_path: Path) -> None:
    _open_at_once(*[f"sqlite:///{tmp_path}/new{number}.db" for number in range(4)])


def _open_at_once(*urls: str) -> None:
    failures = []

    def work(url: str) -> None:
        try:
            open_and_upgrade_database(url).close()
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(url,)) for url in urls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_a_catalog_of_a_newer_version_is_refused(
    open_catalog: Callable[..., Database], catalog_url: str
) -> None:
    with open_catalog().writing() as connection:
        connection.execute(sa.text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(ConfigurationError, match="newer"):
        open_and_upgrade_database(catalog_url)


def test_sqlite_without_a_file_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="file"):
        open_and_upgrade_database("sqlite:///:memory:")


def test_a_server_that_is_away_is_a_sentence() -> None:
    with pytest.raises(CatalogUnavailable, match="Catalog unavailable"):
        open_and_upgrade_database("postgresql://nobody@127.0.0.1:9/none", busy_timeout_s=2)


@pytest.mark.postgres
def test_a_commit_is_durable_whatever_the_database_has_as_default(empty_postgres_url: str) -> None:
    with psycopg.connect(empty_postgres_url, autocommit=True) as admin:
        name = admin.info.dbname
        admin.execute(f"ALTER DATABASE {name} SET synchronous_commit = off")
    with contextlib.closing(open_and_upgrade_database(empty_postgres_url)) as database:
        for transaction in (database.reading, database.writing):
            with transaction() as connection:
                shown = connection.execute(sa.text("SHOW synchronous_commit")).scalar_one()
                assert shown == "on"


@pytest.mark.postgres
def test_a_connection_that_has_read_writes_nothing_to_a_closed_database(
    empty_postgres_url: str,
) -> None:
    with contextlib.closing(open_and_upgrade_database(empty_postgres_url)) as database:
        closed = f"{database.url}?options=-c%20default_transaction_read_only%3Don"
    with contextlib.closing(open_and_upgrade_database(closed)) as database:
        with database.reading() as connection:
            assert connection.execute(sa.text("SELECT 1")).scalar_one() == 1
        with (
            pytest.raises(CatalogUnavailable, match="database is read-only"),
            database.writing() as connection,
        ):
            connection.execute(sa.text("CREATE TABLE counter (n INTEGER)"))


def test_an_error_does_not_tell_the_values_of_its_statement(database: Database) -> None:
    insert = sa.text("INSERT INTO nowhere VALUES (:value)")
    with database.writing() as connection, pytest.raises(sa.exc.DBAPIError) as raised:
        connection.execute(insert, {"value": "a column's minimum"})
    assert "minimum" not in str(raised.value)


def test_a_catalog_tells_its_version_and_is_not_changed_by_being_asked(database: Database) -> None:
    with database.writing() as connection:
        newest = connection.execute(sa.text("SELECT version_num FROM alembic_version")).scalar()
        connection.execute(sa.text("UPDATE alembic_version SET version_num = '0001'"))
    assert newest is not None
    assert read_catalog_version(database.url) == CatalogVersion("0001", newest, is_known=True)
    with database.writing() as connection:
        connection.execute(sa.text("UPDATE alembic_version SET version_num = '9999'"))
    assert read_catalog_version(database.url) == CatalogVersion("9999", newest, is_known=False)


def test_a_database_elsewhere_tells_its_time(database: Database) -> None:
    with database.reading() as connection:
        at = read_server_time(connection)
    if database.dialect == "sqlite":
        assert at is None
    else:
        assert at is not None
        assert abs((at - SystemClock().now()).total_seconds()) < 60


_WRITES_WITHOUT_PAUSE = """
import sys
import sqlalchemy as sa
from snowmelt.catalog.db.database import open_and_upgrade_database
database = open_and_upgrade_database(sys.argv[1])
print("ready", flush=True)
for number in range(1_000):
    with database.writing() as connection:
        connection.execute(sa.text("UPDATE counter SET n = n + 1"))
print("done", flush=True)
"""


def test_a_process_that_writes_without_pause_holds_up_no_other_one(
    database: Database, counter: None
) -> None:
    """Counted in transactions, not in seconds."""
    command = [sys.executable, "-c", _WRITES_WITHOUT_PAUSE, database.url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "ready\n"
        seen = []
        for _ in range(20):
            with database.writing() as connection:
                connection.execute(sa.text("UPDATE counter SET n = n + 0"))
                seen.append(_read(connection))
        assert other.stdout.readline() == "done\n"
    assert other.returncode == 0
    with database.reading() as connection:
        assert _read(connection) == 1_000
    assert seen[-1] < 1_000


_ADD_ONE = """
import sys
from snowmelt.catalog.db.database import open_and_upgrade_database
import sqlalchemy as sa
database = open_and_upgrade_database(sys.argv[1])
with database.writing() as connection:
    connection.execute(sa.text("UPDATE counter SET n = n + 1"))
database.close()
"""


@pytest.mark.parametrize("again", ["open", "version"])
def test_opening_a_catalog_again_leaves_the_first_one_in_step(tmp_path: Path, again: str) -> None:
    """Closing any file descriptor of a file drops all locks of the process, also those of SQLite."""
    url = f"sqlite:///{tmp_path}/catalog.db"
    with contextlib.closing(open_and_upgrade_database(url)) as first:
        with first.writing() as connection:
            connection.execute(sa.text("CREATE TABLE counter (n INTEGER NOT NULL)"))
            connection.execute(sa.text("INSERT INTO counter VALUES (0)"))
        if again == "open":
            open_and_upgrade_database(url).close()
        else:
            read_catalog_version(url)
        # Without the locks this process would take itself for the last, and delete the log.
        subprocess.run([sys.executable, "-c", _ADD_ONE, url], check=True)
        with first.reading() as connection:
            assert _read(connection) == 1
        with first.writing() as connection:
            connection.execute(sa.text("UPDATE counter SET n = n + 1"))
        subprocess.run([sys.executable, "-c", _ADD_ONE, url], check=True)
        with first.reading() as connection:
            assert _read(connection) == 3

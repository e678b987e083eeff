"""Catalog database: connections, transactions, schema upgrades, and the server's clock.

SQLite is used through two engines. With the driver's defaults, two SELECTs of one transaction could
see different data, and two writers could both read before either wrote. Here a writer begins with
BEGIN IMMEDIATE on the single write connection, and a reader with BEGIN on read-only connections.
`FairWriterLock` grants the write connection to threads in order of arrival.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import errno
import logging
import os
import secrets
import sqlite3
import stat
import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection, event
from sqlalchemy.pool import QueuePool

from snowmelt.catalog import model
from snowmelt.catalog.db.replication_triggers import READ_ONLY_MESSAGE, refresh_triggers
from snowmelt.clock import Clock, SystemClock
from snowmelt.errors import (
    CatalogBusy,
    CatalogUnavailable,
    ConfigurationError,
    MissingExtra,
    SiteReadOnly,
    SnowmeltError,
    TransactionConflict,
    UnknownOutcome,
)

# SQLSTATEs of PostgreSQL after which the transaction may be retried: serialization failure,
# deadlock, unique violation (the retry finds the row that another transaction inserted), and a wait
# that `lock_timeout` ended.
_CONFLICT_SQLSTATES = frozenset({"40001", "40P01", "23505"})
_LOCK_TIMEOUT_SQLSTATE = "55P03"
# The server is read-only: it is a standby, for example after a failover, or an operator set it so.
_READ_ONLY_SQLSTATE = "25006"
# Operator intervention (57P01 …) and connection exceptions (08…). The server may have committed the
# transaction.
_CONNECTION_LOST_SQLSTATES = ("08", "57P")
# Default of the maximum wait for the locks of other transactions, in seconds.
_BUSY_TIMEOUT_S = 60.0


class Database:
    """The catalog's database; thread-safe. Each `with` block is one transaction."""

    def __init__(self, url: sa.URL, *, busy_timeout_s: float) -> None:
        self._busy_timeout_s = busy_timeout_s
        self._url = url
        self._history: int | None = None
        self._writer_lock = FairWriterLock()
        self._file = (
            _SqliteCatalogFile(Path(url.database or "")) if self.dialect == "sqlite" else None
        )
        if self.dialect == "sqlite":
            self._writer = _create_sqlite_engine(url, busy_timeout_s, for_writing=True)
            self._reader = _create_sqlite_engine(url, busy_timeout_s, for_writing=False)
        else:
            self._writer = _create_postgres_engine(url, busy_timeout_s)
            self._reader = self._writer.execution_options(
                isolation_level="REPEATABLE READ", postgresql_readonly=True
            )

    @property
    def url(self) -> str:
        """URL with the password. It gives administrator rights."""
        return self._url.render_as_string(hide_password=False)

    @property
    def dialect(self) -> str:
        """`sqlite` or `postgresql`."""
        return self._url.get_backend_name()

    def bind_to_history(self) -> None:
        """Reject later writes if the catalog gets the history of another site.

        A process that caches catalog data calls this before its first read. In another history, the
        numbers of keys, tables and channels may refer to other objects.
        """
        with self.reading() as connection:
            self._history = _read_history(connection)

    def has_other_history(self) -> bool:
        """Return True if the catalog's history has changed since `bind_to_history`."""
        with self.reading() as connection:
            return self._history is not None and _read_history(connection) != self._history

    @contextlib.contextmanager
    def reading(self) -> Iterator[sa.Connection]:
        """Open a read-only transaction, in which every statement sees the same state.

        Raises:
            CatalogBusy: If no connection becomes free in time.
            CatalogUnavailable: If the database cannot be reached.
        """
        self._check_file_unchanged()
        with self._translating_errors(), self._reader.connect() as connection:
            yield connection

    @contextlib.contextmanager
    def writing(self, *, urgent: bool = False) -> Iterator[sa.Connection]:
        """Open a write transaction. It commits at the end of the block, and rolls back if the block raises.

        On SQLite, writers run one after another, in order of arrival. On PostgreSQL, they wait for
        row locks only.

        With `urgent`, a SQLite writer waits for at most one other transaction of this process.
        Group commits of rows use it.

        Raises:
            CatalogBusy: If another transaction held a lock for longer than `busy_timeout_s`.
            CatalogUnavailable: If the database cannot be reached, or its history differs from the
                one that this process is bound to. Nothing was written.
            TransactionConflict: If the database rolled the transaction back. The block may be
                retried.
            UnknownOutcome: If the outcome of the COMMIT is unknown.
        """
        with (
            self._holding_writer_lock(urgent=urgent),
            self._translating_errors(),
            self._writer.connect() as connection,
        ):
            self._check_file_unchanged()
            try:
                yield connection
            except sa.exc.DBAPIError as error:
                if _sqlstate(error) == _READ_ONLY_SQLSTATE and READ_ONLY_MESSAGE not in str(error):
                    # The next connection may reach the primary server.
                    connection.invalidate()
                raise
            self._check_history(connection)
            try:
                connection.commit()
            except sa.exc.DBAPIError as error:
                state = _sqlstate(error)
                if state in _CONFLICT_SQLSTATES:
                    raise
                # The state of the connection is unknown: do not use it again.
                connection.invalidate()
                # If the server reported the error, nothing was written.
                if state and not state.startswith(_CONNECTION_LOST_SQLSTATES):
                    raise
                raise UnknownOutcome(
                    "The catalog's COMMIT failed with an unknown outcome "
                    f"({str(error.orig).strip()}). Check the outcome before you repeat it."
                ) from error

    def create_file(self) -> None:
        """Create the SQLite file if it is missing, and store its identity for `check_unchanged`.

        Raises:
            CatalogUnavailable: If the file cannot be created or opened.
        """
        if self._file is not None:
            self._file.create()

    def close(self) -> None:
        """Close all connections."""
        self._reader.dispose()
        self._writer.dispose()

    def _check_history(self, connection: sa.Connection) -> None:
        """Check the history after the writes of a transaction.

        An import of another site's history replaces all rows, so it waits for open transactions
        that have written a row. After its writes, a transaction therefore cannot miss an import.
        """
        if self._history is not None and _read_history(connection) != self._history:
            raise CatalogUnavailable(
                reason="the history of another site has replaced the catalog that this process has cached. "
                "The process restarts by itself. Send the request again"
            )

    def _check_file_unchanged(self) -> None:
        if self._file is not None:
            self._file.check_unchanged()

    @contextlib.contextmanager
    def _holding_writer_lock(self, *, urgent: bool) -> Iterator[None]:
        if self.dialect != "sqlite":
            yield
            return
        if not self._writer_lock.acquire(self._busy_timeout_s, urgent=urgent):
            raise CatalogBusy(seconds=self._busy_timeout_s)
        try:
            yield
        finally:
            self._writer_lock.release()

    @contextlib.contextmanager
    def _translating_errors(self) -> Iterator[None]:
        try:
            yield
        except sa.exc.TimeoutError as error:
            raise CatalogBusy(seconds=self._busy_timeout_s) from error
        except sa.exc.DBAPIError as error:
            mapped = self._translate_error(error)
            if mapped is None:
                raise
            raise mapped from error

    def _translate_error(self, error: sa.exc.DBAPIError) -> SnowmeltError | None:
        state = _sqlstate(error)
        if state in _CONFLICT_SQLSTATES:
            return TransactionConflict()
        sqlite_name = getattr(error.orig, "sqlite_errorname", None) or ""
        if state == _LOCK_TIMEOUT_SQLSTATE or sqlite_name.startswith(
            ("SQLITE_BUSY", "SQLITE_LOCKED")
        ):
            return CatalogBusy(seconds=self._busy_timeout_s)
        if READ_ONLY_MESSAGE in str(error.orig):
            return SiteReadOnly()
        if state == _READ_ONLY_SQLSTATE:
            return CatalogUnavailable(
                reason="the database is read-only. Connect to the primary server, or allow writes"
            )
        if isinstance(error, sa.exc.OperationalError):
            return CatalogUnavailable(reason=str(error.orig).strip())
        return None


# Closing any descriptor of a file releases all locks that the process holds on it (POSIX). SQLite's
# open connections would lose their locks, and another process could delete the log (-wal) with its
# commits. So the file is opened here only to create it, and by one thread at a time.
_creation_lock = threading.Lock()


_SELECT_HISTORY = sa.select(model.deployment.c.history)


def _read_history(connection: sa.Connection) -> int:
    return connection.execute(_SELECT_HISTORY).scalar() or 0


class _SqliteCatalogFile:
    """File of a SQLite catalog, readable by its owner only. Detects if the file is replaced or deleted.

    SQLite continues to write to a deleted or replaced file, and loses those commits.
    """

    def __init__(self, path: Path) -> None:
        # Make the path absolute: the process may change its working directory later.
        self._path = path.absolute()
        self._identity: tuple[int, int] | None = None

    def create(self) -> None:
        """Create the file if it is missing, and deny access to other accounts."""
        try:
            with _creation_lock:
                if not self._path.exists():
                    # SQLite creates its other files (-wal, -shm) with the mode of this file.
                    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
                    with contextlib.suppress(FileExistsError):
                        os.close(os.open(self._path, flags, 0o600))
            if not os.access(self._path, os.R_OK | os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            found = self._path.stat()
            if found.st_mode & stat.S_IRWXO and found.st_uid == os.geteuid():
                for each in (self._path, *self._path.parent.glob(f"{self._path.name}-*")):
                    each.chmod(stat.S_IMODE(each.stat().st_mode) & ~stat.S_IRWXO)
        except OSError as error:
            raise CatalogUnavailable(
                reason=f"cannot open {self._path}: {error.strerror or error}"
            ) from error
        self._identity = (found.st_dev, found.st_ino)

    def check_unchanged(self) -> None:
        """Raise CatalogUnavailable if the file was replaced or deleted after it was opened."""
        if self._identity is None:
            return
        try:
            found = self._path.stat()
        except OSError:
            found = None
        if found is None or (found.st_dev, found.st_ino) != self._identity:
            happened = "deleted" if found is None else "replaced"
            raise CatalogUnavailable(
                reason=f"{self._path} was {happened} while in use. Stop all processes that use the"
                " catalog, restore the file, and start them again"
            )


def open_database(url: str) -> Database:
    """Open a catalog's database without creating or upgrading its tables.

    Raises:
        ConfigurationError: If the URL is not a SQLite or PostgreSQL URL.
        CatalogUnavailable: If the database cannot be reached.
    """
    database = Database(_parse_url(url), busy_timeout_s=_BUSY_TIMEOUT_S)
    try:
        database.create_file()
    except BaseException:
        database.close()
        raise
    return database


def open_and_upgrade_database(
    url: str,
    *,
    clock: Clock | None = None,
    busy_timeout_s: float = _BUSY_TIMEOUT_S,
    create: bool = True,
) -> Database:
    """Open the catalog and upgrade its schema.

    Args:
        url: `sqlite:///path`, `postgresql://…`, or the path of a SQLite file.
        clock: The clock that dates a new catalog.
        busy_timeout_s: Maximum wait for the locks of other transactions, in seconds.
        create: Whether to create a missing SQLite file.

    Raises:
        ConfigurationError: If the URL names no file or another kind of database, or the file is
            missing and `create` is false.
        CatalogUnavailable: If the database cannot be reached.
        MissingExtra: If the driver of PostgreSQL is not installed.
    """
    file = find_sqlite_path(url)
    if file is not None and not create and not file.exists():
        raise ConfigurationError(
            setting="catalog_url",
            reason=f"there is no catalog at {file}. Check the folder, or create one: start"
            " `snowmelt serve` there, or run CREATE DATABASE with `snowmelt sql`",
        )
    database = Database(_parse_url(url), busy_timeout_s=busy_timeout_s)
    try:
        database.create_file()
        with database.reading() as connection:
            current = read_schema_version(connection)
        if current != SCHEMA_VERSION:
            with database.writing() as connection:
                upgrade_schema(connection, (clock or SystemClock()).now())
    except BaseException:
        database.close()
        raise
    return database


@dataclass(frozen=True, slots=True)
class CatalogVersion:
    """Schema version of a catalog (None if it has no tables), and the newest supported version."""

    current: str | None
    newest: str
    is_known: bool


def read_catalog_version(url: str) -> CatalogVersion:
    """Return the version of a catalog without changing it.

    Raises:
        ConfigurationError: If the URL is not a SQLite or PostgreSQL URL.
        CatalogUnavailable: If the database cannot be reached.
    """
    database = Database(_parse_url(url), busy_timeout_s=10.0)
    try:
        with database.reading() as connection:
            current = read_schema_version(connection)
    finally:
        database.close()
    is_known = current is not None and current <= SCHEMA_VERSION
    return CatalogVersion(current, SCHEMA_VERSION, is_known)


def read_server_time(connection: sa.Connection) -> dt.datetime | None:
    """Return the time of the database server, or None for SQLite."""
    if connection.dialect.name != "postgresql":
        return None
    found: dt.datetime = connection.execute(sa.select(sa.func.clock_timestamp())).scalar_one()
    return found


def find_sqlite_path(url: str) -> Path | None:
    """Return the file of a SQLite catalog, or None for other databases.

    Raises:
        ConfigurationError: If the URL is not a SQLite or PostgreSQL URL.
        MissingExtra: If the URL needs a package that is not installed.
    """
    parsed = _parse_url(url)
    return Path(parsed.database or "") if parsed.get_backend_name() == "sqlite" else None


def _parse_url(text: str) -> sa.URL:
    url = sa.make_url(text) if "://" in text else sa.URL.create("sqlite", database=text)
    if url.get_backend_name() in {"postgres", "postgresql"}:
        try:
            import psycopg  # noqa: F401 - optional
        except ImportError as error:
            raise MissingExtra(
                what="A PostgreSQL catalog", package="psycopg", extra="postgres"
            ) from error
        return url.set(drivername="postgresql+psycopg")
    if url.get_backend_name() != "sqlite":
        raise ConfigurationError(
            setting="catalog_url", reason="use sqlite:///path or postgresql://host/database"
        )
    # Each connection to :memory: would open a separate database.
    if not url.database or ":memory:" in url.database:
        raise ConfigurationError(setting="catalog_url", reason="SQLite needs a file")
    return url


def _create_sqlite_engine(url: sa.URL, timeout_s: float, *, for_writing: bool) -> sa.Engine:
    engine = sa.create_engine(
        url,
        # Errors are logged, and parameters contain column minima and maxima, which are user data.
        hide_parameters=True,
        poolclass=QueuePool,
        pool_size=1 if for_writing else 8,
        max_overflow=0 if for_writing else 56,
        pool_timeout=timeout_s,
        connect_args={"timeout": timeout_s, "check_same_thread": False, "isolation_level": None},
    )

    @event.listens_for(engine, "connect")
    def configure(connection: Any, _record: object) -> None:
        cursor = connection.cursor()
        cursor.execute("PRAGMA foreign_keys=ON")
        if for_writing:
            # While other processes open the file, SQLite fails here immediately, ignoring its busy
            # timeout.
            statement = "PRAGMA journal_mode=WAL"
            if not _execute_when_free(cursor, statement, timeout_s):
                cursor.execute(statement)
            cursor.execute("PRAGMA synchronous=FULL")
            # From here on only `begin_immediate` waits, with its own polling.
            cursor.execute("PRAGMA busy_timeout=0")
        else:
            cursor.execute("PRAGMA query_only=ON")
        cursor.close()

    @event.listens_for(engine, "begin")
    def begin(connection: sa.Connection) -> None:
        if for_writing:
            begin_immediate(connection, timeout_s)
        else:
            connection.exec_driver_sql("BEGIN")

    return engine


def _create_postgres_engine(url: sa.URL, timeout_s: float) -> sa.Engine:
    engine = sa.create_engine(
        url,
        # Errors are logged, and parameters contain column minima and maxima, which are user data.
        hide_parameters=True,
        poolclass=QueuePool,
        pool_size=8,
        max_overflow=24,
        pool_timeout=timeout_s,
        pool_pre_ping=True,
        isolation_level="READ COMMITTED",
        connect_args={"connect_timeout": max(int(timeout_s), 2)},
    )

    @event.listens_for(engine, "connect")
    def configure(connection: Any, _record: object) -> None:
        cursor = connection.cursor()
        cursor.execute(f"SET lock_timeout = {int(timeout_s * 1000)}")
        # Python code compares names by their UTF-8 bytes, so the session must use UTF-8.
        cursor.execute("SET client_encoding = 'UTF8'")
        # Acknowledged rows must be on disk, so override any default of the role or the database.
        cursor.execute("SET synchronous_commit = 'on'")
        # A plan cached while a table was empty would scan the whole table until the next ANALYZE,
        # while thousands of chunks arrive per second.
        cursor.execute("SET plan_cache_mode = 'force_custom_plan'")
        cursor.close()
        connection.commit()

    @event.listens_for(engine, "checkin")
    def follow_the_default_again(connection: Any, _record: object) -> None:
        # After a read-only transaction SQLAlchemy leaves `False` here. "BEGIN READ WRITE" would
        # then override an operator's `default_transaction_read_only`.
        if connection is not None:
            connection.read_only = None

    return engine


def _sqlstate(error: sa.exc.DBAPIError) -> str:
    return getattr(error.orig, "sqlstate", None) or ""


# FIFO lock for the threads that write to one SQLite file, with priority for row commits.

_clock = SystemClock()

# Polling interval for SQLite's lock. SQLite's own busy handler increases its interval up to 100 ms,
# so a process that has waited long would lose to a new one.
_POLL_INTERVAL_S = 0.001
# Pause of a process after a transaction, so that other processes can take the lock.
_RELEASE_PAUSE_S = 0.002
_BEGIN_STATEMENT = "BEGIN IMMEDIATE"


class FairWriterLock:
    """A lock granted in order of arrival, with two queues that take turns.

    Urgent threads commit rows of many clients in one transaction. After each ordinary thread an urgent
    one follows, so urgent threads wait for at most one other transaction, however many threads wait.
    After each urgent thread an ordinary one follows, so neither queue starves. Thread-safe; not
    reentrant.
    """

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._is_locked = False
        self._urgent_waiters: deque[threading.Event] = deque()
        self._ordinary_waiters: deque[threading.Event] = deque()
        self._was_urgent = False
        self._pause_until = 0.0

    def acquire(self, timeout_s: float, *, urgent: bool) -> bool:
        """Wait for the lock. Return False if the lock was not granted within `timeout_s` seconds."""
        if not self._wait_in_queue(timeout_s, urgent=urgent):
            return False
        if not urgent:
            _clock.sleep(self._pause_until - _clock.monotonic())
        return True

    def _wait_in_queue(self, timeout_s: float, *, urgent: bool) -> bool:
        with self._mutex:
            if not self._is_locked:
                self._is_locked = True
                self._was_urgent = urgent
                return True
            granted = threading.Event()
            queue = self._urgent_waiters if urgent else self._ordinary_waiters
            queue.append(granted)
        if granted.wait(timeout_s):
            return True
        with self._mutex:
            # The lock may have been granted since the wait ended.
            if granted.is_set():
                return True
            queue.remove(granted)
            return False

    def release(self) -> None:
        """Release the lock and grant it to the next thread."""
        self._pause_until = _clock.monotonic() + _RELEASE_PAUSE_S
        with self._mutex:
            first, second = self._urgent_waiters, self._ordinary_waiters
            if self._was_urgent:
                first, second = second, first
            queue = first or second
            if not queue:
                self._is_locked = False
                return
            self._was_urgent = queue is self._urgent_waiters
            queue.popleft().set()


def begin_immediate(connection: sa.Connection, timeout_s: float) -> None:
    """Begin a write transaction. Polls at a constant rate while another process writes.

    Requires a SQLite connection with a busy timeout of 0.

    Raises:
        sqlalchemy.exc.OperationalError: If the lock was not free in time (SQLITE_BUSY), or the
            database cannot be written.
    """
    cursor = connection.connection.cursor()
    try:
        if _execute_when_free(cursor, _BEGIN_STATEMENT, timeout_s):
            return
    finally:
        cursor.close()
    # Execute again through SQLAlchemy, which wraps the error.
    connection.exec_driver_sql(_BEGIN_STATEMENT)


def _execute_when_free(cursor: Any, statement: str, timeout_s: float) -> bool:
    """Execute a statement, polling while SQLite is busy. Return False if SQLite stayed busy."""
    until = _clock.monotonic() + timeout_s
    while _clock.monotonic() < until:
        try:
            cursor.execute(statement)
        except sqlite3.OperationalError as error:
            if not error.sqlite_errorname.startswith("SQLITE_BUSY"):
                return False
            _clock.sleep(_POLL_INTERVAL_S)
        else:
            return True
    return False


# Schema versions of the catalog, and the upgrade to the tables of `model`.

_log = logging.getLogger(__name__)

# The schema version that this program requires. Versions have four digits.
SCHEMA_VERSION = "0022"
# Arbitrary ID of the advisory lock that the upgrading process holds.
_UPGRADE_LOCK_ID = 0x534E4F574D454C54 >> 1
# Alembic's name for its version table.
_VERSION_TABLE = sa.Table(
    "alembic_version", sa.MetaData(), sa.Column("version_num", sa.String(32), primary_key=True)
)


def read_schema_version(connection: sa.Connection) -> str | None:
    """Return the schema version of the catalog, or None if it has no tables."""
    if not sa.inspect(connection).has_table(_VERSION_TABLE.name):
        return None
    return connection.execute(sa.select(_VERSION_TABLE.c.version_num)).scalar()


def upgrade_schema(connection: sa.Connection, now: dt.datetime) -> None:
    """Upgrade the tables to `SCHEMA_VERSION` in the caller's transaction, one process at a time.

    Raises:
        ConfigurationError: If the catalog is newer than this program.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_UPGRADE_LOCK_ID)))
    current = read_schema_version(connection)
    if current == SCHEMA_VERSION:
        return
    if current is None:
        _VERSION_TABLE.create(connection)
        model.metadata.create_all(connection, checkfirst=False)
        connection.execute(
            sa.insert(model.deployment).values(
                deployment_id=secrets.randbelow(2**31 - 1) + 1, created_at=now
            )
        )
        connection.execute(
            sa.insert(model.roles),
            [{"name": name, "created_at": now} for name in ("ACCOUNTADMIN", "PUBLIC")],
        )
    elif current > SCHEMA_VERSION:
        raise ConfigurationError(
            setting="catalog_url",
            reason=f"the catalog has version {current}, and this Snowmelt supports versions up to "
            f"{SCHEMA_VERSION}. Install the Snowmelt that wrote it, or a newer one",
        )
    else:
        # Imported here, because most starts upgrade nothing.
        from alembic.autogenerate import produce_migrations
        from alembic.migration import MigrationContext
        from alembic.operations import Operations

        def is_ours(_object: Any, _name: Any, _kind: Any, reflected: bool, known: object) -> bool:
            return not reflected or known is not None

        context = MigrationContext.configure(connection, opts={"include_object": is_ours})
        operations = Operations(context)
        steps = produce_migrations(context, model.metadata).upgrade_ops
        for step in steps.ops if steps is not None else ():
            for each in getattr(step, "ops", [step]):
                operations.invoke(each)
        refresh_triggers(connection)
    connection.execute(sa.delete(_VERSION_TABLE))
    connection.execute(sa.insert(_VERSION_TABLE).values(version_num=SCHEMA_VERSION))
    _log.info("upgraded the catalog to version %s from %s", SCHEMA_VERSION, current or "none")


# Clock that follows the database server's time, so that all services use the same time.

# Smaller differences are not corrected, because the measurement includes network latency.
MAX_CLOCK_SKEW_S = 5.0
# Maximum duration of a measurement. Slower measurements are too inaccurate and are ignored.
_MAX_ROUND_TRIP_S = 2.0


def open_catalog_clock(database: Database, local_clock: Clock | None = None) -> DatabaseServerClock:
    """Return a clock after synchronizing it with the catalog.

    Raises:
        CatalogUnavailable: If the catalog cannot be reached.
    """
    clock = DatabaseServerClock(local_clock or SystemClock())
    with database.reading() as connection:
        clock.synchronize(connection)
    return clock


class DatabaseServerClock:
    """The local clock, corrected if its skew exceeds `MAX_CLOCK_SKEW_S`."""

    def __init__(self, local_clock: Clock) -> None:
        self._local_clock = local_clock
        self._correction = dt.timedelta()
        self.skew_s = 0.0

    def synchronize(self, connection: Connection) -> dt.datetime:
        """Measure the catalog's clock and return its time. With SQLite, return the local time."""
        began, began_at = self._local_clock.monotonic(), self._local_clock.now()
        theirs = read_server_time(connection)
        if theirs is None:
            return began_at
        took_s = self._local_clock.monotonic() - began
        if took_s < _MAX_ROUND_TRIP_S:
            ahead = began_at + dt.timedelta(seconds=took_s / 2) - theirs
            self.skew_s = ahead.total_seconds()
            self._correction = ahead if abs(self.skew_s) > MAX_CLOCK_SKEW_S else dt.timedelta()
        return theirs

    def now(self) -> dt.datetime:
        """Return the wall-clock time as an aware UTC datetime."""
        return self._local_clock.now() - self._correction

    def monotonic(self) -> float:
        """Return the local monotonic clock in seconds."""
        return self._local_clock.monotonic()

    def sleep(self, seconds: float) -> None:
        """Block this thread for a number of seconds."""
        self._local_clock.sleep(seconds)

    async def pause(self, seconds: float) -> None:
        """Suspend this task for a number of seconds; other tasks of the event loop run."""
        await self._local_clock.pause(seconds)

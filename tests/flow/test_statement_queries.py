"""Queries over the statement API: the rows of tables, with limits and privileges."""

from __future__ import annotations

import csv
import datetime as dt
import io
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import snowmelt
from fixtures.service import KeyPair, ServiceProcess
from snowmelt.client.statements import StatementRows
from snowmelt.errors import StatementFailed
from support.processes import list_children, read_command

pytestmark = pytest.mark.slow
_numbers = itertools.count()
_COLUMNS = """
    id NUMBER(9,0) NOT NULL, amount NUMBER(20,3), wide NUMBER(38,2), ratio FLOAT, flag BOOLEAN,
    word VARCHAR, bytes BINARY, day DATE, at TIMESTAMP_NTZ(6), seen TIMESTAMP_LTZ(6)
"""
_AT = dt.datetime(1969, 12, 31, 23, 59, 59, 999_999)
_ROWS: list[dict[str, Any]] = [
    {
        "id": 1,
        "amount": Decimal("-0.125"),
        "wide": Decimal("123456789012345678901234567890123456.78"),
        "ratio": 0.1,
        "flag": True,
        "word": "it's 雪\n",
        "bytes": b"\x00\xff",
        "day": dt.date(1582, 10, 15),
        "at": _AT,
        "seen": _AT.replace(tzinfo=dt.UTC),
    },
    {"id": 2},
    {"id": 3, "ratio": float("inf"), "word": "", "flag": False, "day": dt.date(9999, 12, 31)},
]
_NAMES = ("id", "amount", "wide", "ratio", "flag", "word", "bytes", "day", "at", "seen")
_TYPES = ("fixed", "fixed", "fixed", "real", "boolean", "text", "binary", "date")
_EXPECTED = [tuple(row.get(name) for name in _NAMES) for row in _ROWS]


class Querying:
    """A service with a table, and users who may query it."""

    def __init__(self, service: ServiceProcess, folder: Path) -> None:
        self.service, self.folder = service, folder
        self.database = f"asked_{next(_numbers)}"
        self.table = f"{self.database}.public.t"
        self.keys: dict[Any, Any] = {}
        service.sql(f"CREATE DATABASE {self.database}", f"CREATE TABLE {self.table} ({_COLUMNS})")
        self.boss = self.add_user("boss", role="ACCOUNTADMIN")

    def add_user(self, name: str, role: str | None = None) -> str:
        user = f"{name}_{self.database}"
        pair = KeyPair.generate()
        self.service.sql(f"CREATE USER {user} RSA_PUBLIC_KEY = '{pair.public_base64}'")
        if role:
            self.service.sql(
                f"GRANT ROLE {role} TO USER {user}",
                f"ALTER USER {user} SET DEFAULT_ROLE = {role}",
            )
        self.keys[user] = self.folder / f"{user}.pem"
        self.keys[user].write_text(pair.private_pem)
        return user

    def insert(self, rows: Any) -> None:
        key = self.keys[self.boss]
        with (
            snowmelt.Client(self.service.url, user=self.boss, private_key=key) as client,
            client.open_channel("c", table=self.table) as channel,
        ):
            channel.insert_rows(rows)

    def client(self, user: Any = None, **options: Any) -> snowmelt.StatementClient:
        user = user or self.boss
        return snowmelt.StatementClient(
            self.service.url, user=user, private_key=self.keys[user], **options
        )

    def ask(self, text: Any, user: Any = None, **options: Any) -> StatementRows:
        with self.client(user, **options) as client:
            return client.execute(text)

    def query_processes(self) -> list[Any]:
        """Query processes of the service."""
        assert self.service.process is not None
        return [pid for pid in list_children(self.service.process.pid) if runs_queries(pid)]


def runs_queries(pid: int) -> bool:
    return b"snowmelt.server.query_process" in read_command(pid)


@pytest.fixture
def querying(shared_service: ServiceProcess, tmp_path: Path) -> Querying:
    return Querying(shared_service, tmp_path)


@pytest.fixture
def alone(service_process: ServiceProcess, tmp_path: Path) -> Callable[..., Querying]:
    """Make a `Querying` with a separate service and these settings."""

    def start(**settings: Any) -> Querying:
        service_process.popen = subprocess.Popen
        return Querying(service_process.start(**settings), tmp_path)

    return start


def test_every_value_comes_back_as_it_was_inserted(querying: Querying) -> None:
    querying.insert(_ROWS)
    found = querying.ask(f"SELECT * FROM {querying.table} ORDER BY id")
    assert found.columns == tuple(name.upper() for name in _NAMES)
    assert list(found.rows) == _EXPECTED
    aggregates = "count(*), sum(amount), min(seen), max(at), count(DISTINCT word)"
    found = querying.ask(f"SELECT {aggregates} FROM {querying.table}")
    assert found.rows == [(3, Decimal("-0.125"), _AT.replace(tzinfo=dt.UTC), _AT, 2)]
    assert querying.ask(f"SELECT word FROM {querying.table} WHERE id > 9").rows == []


def test_short_names_are_completed_and_the_role_counts(querying: Querying) -> None:
    querying.insert(_ROWS[:1])
    assert querying.ask("SELECT id FROM t", database=querying.database).rows == [(1,)]
    other = querying.add_user("other")
    count = f"SELECT count(*) FROM {querying.table}"
    with pytest.raises(StatementFailed, match="does not exist") as raised:
        querying.ask(count, other)
    assert raised.value.fields["code"] == "database_not_found"
    querying.service.sql(
        f"GRANT USAGE ON DATABASE {querying.database} TO ROLE PUBLIC",
        f"GRANT USAGE ON SCHEMA {querying.database}.public TO ROLE PUBLIC",
    )
    with pytest.raises(StatementFailed, match="does not exist") as raised:
        querying.ask(count, other)
    assert raised.value.fields["code"] == "table_not_found"
    querying.service.sql(f"GRANT SELECT ON TABLE {querying.table} TO ROLE PUBLIC")
    assert querying.ask(count, other).rows == [(1,)]
    with pytest.raises(StatementFailed, match="Role ACCOUNTADMIN is not granted"):
        querying.ask(count, other, role="ACCOUNTADMIN")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("SELECT 1", "it does not read a table"),
        ("SELECT a.id FROM {0} a JOIN {0} b ON a.id = b.id", "it has JOINS"),
        ("SELECT upper(word) FROM {0}", "it selects UPPER"),
        ("SELECT * FROM read_csv('/etc/passwd')", "table"),
        ("WITH x AS (SELECT 1) SELECT * FROM x", "WITH"),
        ("SELECT * FROM {0}; SELECT 1", "single SELECT"),
    ],
)
def test_what_needs_spark_is_rejected_with_the_reason(
    querying: Querying, text: str, reason: str
) -> None:
    with pytest.raises(StatementFailed, match="Query with Spark") as raised:
        querying.ask(text.format(querying.table))
    assert raised.value.fields["code"] == "unsupported"
    assert reason in str(raised.value)


def test_a_missing_column_is_rejected_with_the_existing_ones(querying: Querying) -> None:
    with pytest.raises(StatementFailed, match=r"Column none does not exist. Columns: ID, "):
        querying.ask(f"SELECT none FROM {querying.table}")


def test_the_command_prints_the_same_here_and_elsewhere(querying: Querying) -> None:
    querying.insert(_ROWS)
    text = f"SELECT {', '.join(_NAMES[:-1])} FROM {querying.table} ORDER BY id"
    command = [sys.executable, "-m", "snowmelt", "sql", text, "--format", "csv"]
    key = str(querying.keys[querying.boss])
    elsewhere = ["--url", querying.service.url, "--user", querying.boss, "--private-key", key]
    here = ["--engine", "duckdb", "--data-dir", str(querying.service.data_dir)]
    printed = []
    for arguments in (here, elsewhere):
        ended = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=280)
        assert ended.returncode == 0, ended.stderr
        # In both, column names have the case in the query.
        printed.append(list(csv.reader(io.StringIO(ended.stdout))))
    assert printed[0] == printed[1]
    assert len(printed[0]) == 1 + len(_ROWS)
    refused = subprocess.run(
        [*command, *elsewhere, "--engine", "spark"], capture_output=True, text=True, timeout=280
    )
    assert "Omit --engine spark" in refused.stderr


def test_users_ask_at_once_and_each_gets_the_own_answer(querying: Querying) -> None:
    querying.insert([{"id": number} for number in range(100)])
    users = [querying.add_user(f"u{number}", "ACCOUNTADMIN") for number in range(4)]
    found = {}

    def ask(user: Any, number: int) -> None:
        query = f"SELECT id FROM {querying.table} WHERE id = {number}"
        found[user, number] = querying.ask(query, user).rows

    threads = [
        threading.Thread(target=ask, args=(user, number)) for user in users for number in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {(user, number): [(number,)] for user in users for number in range(3)}
    assert len(querying.query_processes()) <= querying.service.settings.query_processes


def test_results_beyond_the_limit_are_rejected_whole(alone: Any) -> None:
    querying = alone(query_rows=10, query_processes=1)
    querying.insert([{"id": number, "word": "x" * 1_000_000} for number in range(11)])
    with pytest.raises(StatementFailed, match=r"more than 10 rows\. Add LIMIT"):
        querying.ask(f"SELECT id FROM {querying.table}")
    assert len(querying.ask(f"SELECT id FROM {querying.table} LIMIT 10").rows) == 10
    words = ", ".join(f"word AS w{number}" for number in range(9))
    with pytest.raises(StatementFailed, match=r"more than 64 MiB\. Add LIMIT"):
        querying.ask(f"SELECT {words} FROM {querying.table}")


def test_a_query_without_the_memory_it_needs_is_rejected(alone: Any) -> None:
    querying = alone(query_memory_bytes=4_000_000)
    querying.insert([{"id": number, "word": f"{number}" * 200} for number in range(10_000)])
    with pytest.raises(StatementFailed, match="Out of Memory"):
        querying.ask(f"SELECT DISTINCT word FROM {querying.table} ORDER BY word")
    assert querying.ask(f"SELECT count(*) FROM {querying.table}").rows == [(10_000,)]


def test_a_query_that_takes_too_long_is_canceled(alone: Any) -> None:
    querying = alone(query_timeout_s=0.0001)
    with pytest.raises(StatementFailed, match=r"canceled after 0\.0001 s .*query_timeout_s"):
        querying.ask(f"SELECT count(*) FROM {querying.table}")
    assert querying.query_processes() == []


def test_a_service_may_run_no_queries(alone: Any) -> None:
    querying = alone(query_processes=0)
    with pytest.raises(StatementFailed, match="set query_processes"):
        querying.ask(f"SELECT count(*) FROM {querying.table}")


def test_killed_processes_are_replaced_and_end_with_the_service(alone: Any) -> None:
    querying = alone()
    count = f"SELECT count(*) FROM {querying.table}"
    for _ in range(2):
        assert querying.ask(count).rows == [(0,)]
        [process] = querying.query_processes()
        os.kill(process, signal.SIGKILL)
    assert querying.ask(count).rows == [(0,)]
    [process] = querying.query_processes()
    querying.service.kill()
    give_up_at = time.monotonic() + 120
    while runs_queries(process):
        assert time.monotonic() < give_up_at
        time.sleep(0.02)

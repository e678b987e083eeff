"""Pipes with AUTO_INGEST: a service loads each new file once, despite kills."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fixtures.service import KeyPair, ServiceProcess, prepare_loading
from snowmelt.catalog.db.database import open_and_upgrade_database
from snowmelt.catalog.security.encryption_keys import KeyRing, load_master_key
from snowmelt.errors import PipeNotFound, StatementError, TableNotFound
from snowmelt.schema.types import TableName
from snowmelt.storage.store_factory import open_store
from snowmelt.table.table_reader import read_table

PIPE = "CREATE PIPE demo.public.p AUTO_INGEST = TRUE AS COPY t FROM '{}/*' DELIMITER ','"
QUICK: dict[str, Any] = {"file_batch_age_s": 0.1}


class Arriving:
    """A service, a pipe and its folder."""

    def __init__(self, service: ServiceProcess, folder: Path) -> None:
        self.service = service
        self.folder = folder
        self.schema = "PUBLIC"
        folder.mkdir()

    def put(self, name: str, content: str) -> None:
        """Write a file elsewhere and move it into the folder."""
        part = self.folder.with_name(f"part-{name}")
        part.write_text(content)
        part.rename(self.folder / name)

    def status(self) -> dict[str, Any]:
        result = self.service.sql(f"SELECT SYSTEM$PIPE_STATUS('demo.{self.schema}.p')")
        found: dict[str, Any] = json.loads(str(result.rows[0][0]))
        return found

    def wait(self, condition: Callable[[dict[str, Any]], bool], seconds: float = 120) -> Any:
        give_up_at = time.monotonic() + seconds
        while not condition(status := self.status()):
            assert time.monotonic() < give_up_at, f"{status}\n{self.service.log}"
            time.sleep(0.05)
        return status

    def kill_worker(self) -> None:
        """kill -9 of the process that loads, if it runs."""
        found = re.findall(r"the loader of pipes runs as process (\d+)", self.service.log)
        if found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(found[-1]), signal.SIGKILL)

    def read_ids(self) -> list[int]:
        settings = self.service.settings
        database = open_and_upgrade_database(settings.catalog_url)
        try:
            keyring = KeyRing(load_master_key(settings.keys_dir))
            stage = open_store(settings.stage_url)
            table = TableName("DEMO", self.schema, "T")
            rows = read_table(database, keyring, stage, table, ("ID",))
        finally:
            database.close()
        return sorted(int(row["ID"]) for row in rows.to_pylist())


@pytest.fixture
def arriving(service_process: ServiceProcess, key_pair: KeyPair, tmp_path: Path) -> Arriving:
    service_process.start(**QUICK)
    prepare_loading(service_process, key_pair)
    return Arriving(service_process, tmp_path / "in")


def test_a_pipe_loads_what_appears_and_shows_what_it_does(arriving: Arriving) -> None:
    service = arriving.service
    arriving.put("1.csv", "1,a,\n")
    service.sql(PIPE.format(arriving.folder))
    arriving.wait(lambda status: "lastIngestedFilePath" in status)
    arriving.put("2.csv.gz", "nothing")
    arriving.put("3.csv", "3,c,\n")
    status = arriving.wait(lambda status: status["failedFileCount"] == 1)
    [failed] = status["failedFiles"]
    assert failed["path"].endswith("2.csv.gz")
    assert "gzip" in failed["error"]
    arriving.wait(lambda status: str(status["lastIngestedFilePath"]).endswith("3.csv"))
    assert arriving.read_ids() == [1, 3]
    [row] = service.sql("SHOW PIPES IN SCHEMA demo.public").rows
    assert row[1:4] == ("P", "DEMO", "PUBLIC")
    assert row[-3:] == ("AUTO_INGEST", False, None)

    service.sql("ALTER PIPE demo.public.p SET PIPE_EXECUTION_PAUSED = TRUE COMMENT = 'waits'")
    assert arriving.status()["executionState"] == "PAUSED"
    arriving.put("4.csv", "4,d,\n")
    (arriving.folder / "2.csv.gz").unlink()
    service.sql("ALTER PIPE demo.public.p SET PIPE_EXECUTION_PAUSED = FALSE")
    arriving.wait(lambda status: str(status["lastIngestedFilePath"]).endswith("4.csv"))
    arriving.wait(lambda status: status["failedFileCount"] == 0)
    assert arriving.read_ids() == [1, 3, 4]

    # An error of the whole pipe is shown, and disappears with its cause.
    service.sql("ALTER TABLE demo.public.t RENAME TO demo.public.away")
    arriving.put("5.csv", "5,e,\n")
    status = arriving.wait(lambda status: status["executionState"] == "STALLED_EXECUTION_ERROR")
    assert "DEMO.PUBLIC.T" in status["error"]
    arriving.kill_worker()
    service.sql("ALTER TABLE demo.public.away RENAME TO demo.public.t")
    service.sql("ALTER PIPE demo.public.p REFRESH")
    arriving.wait(lambda status: str(status["lastIngestedFilePath"]).endswith("5.csv"))
    assert arriving.read_ids() == [1, 3, 4, 5]

    assert arriving.status()["executionState"] == "RUNNING"

    # A pipe goes on after its schema was renamed.
    service.sql("ALTER SCHEMA demo.public RENAME TO demo.moved")
    arriving.schema = "MOVED"
    arriving.put("6.csv", "6,f,\n")
    arriving.wait(lambda status: str(status["lastIngestedFilePath"]).endswith("6.csv"))
    assert arriving.read_ids() == [1, 3, 4, 5, 6]

    # The pipe remembers what it loaded into the table before, also under its former name.
    service.sql("TRUNCATE TABLE demo.moved.t")
    arriving.kill_worker()
    arriving.put("7.csv", "7,g,\n")
    arriving.wait(lambda status: str(status["lastIngestedFilePath"]).endswith("7.csv"))
    assert arriving.read_ids() == [7]
    service.sql("ALTER SCHEMA demo.moved RENAME TO demo.public")
    arriving.schema = "PUBLIC"
    service.sql("DROP PIPE demo.public.p")
    with pytest.raises(PipeNotFound):
        arriving.status()
    service.sql(PIPE.format(arriving.folder))
    arriving.wait(lambda _: arriving.read_ids() == [1, 3, 4, 5, 6, 7])


def test_what_a_pipe_cannot_load_is_refused_when_it_is_created(
    arriving: Arriving, tmp_path: Path
) -> None:
    create = "CREATE PIPE demo.public.p AUTO_INGEST = TRUE AS "
    for text, error, message in (
        ("COPY nothing FROM '/a/*'", TableNotFound, "NOTHING"),
        ("COPY t (missing) FROM '/a/*'", StatementError, "Unknown column MISSING"),
        ("COPY t FROM 'a/*'", StatementError, "is relative"),
        ("COPY t\n FROM '/a/*' REJECTMAX x", StatementError, "line 2"),
        ("COPY t FROM '/a/*' PARSER nothing()", StatementError, "nothing"),
    ):
        with pytest.raises(error, match=message):
            arriving.service.sql(create + text)
    with pytest.raises(StatementError, match="INTEGRATION is not supported"):
        arriving.service.sql(create.replace("AS", "INTEGRATION = i AS") + "COPY t FROM '/a/*'")
    with pytest.raises(StatementError, match="accepts streamed rows"):
        arriving.service.sql(
            "CREATE PIPE demo.public.s AS COPY INTO demo.public.t FROM "
            "TABLE(DATA_SOURCE(TYPE => 'STREAMING')) MATCH_BY_COLUMN_NAME = CASE_INSENSITIVE",
            "ALTER PIPE demo.public.s REFRESH",
        )
    assert arriving.service.sql("SHOW PIPES LIKE 'p'").rows == ()


@pytest.mark.slow
def test_no_file_is_lost_or_doubled_however_often_it_is_killed(arriving: Arriving) -> None:
    service = arriving.service
    service.sql(PIPE.format(arriving.folder))
    moments = random.Random(21)
    written = 0
    for turn in range(6):
        for _ in range(moments.randrange(1, 12)):
            arriving.put(f"{written:05d}.csv", f"{2 * written},a,\n{2 * written + 1},b,\n")
            written += 1
        # Kill at a random time during start, listing, load and commit.
        time.sleep(moments.uniform(0.0, 1.5))
        if turn % 2:
            arriving.kill_worker()
        else:
            service.kill()
            service.start(**QUICK)
    arriving.put("last.csv", f"{2 * written},a,\n")
    arriving.wait(lambda _: len(arriving.read_ids()) >= 2 * written + 1)
    assert arriving.read_ids() == list(range(2 * written + 1))
    assert arriving.status()["failedFileCount"] == 0

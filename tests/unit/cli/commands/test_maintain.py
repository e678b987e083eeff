"""`snowmelt maintain`."""

from __future__ import annotations

import datetime as dt
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from snowmelt.clock import SystemClock

if TYPE_CHECKING:
    from unit.cli.conftest import Finished


@pytest.fixture
def loaded(snowmelt: Callable[..., Finished], tmp_path: Path) -> Path:
    """Three native files with five rows in `first`, one in `second`, none in `empty`."""
    tables = "".join(f"CREATE TABLE demo.public.{t} (a INT);" for t in ("first", "second", "empty"))
    assert snowmelt("sql", f"CREATE DATABASE demo; {tables}").returncode == 0
    for table, name, text in (
        ("first", "a.csv", "1\n2\n"),
        ("first", "b.csv", "3\n4\n"),
        ("first", "c.csv", "5\n"),
        ("second", "d.csv", "6\n"),
    ):
        (tmp_path / name).write_text(text)
        assert snowmelt("copy", f"COPY demo.public.{table} FROM '{name}'").returncode == 0
    return tmp_path


@pytest.fixture
def later(
    snowmelt: Callable[..., Finished], monkeypatch: pytest.MonkeyPatch
) -> Callable[[Any], list[str]]:
    """Return a function that maintains, with a retention of two hours, that much later."""

    def maintained(hours: Any) -> list[str]:
        past = dt.timedelta(hours=hours)
        with monkeypatch.context() as patch:
            patch.setattr(SystemClock, "now", lambda _: dt.datetime.now(dt.UTC) + past)
            ended = snowmelt("maintain", "--full", retention_s="7200")
        assert (ended.returncode, ended.stderr) == (0, "")
        return ended.stdout.splitlines()

    return maintained


@pytest.mark.slow
def test_small_files_are_joined_and_those_they_were_go_after_the_retention(
    snowmelt: Callable[..., Finished], loaded: Path, later: Any
) -> None:
    def files() -> set[Any]:
        return {*loaded.glob("snowmelt-data/warehouse/**/data/**/*.parquet")}

    planned = snowmelt("maintain", "--dry-run", "--full", "--format", "json")
    [row] = json.loads(planned.stdout)
    assert (row["table"], row["small files"], row["files after"]) == ("DEMO.PUBLIC.FIRST", 3, 1)
    before = files()
    joined, cleaned = later(0)
    assert joined.startswith("DEMO.PUBLIC.FIRST: 5 rows of 3 files, ")
    assert " now in 1, " in joined
    nothing = "deleted 0 blobs, 0 that were never registered, and 0 native files"
    assert cleaned == nothing
    assert json.loads(snowmelt("maintain", "--dry-run", "--format", "json").stdout) == []
    assert later(1.9) == [nothing]
    assert len(before) == 4
    assert len(files()) == 5
    assert before < files()
    gone, cleaned = later(2.1)
    assert gone == "DEMO.PUBLIC.FIRST: 3 old snapshots expired"
    assert not cleaned.endswith(" and 0 native files")
    kept = files()
    assert len(kept) == 2
    assert len(kept & before) == 1
    assert sorted(v for file in kept for v in pq.read_table(file)["A"].to_pylist()) == [
        *range(1, 7)
    ]
    assert later(9) == [nothing]


@pytest.mark.slow
def test_without_full_a_few_small_files_are_left_alone(
    snowmelt: Callable[..., Finished], loaded: Path
) -> None:
    assert len(snowmelt("maintain").stdout.splitlines()) == 1
    assert snowmelt("maintain", compact_min_files="3").stdout.startswith("DEMO.PUBLIC.FIRST: 5 ro")


@pytest.mark.slow
def test_named_tables_alone_are_maintained(snowmelt: Callable[..., Finished], loaded: Path) -> None:
    assert snowmelt("maintain", "--table", "demo.public.second", "--full").stdout == ""
    refused = snowmelt("maintain", "--table", "demo.public.third")
    assert refused.returncode == 1
    assert "DEMO.PUBLIC.THIRD does not exist" in refused.stderr


def test_nothing_is_deleted_while_a_query_may_still_read_it(
    snowmelt: Callable[..., Finished],
) -> None:
    assert snowmelt("sql", "CREATE DATABASE demo").returncode == 0
    refused = snowmelt("maintain", retention_s="3000")
    assert refused.returncode == 1
    assert refused.stderr.endswith("for 3,000 s; it must be longer.\n")


@pytest.mark.slow
def test_the_migrators_loop_maintains_unless_told_not_to(loaded: Path) -> None:
    environment = os.environ | {
        "SNOWMELT_COMPACT_INTERVAL_S": "0.1",
        "SNOWMELT_COMPACT_MIN_FILES": "2",
        "SNOWMELT_MIGRATE_INTERVAL_S": "0.1",
    }
    command = [sys.executable, "-m", "snowmelt", "migrate", "--loop", "--engine", "local"]
    for compact in ("no", "yes"):
        with subprocess.Popen(
            command,
            cwd=loaded,
            env=environment | {"SNOWMELT_COMPACT": compact},
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("Checking for chunks")
            if compact == "yes":
                assert process.stdout.readline().startswith("DEMO.PUBLIC.FIRST: 5 rows of 3 files")
            else:
                with pytest.raises(subprocess.TimeoutExpired):
                    process.wait(3)
            process.send_signal(signal.SIGINT)
            assert process.communicate(timeout=200)[0] == ""

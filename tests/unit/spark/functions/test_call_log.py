"""Records of calls outlive whoever wrote them."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pytest

from snowmelt.clock import ManualClock
from snowmelt.functions.caller.plan import CallRecord, QueryPosition
from snowmelt.spark.functions.call_log import (
    CallLogFiles,
    FileCallLog,
    delete_call_records,
    read_call_records,
)
from snowmelt.storage.local_store import LocalStore

START = dt.datetime(2026, 3, 1, 23, 59, tzinfo=dt.UTC)
PLACE = QueryPosition("query", 1, 2)


def record(batch: str = "b", **changes: Any) -> CallRecord:
    return CallRecord("f", "query", batch, **changes)


def written(folder: Path, clock: ManualClock, *batches: str) -> FileCallLog:
    ledger = CallLogFiles(str(folder), "DEMO.PUBLIC.F").open_task_log(PLACE, clock)
    for batch in batches:
        ledger.add_record(record(batch))
    return ledger


def test_what_is_closed_is_read(tmp_path: Path) -> None:
    clock = ManualClock(START)
    written(tmp_path, clock, "b1", "b2").close()
    written(tmp_path, clock, "b3").close()
    found = sorted(read_call_records(LocalStore(tmp_path)), key=lambda each: each.batch_id)
    assert [each.batch_id for each in found] == ["b1", "b2", "b3"]
    assert {each.function for each in found} == {"DEMO.PUBLIC.F"}


def test_a_name_may_hold_any_sign(tmp_path: Path) -> None:
    name = 'D."P","query_id":.F\\'
    ledger = CallLogFiles(str(tmp_path), name).open_task_log(PLACE, ManualClock(START))
    ledger.add_record(CallRecord('","query_id":\\"', "query", "b"))
    ledger.close()
    assert [
        (each.function, each.query_id, each.batch_id)
        for each in read_call_records(LocalStore(tmp_path))
    ] == [(name, "query", "b")]


def test_a_long_task_writes_now_and_then(tmp_path: Path) -> None:
    clock = ManualClock(START)
    ledger = written(tmp_path, clock, "b1")
    assert list(read_call_records(LocalStore(tmp_path))) == []
    clock.sleep(2)
    ledger.add_record(record("b2"))
    assert len(list(read_call_records(LocalStore(tmp_path)))) == 2
    for n in range(1000):
        ledger.add_record(record(f"c{n}"))
    assert len(list(read_call_records(LocalStore(tmp_path)))) == 1002


def test_days_are_told_apart(tmp_path: Path) -> None:
    clock = ManualClock(START)
    written(tmp_path, clock, "old").close()
    clock.sleep(3600)
    written(tmp_path, clock, "new").close()
    store = LocalStore(tmp_path)
    assert [each.batch_id for each in read_call_records(store, dt.date(2026, 3, 2))] == ["new"]
    assert delete_call_records(store, dt.date(2026, 3, 2)) == 1
    assert [each.batch_id for each in read_call_records(store)] == ["new"]


def test_a_ledger_that_cannot_be_written_ends_no_query(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "_calls").write_text("in the way")
    written(tmp_path, ManualClock(START), "b1").close()
    assert "Cannot write the log of external function calls" in caplog.text

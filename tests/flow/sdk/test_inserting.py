"""Inserts of the SDK with a service: rows are checked, copied and committed once and in order."""

from __future__ import annotations

import contextlib
import datetime as dt
import threading
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from fixtures.sdk import QUICK
from fixtures.service import ServiceProcess
from snowmelt import failpoints
from snowmelt.catalog.db.database import open_and_upgrade_database
from snowmelt.catalog.security.encryption_keys import KeyRing, load_master_key
from snowmelt.client import channel as channels
from snowmelt.client import flush_scheduling
from snowmelt.errors import (
    CommitTimeout,
    ConfigurationError,
    InvalidRow,
    InvalidValue,
    TokenNotInserted,
)
from snowmelt.failpoints import Failpoint
from snowmelt.schema.types import TableName
from snowmelt.storage.store_factory import open_store
from snowmelt.table.table_reader import read_table
from support.sdk_table import BAD, GRANT, LATE, SOON, T, blobs, rows


def test_inserted_rows_are_committed_with_their_token(connect: Any, ids: Any) -> None:
    channel = connect().open_channel("c", table=T)
    assert channel.latest_committed_offset_token() is None
    assert not channel.insert_rows(rows(0, 1000), offset_token="999").has_errors
    channel.insert_row({"ID": 1000, "name": None}, offset_token="1000")
    channel.wait_for_commit("1000", timeout=SOON)
    assert channel.latest_committed_offset_token() == "1000"
    assert ids() == list(range(1001))


def test_a_timeout_that_is_no_timedelta_is_named(connect: Any) -> None:
    client = connect()
    channel = client.open_channel("c", table=T)
    for call in (channel.wait_for_commit, channel.flush, client.flush):
        with pytest.raises(ConfigurationError, match=r"timeout: expected a datetime\.timedelta"):
            call(timeout=60)


def test_data_frames_are_inserted_and_tokens_advance_without_rows(connect: Any, ids: Any) -> None:
    channel = connect().open_channel("c", table=T)
    committed: list[str] = []
    arrived = threading.Condition()

    def note(token: str) -> None:
        with arrived:
            committed.append(token)
            arrived.notify_all()
        # An error in the function harms nothing.
        raise ValueError(token)

    channel.call_on_commit(note)
    frame = pd.DataFrame({"id": [1, 2], "name": ["a", None]}, index=["x", "y"])
    assert not channel.insert_dataframe(frame, "2").has_errors
    channel.flush(SOON)
    channel.insert_dataframe(pl.DataFrame({"id": [3]}), "3")
    channel.advance("7")
    channel.wait_for_commit("7", SOON)
    channel.advance("8")
    channel.wait_for_commit("8", SOON)
    assert channel.latest_committed_offset_token() == "8"
    with arrived:
        assert arrived.wait_for(lambda: committed[-1:] == ["8"], SOON.total_seconds())
    assert committed == sorted(committed)
    assert ids() == [1, 2, 3]
    with pytest.raises(TypeError):
        channel.insert_dataframe(object())


def test_a_flush_that_is_encoded_first_is_not_registered_first(
    connect: Any, ids: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flush_scheduling, "MAX_CHANNEL_BUFFER_BYTES", 1)
    staged = threading.Event()
    found = []
    failpoints.arm(Failpoint.BLOB_BUILT, lambda: found.append(staged.wait(SOON.total_seconds())))
    failpoints.arm(Failpoint.BLOB_STAGED, staged.set)
    channel = connect(max_client_lag=LATE).open_channel("c", table=T)
    for first in range(0, 40, 10):
        channel.insert_arrow(pa.table({"id": range(first, first + 10)}), str(first + 9))
    channel.wait_for_commit("39", SOON)
    assert found == [True]
    assert ids() == list(range(40))
    assert channel.latest_committed_offset_token() == "39"


def test_rows_are_copied_by_the_insert(connect: Any, ids: Any) -> None:
    channel = connect(max_client_lag=LATE).open_channel("c", table=T)
    row = {"id": 1}
    channel.insert_row(row)
    batch = [row]
    channel.insert_rows(batch)
    row["id"] = 2
    batch.clear()
    many = rows(10, 1_010)
    channel.insert_rows(many)
    for each in many:
        each.clear()
    channel.flush()
    assert ids() == [1, 1, *range(10, 1_010)]


def test_abort_raises_the_first_error_and_keeps_nothing(connect: Any, ids: Any) -> None:
    channel = connect().open_channel("c", table=T)
    channel.insert_rows(rows(0, 2), "1")
    with pytest.raises(InvalidValue, match=r"column ID of type NUMBER.*rowIndex:1"):
        channel.insert_rows([{"id": 2}, BAD, {"id": None}], "4")
    with pytest.raises(InvalidRow, match=r"Extra columns: \[no\]"):
        channel.insert_row({"id": 5, "no": 1}, "5")
    channel.flush()
    assert ids() == [0, 1]
    assert channel.latest_committed_offset_token() == "1"


def test_continue_keeps_good_rows_and_moves_the_token(connect: Any, ids: Any) -> None:
    # A long interval, so that no flush occurs between the two inserts.
    client = connect(max_client_lag=dt.timedelta(minutes=5))
    channel = client.open_channel("c", table=T, on_error="continue")
    result = channel.insert_rows([{"id": 0}, BAD, {"id": 2}, {}], "3")
    assert [error.row_index for error in result.errors] == [1, 3]
    assert result.errors[1].missing_not_null == ("ID",)
    assert channel.insert_row(BAD, "4").has_errors
    channel.flush()
    assert ids() == [0, 2]
    assert channel.latest_committed_offset_token() == "4"


def test_a_token_without_good_rows_is_committed_with_the_next_good_row(
    connect: Any, ids: Any
) -> None:
    channel = connect().open_channel("c", table=T, on_error="continue")
    assert channel.insert_rows([BAD], "1").has_errors
    channel.flush()
    assert channel.latest_committed_offset_token() is None
    with pytest.raises(CommitTimeout, match="no request failed"):
        channel.wait_for_commit("1", timeout=QUICK)
    channel.insert_rows([{"id": 2}], "2")
    channel.wait_for_commit("1", timeout=SOON)
    assert channel.latest_committed_offset_token() == "2"
    assert ids() == [2]


def test_skip_batch_keeps_none_of_a_batch_with_errors(connect: Any, ids: Any) -> None:
    channel = connect().open_channel("c", table=T, on_error="skip_batch")
    channel.insert_rows(rows(0, 2), "1")
    assert len(channel.insert_rows([{"id": 2}, BAD, BAD], "4").errors) == 2
    channel.flush()
    assert channel.latest_committed_offset_token() == "1"
    assert ids() == [0, 1]


def test_threads_keep_their_batches_whole_and_in_order(
    connect: Any, ids: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channels, "_MIN_PACKED_ROWS", 50)
    channel = connect().open_channel("c", table=T)

    def insert(thread: int) -> None:
        for batch in range(20):
            first = thread * 100_000 + batch * 50
            if batch % 4 == 1:
                channel.insert_rows(rows(first, first + 50))
            elif batch % 4 == 3:
                channel.insert_arrow(pa.Table.from_pylist(rows(first, first + 50)))
            else:
                for row in rows(first, first + 50):
                    channel.insert_row(row)

    threads = [threading.Thread(target=insert, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    channel.close()
    seen = ids()
    assert len(seen) == len(set(seen)) == 4000
    for number in range(4):
        mine = [value for value in seen if value // 100_000 == number]
        assert mine == sorted(mine)
    batches = [value for value in seen if (value % 100_000) // 50 % 2]
    assert all(
        batches[at : at + 50] == list(range(batches[at], batches[at] + 50))
        for at in range(0, len(batches), 50)
    )


@pytest.mark.parametrize("mode", ["abort", "continue", "skip_batch"])
def test_arrow_follows_on_error(connect: Any, ids: Any, mode: str) -> None:
    channel = connect().open_channel("c", table=T, on_error=mode)
    good = pa.table({"id": [0, 1], "NAME": ["a", None]})
    channel.insert_arrow(good, "1")
    bad = pa.table({"id": ["2", "nonsense", "4"], "name": ["é" * 3, "b", "c"]})
    if mode == "abort":
        with pytest.raises(InvalidValue, match=r"column ID of type NUMBER.*rowIndex:1"):
            channel.insert_arrow(bad, "4")
    else:
        [error] = channel.insert_arrow(bad, "4").errors
        assert (error.row_index, error.row) == (1, {"id": "nonsense", "name": "b"})
    channel.flush()
    assert ids() == ([0, 1, 2, 4] if mode == "continue" else [0, 1])
    assert channel.latest_committed_offset_token() == ("4" if mode == "continue" else "1")


def test_strict_channels_beside_others(connect: Any) -> None:
    client = connect(compatibility="strict")
    moment = {"id": 1, "at": "20130428"}
    with client.open_channel("a", table=T, compatibility="snowflake") as channel:
        channel.insert_row(moment)
    with (
        client.open_channel("b", table=T) as channel,
        pytest.raises(InvalidValue, match="Ambiguous digits"),
    ):
        channel.insert_row(moment)
    with pytest.raises(ConfigurationError, match="expected snowflake or strict, got 'sane'"):
        client.open_channel("c", table=T, compatibility="sane")


def test_channels_of_a_table_share_a_chunk(connect: Any, service: ServiceProcess, ids: Any) -> None:
    before = len(blobs(service))
    client = connect(max_client_lag=LATE)
    channels = [client.open_channel(f"c{n}", table=T) for n in range(5)]
    for number, channel in enumerate(channels):
        channel.insert_row({"id": number}, str(number))
    client.flush()
    assert ids() == [0, 1, 2, 3, 4]
    tokens = client.latest_committed_offset_tokens(channels)
    assert [tokens[channel] for channel in channels] == ["0", "1", "2", "3", "4"]
    assert len(blobs(service)) == before + 1


def test_waiting_for_a_token_that_never_came_is_refused(connect: Any) -> None:
    channel = connect().open_channel("c", table=T)
    with pytest.raises(TokenNotInserted, match="'nowhere'"):
        channel.wait_for_commit("nowhere")


def test_a_token_is_not_committed_before_its_rows(connect: Any, ids: Any) -> None:
    channel = connect(max_client_lag=LATE).open_channel("c", table=T)
    channel.insert_rows(rows(0, 2), "1")
    with pytest.raises(CommitTimeout, match=r"'1'.*not committed within 0\.1 s.*None"):
        channel.wait_for_commit("1", timeout=QUICK)
    assert ids() == []
    channel.flush()
    channel.wait_for_commit("1", timeout=QUICK)


def test_naive_times_take_the_channels_zone(connect: Any, service: ServiceProcess) -> None:
    service.sql("CREATE OR REPLACE TABLE sdk.public.t (id NUMBER(10,0), at TIMESTAMP_TZ(0))", GRANT)
    client = connect()
    zones = ["Asia/Kathmandu", "America/New_York", None]
    for number, zone in enumerate(zones):
        options = {} if zone is None else {"default_timezone": zone}
        with client.open_channel(f"c{number}", table=T, **options) as channel:
            channel.insert_row({"id": number, "at": "2026-11-21T12:00:00"})
    settings = service.settings
    with contextlib.closing(open_and_upgrade_database(settings.catalog_url)) as catalog:
        keyring, stage = KeyRing(load_master_key(settings.keys_dir)), open_store(settings.stage_url)
        seen = read_table(catalog, keyring, stage, TableName("SDK", "PUBLIC", "T")).to_pylist()
    assert [row["AT$tz"] for row in seen] == [345, -300, -480]
    assert [row["AT"].strftime("%H:%M") for row in seen] == ["06:15", "17:00", "20:00"]

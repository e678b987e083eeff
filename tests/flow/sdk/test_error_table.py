"""Rows that a channel rejects are stored once in the error table, with their token."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import random
import time
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from fixtures.sdk import QUICK
from fixtures.service import ServiceProcess
from snowmelt.errors import InvalidRow, SnowmeltError
from support.faulty_proxy import Proxy
from support.sdk_table import ERRORS, LATE, SOON, T, blobs, rows


def test_refused_rows_are_kept_with_the_good_ones(
    connect: Any, ids: Any, kept: Callable[[], list[dict[str, Any]]], service: ServiceProcess
) -> None:
    client = connect(max_client_lag=LATE)
    channel = client.open_channel("c", table=T, on_error="continue")
    other = client.open_channel("o", table=T, on_error="continue")
    bad = {"id": "x", "name": b"\x00\xff"}
    result = channel.insert_rows(
        [*rows(0, 2), bad, {"name": object()}], "3", start_offset_token="0"
    )
    assert len(result.errors) == 2
    other.insert_arrow(pa.table({"id": [2, None]}), "arrow")
    assert kept() == []
    before = len(blobs(service))
    channel.flush()
    # One blob is one request, and one transaction.
    assert len(blobs(service)) == before + 1
    assert ids() == [0, 1, 2]
    first, second, third = sorted(kept(), key=lambda row: (row["SOURCE"], row["ROW_NUMBER"]))
    assert first["TABLE_NAME"] == "SDK.PUBLIC.T"
    assert (first["PROTOCOL"], first["SOURCE"], first["ROW_NUMBER"]) == ("sdk", "C", Decimal(2))
    assert (first["START_OFFSET_TOKEN"], first["OFFSET_TOKEN"]) == ("0", "3")
    assert (first["COLUMN_NAME"], first["CODE"]) == ("ID", "invalid_value")
    assert str(result.errors[0].error) == first["REASON"]
    assert json.loads(first["ROW_DATA"]) == {"id": "x", "name": "00ff"}
    assert json.loads(second["ROW_DATA"])["name"].startswith("<object object")
    assert (third["SOURCE"], third["OFFSET_TOKEN"]) == ("O", "arrow")
    status = client.status()
    assert [each.name for each in status.channels] == ["C", "O"]
    assert (status.inserted_rows, status.refused_rows, status.waiting_bytes) == (3, 3, 0)
    client.close()
    assert [row[1] for row in service.sql(f"SHOW CHANNELS IN TABLE {ERRORS}").rows] == []


@pytest.mark.parametrize("step", [None, "lose answer", "lose request"])
def test_a_call_without_a_good_row_commits_its_token_with_what_it_refuses(
    step: str | None,
    connect: Any,
    ids: Any,
    kept: Callable[[], list[dict[str, Any]]],
    service: ServiceProcess,
) -> None:
    with Proxy(service.port, only="write/blobs") as proxy:
        client = connect(proxy.url, max_client_lag=LATE)
        channel = client.open_channel("c", table=T, on_error="continue")
        channel.insert_rows([{"id": "x"}, {"id": "y"}], "2", start_offset_token="1")
        assert channel.status().waiting_rows == 0
        proxy.plan = [] if step is None else [step]
        channel.flush(SOON)
        channel.wait_for_commit("2", timeout=SOON)
        assert channel.latest_committed_offset_token() == "2"
        assert [row["ROW_NUMBER"] for row in kept()] == [0, 1]
        channel.insert_rows([{"id": 3}], "3")
        channel.insert_rows([{"id": "z"}], "4")
        client.close(SOON)
    again = connect().open_channel("c", table=T, on_error="continue")
    assert again.resume() == "4"
    again.insert_rows([{"id": "x"}], "5")
    again.flush(SOON)
    again.insert_rows(rows(6, 8), "7")
    again.close(timeout=SOON)
    assert ids() == [3, 6, 7]
    assert sorted(row["OFFSET_TOKEN"] for row in kept()) == ["2", "2", "4", "5"]


def test_good_and_refused_rows_are_there_once_whenever_a_client_ends(
    connect: Any, ids: Any, kept: Callable[[], list[dict[str, Any]]]
) -> None:
    chance, last, done = random.Random(7), 90, False
    while not done:
        client = connect()
        channels = [client.open_channel(name, table=T, on_error="continue") for name in "ab"]
        at = [int(channel.resume() or 0) for channel in channels]
        done = at == [last, last]
        for number in (chance.randrange(2) for _ in range(chance.randrange(10, 30))):
            first, at[number] = at[number], min(at[number] + chance.randrange(1, 6), last)
            if at[number] > first:
                names = range(1000 * number + first, 1000 * number + at[number])
                batch = [{"id": each if each % 3 else f"bad {each}"} for each in names]
                channels[number].insert_rows(batch, str(at[number]))
            if chance.random() < 0.2:
                channels[number].flush(SOON)
        with contextlib.suppress(SnowmeltError):
            client.close(dt.timedelta(seconds=chance.random() / 4))
    expected = [*range(last), *range(1000, 1000 + last)]
    assert sorted(ids()) == [each for each in expected if each % 3]
    refused = [int(json.loads(row["ROW_DATA"])["id"].split()[1]) for row in kept()]
    assert sorted(refused) == [each for each in expected if not each % 3]


def test_a_skipped_batch_leaves_its_refused_rows_and_abort_leaves_none(
    connect: Any, ids: Any, kept: Callable[[], list[dict[str, Any]]]
) -> None:
    client = connect()
    skipping = client.open_channel("s", table=T, on_error="skip_batch")
    skipping.insert_rows([*rows(0, 2), {"id": "x"}], "2")
    aborting = client.open_channel("a", table=T)
    with pytest.raises(InvalidRow):
        aborting.insert_rows([{"id": "y"}], "1")
    client.close(timeout=SOON)
    assert (ids(), [row["SOURCE"] for row in kept()]) == ([], ["S"])


def test_without_the_table_refused_rows_are_reported_alone(
    connect: Any, ids: Any, kept: Callable[[], list[dict[str, Any]]], service: ServiceProcess
) -> None:
    client = connect(max_client_lag=QUICK)
    channel = client.open_channel("c", table=T, on_error="continue")
    channel.insert_rows([{"id": 0}, {"id": "x"}], "1")
    channel.flush()
    assert len(kept()) == 1
    service.sql(f"DROP TABLE {ERRORS}")
    for token in range(2, 5):
        assert len(channel.insert_rows([{"id": token}, {"id": "x"}], str(token)).errors) == 1
        channel.flush(timeout=SOON)
    assert ids() == [0, 2, 3, 4]
    service.sql(f"UNDROP TABLE {ERRORS}")
    until_kept(channel, kept, 2)
    service.sql(f"ALTER TABLE {T} UNSET ERROR_TABLE")
    stays = connect(max_client_lag=QUICK).open_channel("d", table=T, on_error="continue")
    stays.insert_rows([{"id": "x"}])
    service.sql(f"ALTER TABLE {T} SET ERROR_TABLE = {ERRORS}")
    until_kept(stays, kept, len(kept()) + 1)
    assert channel.is_valid
    client.close()


def until_kept(channel: Any, kept: Callable[[], list[dict[str, Any]]], count: int) -> None:
    """Insert invalid rows until some are stored. The client reads a table's settings once a second."""
    give_up_at = time.monotonic() + 200
    while len(kept()) < count:
        assert time.monotonic() < give_up_at
        channel.insert_rows([{"id": "x"}])
        channel.flush(timeout=SOON)
        time.sleep(0.1)

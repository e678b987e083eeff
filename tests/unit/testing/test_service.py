"""What is shipped for tests of applications works as its page says."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from snowmelt import testing
from snowmelt.errors import ChannelInvalid, CommitTimeout, TableNotFound

pytest_plugins = ["snowmelt.testing.plugin"]


@pytest.mark.slow
def test_a_table_is_loaded_and_read(
    snowmelt_service: Any, snowmelt_client: Any, snowmelt_table: Any
) -> None:
    table = snowmelt_table("id INT, name VARCHAR")
    with snowmelt_client.open_channel("c", table=table) as channel:
        channel.insert_rows([{"id": 1, "name": "one"}, {"id": 2}], "2")
    assert snowmelt_service.rows(table) == [{"ID": 1, "NAME": "one"}, {"ID": 2, "NAME": None}]
    assert snowmelt_table("id INT") != table
    with pytest.raises(TableNotFound):
        snowmelt_service.rows("test.public.none")


@pytest.mark.slow
def test_a_fault_is_armed_once(
    snowmelt_service: Any, snowmelt_client: Any, snowmelt_table: Any, snowmelt_faults: Any
) -> None:
    table = snowmelt_table("id INT")
    channel = snowmelt_client.open_channel("c", table=table)

    def fail() -> None:
        raise RuntimeError("on purpose")

    snowmelt_faults(testing.Failpoint.BLOB_BUILT, fail)
    channel.insert_row({"id": 1}, "1")
    with pytest.raises(ChannelInvalid, match="on purpose"):
        channel.flush()
    assert channel.resume() is None
    channel.insert_row({"id": 1}, "1")
    channel.flush()
    assert snowmelt_service.rows(table) == [{"ID": 1}]


@pytest.mark.slow
def test_time_passes_when_it_is_told_to(snowmelt_clock: Any) -> None:
    with testing.LocalService(clock=snowmelt_clock) as service:
        table = service.create_table("a.b.t", "id INT")
        client = service.client(max_client_lag=dt.timedelta(minutes=5))
        channel = client.open_channel("c", table=table)
        channel.insert_row({"id": 1}, "1")
        snowmelt_clock.advance(20)
        assert channel.status().lag_s >= 20
        with pytest.raises(CommitTimeout):
            channel.wait_for_commit("1", timeout=dt.timedelta(0))
        # The token of an hour ago is replaced.
        snowmelt_clock.advance(7200)
        channel.flush()
        assert service.rows(table) == [{"ID": 1}]
        folder = service.folder
    assert not folder.exists()

"""What options of the format are read as."""

from __future__ import annotations

import datetime as dt

import pytest

from snowmelt.clock import SystemClock
from snowmelt.errors import LoadRefused
from snowmelt.spark.datasource.options import requested_time


def test_a_moment_is_utc_and_has_been() -> None:
    now = SystemClock().now()
    assert requested_time(now.isoformat()) == now
    assert requested_time("2026-01-31") == dt.datetime(2026, 1, 31, tzinfo=dt.UTC)
    with pytest.raises(LoadRefused, match="is in the future"):
        requested_time((now + dt.timedelta(hours=2)).replace(tzinfo=None).isoformat())
    with pytest.raises(LoadRefused, match="write a time as"):
        requested_time("yesterday")

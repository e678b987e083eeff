"""What can be set on a client lies within limits, and a wrong setting is named."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from snowmelt.client.settings import ClientSettings
from snowmelt.errors import ConfigurationError


@pytest.mark.parametrize("seconds", [0.1, 1, 600])
def test_rows_may_be_flushed_every_100_ms_to_10_minutes(seconds: float) -> None:
    lag = dt.timedelta(seconds=seconds)
    assert ClientSettings(max_client_lag=lag).max_client_lag == lag


def test_rows_are_flushed_every_second_by_default() -> None:
    assert ClientSettings().max_client_lag == dt.timedelta(seconds=1)


@pytest.mark.parametrize("seconds", [-1, 0, 0.099, 600.001])
def test_another_lag_is_refused(seconds: float) -> None:
    with pytest.raises(ConfigurationError, match=r"max_client_lag: expected 100 ms to 10 minutes"):
        ClientSettings(max_client_lag=dt.timedelta(seconds=seconds))


@pytest.mark.parametrize("setting", ["request_timeout", "give_up_after", "insert_timeout"])
def test_a_negative_time_is_refused_by_its_name(setting: str) -> None:
    given: dict[str, Any] = {setting: dt.timedelta(seconds=-1)}
    with pytest.raises(ConfigurationError, match=f"{setting}: expected 0 or more"):
        ClientSettings(**given)


def test_a_client_that_may_hold_nothing_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="max_memory: expected more than 0"):
        ClientSettings(max_memory=0)

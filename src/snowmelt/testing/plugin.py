"""Pytest fixtures: `pytest_plugins = ["snowmelt.testing.plugin"]` in a conftest.py."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator

import pytest

from snowmelt import failpoints
from snowmelt.client.client import Client
from snowmelt.clock import ManualClock
from snowmelt.testing.service import LocalService

_MAX_CLIENT_LAG = dt.timedelta(milliseconds=100)
_CLOCK_START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


@pytest.fixture(scope="session")
def snowmelt_service() -> Iterator[LocalService]:
    """Provide a service for the whole test run. Each test should use a separate table."""
    with LocalService() as service:
        yield service


@pytest.fixture
def snowmelt_client(snowmelt_service: LocalService) -> Iterator[Client]:
    """Provide a client for one test. It flushes every 100 ms."""
    client = snowmelt_service.client(max_client_lag=_MAX_CLIENT_LAG)
    yield client
    client.close(timeout=dt.timedelta(seconds=30))


@pytest.fixture
def snowmelt_table(
    snowmelt_service: LocalService, request: pytest.FixtureRequest
) -> Callable[[str], str]:
    """Provide a function that creates a table for one test and returns its name.

    Example: `snowmelt_table("id INT, name VARCHAR")`.
    """
    made = 0

    def make(columns: str) -> str:
        nonlocal made
        made += 1
        test = "".join(each if each.isalnum() else "_" for each in request.node.nodeid)
        name = f'test.public."{test[-200:]}_{made}"'
        return snowmelt_service.create_table(name, columns)

    return make


@pytest.fixture
def snowmelt_faults() -> Iterator[Callable[..., None]]:
    """Provide `snowmelt.failpoints.arm`. Remaining failpoints are disarmed after the test."""
    yield failpoints.arm
    failpoints.disarm()


@pytest.fixture
def snowmelt_clock() -> ManualClock:
    """Provide a clock that stays at the beginning of 2026 until it is advanced."""
    return ManualClock(_CLOCK_START)

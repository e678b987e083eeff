"""Fixtures for pytest: `pytest_plugins = ["snowmelt.testing.plugin"]` in a conftest.py."""

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
    """A service that the run shares; give each test a table of its own."""
    with LocalService() as service:
        yield service


@pytest.fixture
def snowmelt_client(snowmelt_service: LocalService) -> Iterator[Client]:
    """A client of the test's own that flushes every 100 ms."""
    client = snowmelt_service.client(max_client_lag=_MAX_CLIENT_LAG)
    yield client
    client.close(timeout=dt.timedelta(seconds=30))


@pytest.fixture
def snowmelt_table(
    snowmelt_service: LocalService, request: pytest.FixtureRequest
) -> Callable[[str], str]:
    """Make a table of the test's own: `snowmelt_table("id INT, name VARCHAR")` returns its name."""
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
    """`snowmelt.failpoints.arm`; what is armed and was not reached is forgotten after the test."""
    yield failpoints.arm
    failpoints.disarm()


@pytest.fixture
def snowmelt_clock() -> ManualClock:
    """A clock that stands at the beginning of 2026 until it is moved."""
    return ManualClock(_CLOCK_START)

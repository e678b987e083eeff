"""Sites that are killed, promoted and joined again lose no reported row, and double none."""

from __future__ import annotations

import datetime as dt
import os
import signal
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

import snowmelt
from fixtures.s3 import Seaweed
from fixtures.service import KeyPair
from snowmelt.catalog import model
from snowmelt.catalog.db.database import open_and_upgrade_database
from snowmelt.errors import CommitTimeout, SnowmeltError
from snowmelt.failpoints import Failpoint
from support.processes import list_children, read_command
from support.served_sites import ServedSite, ServedSites, wait_until

pytestmark = pytest.mark.slow

POINTS = [
    Failpoint.REPLICA_RECEIVED,
    Failpoint.REPLICA_OBJECT,
    Failpoint.REPLICA_COPIED,
    Failpoint.REPLICA_INSIDE_APPLY,
    Failpoint.REPLICA_APPLIED,
]


@pytest.fixture
def sites(tmp_path: Path, key_pair: KeyPair) -> Iterator[ServedSites]:
    """Two sites of one service each, on SQLite and folders."""
    first, second = (ServedSite(tmp_path / name) for name in ("site1", "site2"))
    yield from serve(ServedSites(tmp_path, key_pair, first, second))


@pytest.fixture(params=["folders", "folder and bucket", "buckets"])
def any_sites(
    request: pytest.FixtureRequest, tmp_path: Path, key_pair: KeyPair
) -> Iterator[ServedSites]:
    """Two sites; one in a bucket has two services and a catalog on PostgreSQL."""
    in_buckets = {"folders": 0, "folder and bucket": 1, "buckets": 2}[request.param]
    first = make_site("site1", request) if in_buckets == 2 else ServedSite(tmp_path / "site1")
    second = make_site("site2", request) if in_buckets else ServedSite(tmp_path / "site2")
    yield from serve(ServedSites(tmp_path, key_pair, first, second))


def make_site(name: str, request: pytest.FixtureRequest) -> ServedSite:
    """Return a site of two services, with stage and warehouse in a bucket and PostgreSQL as catalog."""
    seaweed: Seaweed = request.getfixturevalue("seaweed")
    monkeypatch: pytest.MonkeyPatch = request.getfixturevalue("monkeypatch")
    for variable, value in seaweed.environment.items():
        monkeypatch.setenv(variable, value)
    database = "postgres_url" if name == "site1" else "empty_postgres_url"
    place = f"s3://behind/{name}-{uuid.uuid4().hex[:8]}"
    return ServedSite(
        request.getfixturevalue("tmp_path") / name,
        catalog_url=request.getfixturevalue(database),
        services=2,
        environment={
            "SNOWMELT_STAGE_URL": f"{place}/stage",
            "SNOWMELT_WAREHOUSE_URL": f"{place}/warehouse",
        },
    )


def serve(sites: ServedSites) -> Iterator[ServedSites]:
    """Start sites, and end them."""
    try:
        sites.start()
        yield sites
    finally:
        sites.stop()


class Source:
    """A source of the numbers 1, 2, 3 …, which forgets what a site has reported as committed."""

    def __init__(self, sites: ServedSites) -> None:
        self._sites = sites
        self.last = 0
        self.forgotten = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.problems: list[str] = []

    def start(self) -> None:
        self._thread.start()

    def finish(self) -> int:
        """Let it send everything, and return the last number."""
        self._stop.set()
        self._thread.join(300)
        assert not self._thread.is_alive(), "the source is not done"
        assert not self.problems, self.problems
        return self.last

    def _run(self) -> None:
        lag = dt.timedelta(milliseconds=100)
        with self._sites.client(*self._sites.sites, max_client_lag=lag) as client:
            channel = client.open_channel("C", table="demo.public.t")
            number = int(channel.latest_committed_offset_token() or 0)
            # After a failed test, nothing must disturb the next one.
            while not self.problems and not self._sites.stopped:
                try:
                    number = self._send(channel, number)
                except SnowmeltError:
                    # The channel is opened again at the site that is the primary now.
                    number = self._resume(channel, number)
                if self._stop.is_set() and self.forgotten >= self.last:
                    return
                threading.Event().wait(0.05)

    def _resume(self, channel: snowmelt.Channel, number: int) -> int:
        try:
            token = int(channel.resume() or 0)
        except SnowmeltError:
            return number
        self._check(token)
        return token

    def _send(self, channel: snowmelt.Channel, number: int) -> int:
        if not self._stop.is_set() or number < self.last:
            rows = [{"id": each} for each in range(number + 1, number + 11)]
            channel.insert_rows(rows, offset_token=str(number + 10))
            number += 10
            self.last = max(self.last, number)
        token = int(channel.latest_committed_offset_token() or 0)
        self._check(token)
        self.forgotten = max(self.forgotten, token)
        return number

    def _check(self, token: int) -> None:
        if token < self.forgotten:
            self.problems.append(f"{self.forgotten} was reported, then {token}")


def finish(sites: ServedSites, source: Source) -> None:
    """End the source, and compare both sites with what it has sent."""
    last = source.finish()
    sites.wait_until_equal()
    for site in sites.sites:
        numbers, token = sites.read_state(site)
        assert numbers == list(range(1, last + 1))
        assert token == str(last)
        assert sites.find_errors(site) == []


def wait_for_rows(sites: ServedSites, site: ServedSite, more_than: int) -> None:
    wait_until(lambda: len(sites.read_state(site)[0]) > more_than, "no row arrives")


def kill_exports(site: ServedSite) -> int:
    """Kill the processes that export states for followers, and return their number."""
    killed = 0
    for service in site.services:
        assert service.process is not None
        for child in list_children(service.process.pid):
            if b"export_process" in read_command(child):
                os.kill(child, signal.SIGKILL)
                killed += 1
    return killed


def expire_leases(site: ServedSite) -> None:
    """End the leases of a site, as time does after its process has died."""
    database = open_and_upgrade_database(site.settings.catalog_url)
    try:
        with database.writing() as connection:
            connection.execute(sa.delete(model.leases))
    finally:
        database.close()


@pytest.mark.postgres
def test_a_site_that_is_killed_is_replaced_and_joins_again(any_sites: ServedSites) -> None:
    sites = any_sites
    source = Source(sites)
    source.start()
    wait_for_rows(sites, sites.second, 50)
    sites.first.kill()
    statement = "ALTER FAILOVER GROUP g PRIMARY"
    killed = sites.run_statement(sites.second, statement, f"{Failpoint.REPLICA_PROMOTING}=kill")
    assert killed.wait(180) == -signal.SIGKILL
    sites.second.sql(statement)
    wait_for_rows(sites, sites.second, len(sites.read_state(sites.second)[0]) + 50)
    sites.first.start()
    sites.wait_for_role(sites.first, "secondary")
    sites.wait_until_followed()
    # And back, in order.
    sites.first.sql("ALTER FAILOVER GROUP g PRIMARY PLANNED")
    sites.wait_for_role(sites.first, "primary")
    wait_for_rows(sites, sites.first, len(sites.read_state(sites.first)[0]) + 50)
    sites.wait_for_role(sites.second, "secondary")
    finish(sites, source)


def test_a_living_primary_is_fenced_when_a_follower_is_promoted(sites: ServedSites) -> None:
    source = Source(sites)
    source.start()
    wait_for_rows(sites, sites.second, 50)
    sites.second.sql("ALTER FAILOVER GROUP g PRIMARY")
    # Until it hears of that, the first site commits rows that it does not report.
    sites.wait_for_role(sites.first, "secondary")
    finish(sites, source)


def test_a_follower_and_the_exports_for_it_are_killed_anywhere(sites: ServedSites) -> None:
    sites.second.stop()
    exports = 0
    lag = dt.timedelta(milliseconds=100)
    with sites.client(sites.first, max_client_lag=lag) as client:
        channel = client.open_channel("C", table="demo.public.t")
        for number, point in enumerate(POINTS, 1):
            channel.insert_rows([{"id": number}], offset_token=str(number))
            wait_for_rows(sites, sites.first, number - 1)
            killed = sites.run_site_process(sites.second, f"{point}=kill")
            assert killed.wait(180) == -signal.SIGKILL, point
            expire_leases(sites.second)
            exports += kill_exports(sites.first)
        sites.second.start()
    assert exports >= len(POINTS)
    sites.wait_until_equal()
    numbers = list(range(1, len(POINTS) + 1))
    assert sites.read_state(sites.second) == (numbers, str(len(POINTS)))
    assert sites.find_errors(sites.second) == []


def test_a_commit_that_was_waited_for_survives_a_forced_promotion(sites: ServedSites) -> None:
    with sites.client(sites.first) as client:
        channel = client.open_channel("C", table="demo.public.t")
        committed: list[str] = []
        channel.call_on_commit(committed.append)
        channel.insert_rows([{"id": 1}], offset_token="1")
        channel.flush()
        sites.second.stop()
        channel.insert_rows([{"id": 2}], offset_token="2")
        with pytest.raises(CommitTimeout, match="Last committed token: '1'"):
            channel.flush(timeout=dt.timedelta(seconds=1))
        assert sites.read_state(sites.first) == ([1, 2], "2")
        wait_until(lambda: client.status().trouble is not None, "the delay is not reported")
        with pytest.raises(CommitTimeout, match="has confirmed no rows for"):
            channel.wait_for_commit("2", timeout=dt.timedelta(milliseconds=1))
        assert (channel.status().committed_token, committed) == ("1", ["1"])
        sites.second.start()
        channel.wait_for_commit("2")
        assert (channel.status().committed_token, committed) == ("2", ["1", "2"])
        sites.first.kill()
        sites.second.sql("ALTER FAILOVER GROUP g PRIMARY FORCE")
        assert sites.read_state(sites.second) == ([1, 2], "2")


def test_a_fenced_site_says_where_to_write(sites: ServedSites) -> None:
    sites.second.sql("ALTER FAILOVER GROUP g PRIMARY")
    sites.wait_for_role(sites.first, "secondary")
    with pytest.raises(SnowmeltError, match="not the primary"):
        sites.first.sql("CREATE DATABASE x")


def test_a_service_that_restarts_with_another_history_ends_on_sigterm(sites: ServedSites) -> None:
    sites.first.kill()
    sites.second.sql("ALTER FAILOVER GROUP g PRIMARY")
    # The first site gets the history of the second one, and restarts in its process.
    sites.first.start(fault=f"{Failpoint.SERVICE_STARTED}=terminate:2")
    assert sites.first.services[0].wait_for_death() == 0
    log = sites.first.services[0].log
    assert "the service has restarted" in log
    assert log.endswith("Snowmelt has stopped.\n")


def test_a_handover_goes_on_when_a_site_is_killed(sites: ServedSites) -> None:
    source = Source(sites)
    source.start()
    first, second = sites.first, sites.second
    # The primary dies when it has resigned, before its heir knows.
    first.kill()
    first.start(fault=f"{Failpoint.REPLICA_RESIGNED}=kill")
    second.sql("ALTER FAILOVER GROUP g PRIMARY PLANNED")
    assert first.services[0].wait_for_death() == -signal.SIGKILL
    first.start()
    sites.wait_for_role(second, "primary")
    sites.wait_until_followed()
    # The heir dies within its promotion.
    first.stop()
    first.sql("ALTER FAILOVER GROUP g PRIMARY PLANNED")
    killed = sites.run_site_process(first, f"{Failpoint.REPLICA_PROMOTING}=kill")
    assert killed.wait(180) == -signal.SIGKILL
    first.start()
    sites.wait_for_role(first, "primary")
    finish(sites, source)

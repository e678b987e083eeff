"""Three services on one PostgreSQL catalog behind one address, any of which may stop.

Clients upload to their S3 endpoints, which are also behind one address.
"""

from __future__ import annotations

import datetime as dt
import re
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

import snowmelt
from fixtures.service import KeyPair
from fixtures.services import Services, metric
from snowmelt.catalog import model
from snowmelt.catalog.db.database import Database, open_and_upgrade_database
from snowmelt.catalog.jobs.leases import list_services
from snowmelt.catalog.security.encryption_keys import open_or_create_keyring
from snowmelt.schema.types import TableName
from snowmelt.storage.store_factory import open_store
from snowmelt.table.table_reader import read_table
from support import shifted_clock_service

pytestmark = pytest.mark.postgres

NAME = TableName("DEMO", "PUBLIC", "T")
UPLOADS = r'snowmelt_http_requests_total\{port="s3",[^}]*status="200"\}'
SOON = dt.timedelta(seconds=120)


@pytest.fixture
def catalog(three_services: Services) -> Iterator[Database]:
    database = open_and_upgrade_database(three_services.catalog_url)
    yield database
    database.close()


def ids(three_services: Services, catalog: Database) -> Counter[int]:
    settings = three_services.settings
    rows = read_table(
        catalog,
        open_or_create_keyring(catalog, settings.keys_dir),
        open_store(settings.stage_url),
        NAME,
        columns=["ID"],
    )
    return Counter(int(number) for number in rows["ID"].to_pylist())


def stream(
    client: snowmelt.Client, channel_name: str, numbers: range, begun: threading.Event
) -> None:
    with client, client.open_channel(channel_name, table="demo.public.t") as channel:
        for number in numbers:
            channel.insert_row({"id": number}, offset_token=str(number))
            if number % 20 == 0:
                channel.wait_for_commit(str(number), timeout=SOON)
                begun.set()
        channel.wait_for_commit(str(numbers[-1]), timeout=SOON)


def test_services_that_are_killed_take_nothing_with_them(
    three_services: Services, catalog: Database, key_pair: KeyPair
) -> None:
    begun = [threading.Event() for _ in range(4)]
    lag = dt.timedelta(milliseconds=100)
    clients = [three_services.client(key_pair, max_client_lag=lag) for _ in begun]
    errors: list[BaseException] = []

    def work(number: int) -> None:
        numbers = range(number * 1000, number * 1000 + 400)
        try:
            stream(clients[number], f"channel{number}", numbers, begun[number])
        except BaseException as error:  # Reported by the test.
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(begun))]
    for thread in threads:
        thread.start()
    for event in begun:
        assert event.wait(240) or errors
    spread = [metric(service, "snowmelt_registrations_total") for service in three_services.each]
    for service in three_services.each:
        service.kill()
        service.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert sum(count > 0 for count in spread) >= 2, spread
    wanted = {number * 1000 + at for number in range(4) for at in range(400)}
    assert ids(three_services, catalog) == Counter(wanted)


def test_credentials_that_one_service_hands_out_are_good_at_the_others(
    three_services: Services, catalog: Database, key_pair: KeyPair
) -> None:
    url = three_services.each[0].url
    before = [metric(service, UPLOADS) for service in three_services.each]
    for number in range(70_000, 70_009):
        # Each request uses a new connection, to the next service.
        client = snowmelt.Client(url, user="loader", private_key=key_pair.private_pem)
        stream(client, "spread", range(number, number + 1), threading.Event())
    after = [metric(service, UPLOADS) for service in three_services.each]
    assert sum(after) - sum(before) >= 9
    assert all(now > then for now, then in zip(after, before, strict=True)), (before, after)
    assert dict.fromkeys(range(70_000, 70_009), 1).items() <= ids(three_services, catalog).items()


def test_a_migrator_that_is_killed_is_followed_and_one_that_is_stopped_gives_its_lease_back(
    three_services: Services, catalog: Database, key_pair: KeyPair
) -> None:
    begun = threading.Event()
    stream(three_services.client(key_pair), "migrated", range(90_000, 90_040), begun)
    loop = ("migrate", "--loop", "--engine", "local")
    often = {"SNOWMELT_MIGRATE_INTERVAL_S": "0.1", "SNOWMELT_MIGRATE_MAX_CHUNKS": "1"}
    planned = three_services.command(
        *loop, SNOWMELT_FAULT="migration.planned=kill", SNOWMELT_LEASE_S="2", **often
    )
    planned.communicate(timeout=240)
    other = three_services.command(*loop, SNOWMELT_COMPACT="0", **often)
    assert other.stdout is not None
    assert any(" of chunks" in line for line in other.stdout)
    other.terminate()
    other.communicate(timeout=240)
    with catalog.reading() as connection:
        leases = model.leases.c
        # Housekeeping of the services may be running.
        of_tables = leases.expires_at.is_not(None) & (leases.name != "housekeeping")
        held = sa.select(leases.name).where(of_tables)
        assert connection.execute(held).all() == []
    assert ids(three_services, catalog)[90_000] == 1


def test_a_service_whose_clock_is_wrong_goes_by_the_catalogs_and_doctor_says_so(
    three_services: Services, catalog: Database, key_pair: KeyPair
) -> None:
    program = (str(Path(shifted_clock_service.__file__)), "7200")
    late = three_services.service("shifted")
    late.program = program
    late.start()
    try:
        client = snowmelt.Client(late.url, user="loader", private_key=key_pair.private_pem)
        stream(client, "shifted", range(80_000, 80_040), threading.Event())
        assert dict.fromkeys(range(80000, 80040), 1).items() <= (
            ids(three_services, catalog).items()
        )
        with catalog.reading() as connection:
            [known] = [each for each in list_services(connection) if each.url == late.url]
        assert 7_100_000 < known.ahead_ms < 7_300_000
        assert abs(known.seen_at - known.started_at) < dt.timedelta(minutes=5)
        told, _ = three_services.command("doctor").communicate(timeout=120)
        assert re.search(rf"wrong +service-time +.*{late.url}.* ahead of", told), told
        assert re.search(r"ok +master-key", told), told
    finally:
        late.stop()
    assert "ahead of the clock of the catalog" in late.log


def test_a_service_with_another_master_key_is_told_so(three_services: Services) -> None:
    other = three_services.service("stranger", SNOWMELT_KEYS_DIR="")
    with pytest.raises(AssertionError, match="copy it from where another service has it"):
        other.start()
    assert not (other.data_dir / "keys").exists()


def test_services_say_that_they_run_and_when_they_end(
    three_services: Services, catalog: Database
) -> None:
    last = three_services.each[-1]

    def known() -> set[str]:
        with catalog.reading() as connection:
            return {service.url for service in list_services(connection)}

    assert {service.url for service in three_services.each} <= known()
    assert last.process is not None
    processes = {last.process.pid}
    assert last.stop() == 0
    with catalog.reading() as connection:
        assert processes.isdisjoint(service.process for service in list_services(connection))
    last.start()

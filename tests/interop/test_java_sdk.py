"""The official Java client, as it is on Maven, against our service: what it writes is what is read."""

from __future__ import annotations

import itertools
import time

import pytest

from fix_java import JavaError
from fix_service import ServiceProcess, prepare_loading
from ports import free_port
from snowmelt.catalog.database import open_database
from snowmelt.catalog.keys import KeyRing, load_master_key
from snowmelt.schema.types import TableName
from snowmelt.storage.opening import open_store
from snowmelt.table.reading import read_table

pytestmark = pytest.mark.slow

_databases = itertools.count()
SOON_S = 60
T = {"schema": "public", "table": "t"}


def rows(first, last):
    return [{"id": n, "name": f"row {n}", "at": "2026-11-21T10:00:00"} for n in range(first, last)]


class Loading:
    """A service, a driver, and a database of the test's own with the table PUBLIC.T."""

    def __init__(self, service, driver, key_pair):
        self.service, self.driver, self.key = service, driver, key_pair
        self.database = f"java{next(_databases)}"
        self.names = {"database": self.database, **T}
        prepare_loading(service, key_pair, self.database)

    def connect(self, client, **parameters):
        properties = {
            "url": self.service.url,
            "user": "loader",
            "private_key": self.key.private_pem,
        }
        parameters = {"max_client_lag": 1000} | parameters
        self.driver.say("client", client=client, properties=properties, parameters=parameters)

    def open(self, client, channel, name="c", *, on_error="CONTINUE", **more):
        given = self.names | {"client": client, "channel": channel, "name": name} | more
        return self.driver.say("open", **given, on_error=on_error)

    def insert(self, channel, rows, token, start=None):
        return self.driver.say("insert", channel=channel, rows=rows, token=token, start=start)

    def wait(self, channel, token):
        assert self.driver.say("wait", channel=channel, token=token, seconds=SOON_S) == token

    def until_invalid(self, channel):
        """Insert until the client refuses; an old one learns of a fence when it flushes."""
        give_up_at = time.monotonic() + SOON_S
        while time.monotonic() < give_up_at:
            try:
                self.insert(channel, rows(-1, 0), "lost")
            except JavaError as invalid:
                return invalid.code
            time.sleep(0.1)
        return None

    def ids(self):
        settings = self.service.settings
        catalog = open_database(settings.catalog_url)
        try:
            keyring = KeyRing(load_master_key(settings.keys_dir))
            name = TableName(self.database.upper(), "PUBLIC", "T")
            found = read_table(catalog, keyring, open_store(settings.stage_url), name)
            return sorted(int(each) for each in found.column("ID").to_pylist())
        finally:
            catalog.close()


@pytest.fixture
def loading(tmp_path, sdk, key_pair):
    """A service of the test's own; the old client writes to a folder, the new to the S3 endpoint."""
    service = ServiceProcess(tmp_path / "data", free_port())
    if sdk.version.startswith("4"):
        s3_port = free_port()
        service.environment["SNOWMELT_S3_PORT"] = str(s3_port)
        service.environment["SNOWMELT_STAGE_ENDPOINT"] = f"http://127.0.0.1:{s3_port}"
    service.start()
    with sdk.driver(tmp_path) as driver:
        yield Loading(service, driver, key_pair)
    service.kill()


def test_a_channel_lives_through_a_kill_a_fence_and_a_drop(loading):
    say = loading.driver.say
    loading.connect("one")
    assert loading.open("one", "a") == f"{loading.database}.PUBLIC.T.C".upper()
    assert say("token", channel="a") is None
    assert loading.insert("a", rows(0, 500), "500") == []
    loading.wait("a", "500")
    assert loading.ids() == list(range(500))

    loading.service.kill()
    assert loading.insert("a", rows(500, 900), "900", start="501") == []
    loading.service.start()
    loading.wait("a", "900")
    assert loading.ids() == list(range(900))

    loading.connect("two")
    loading.open("two", "b")
    assert say("token", channel="b") == "900"
    with pytest.raises(JavaError) as fenced:
        say("token", channel="a")
    assert fenced.value.code == "0028"
    assert loading.until_invalid("a") == "0013"
    assert loading.insert("b", rows(900, 950), "950") == []
    say("close", channel="b")
    assert loading.ids() == list(range(950))

    loading.open("one", "c", offset_token="1000")
    assert say("token", channel="c") == "1000"
    assert loading.insert("c", rows(950, 960), "1010") == []
    say("close", channel="c", drop=True)
    loading.open("one", "d")
    assert say("token", channel="d") is None
    say("drop", client="one", name="c", **loading.names)
    with pytest.raises(JavaError) as dropped:
        say("token", channel="d")
    assert dropped.value.code == "0028"
    say("close client", client="one")
    say("close client", client="two")
    assert loading.ids() == list(range(960))

"""Writers of the row API behind one name that moves: the official Python SDK, and requests without a channel."""

from __future__ import annotations

import ssl
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from fixtures.rows import OfficialWriter, RowService, SdkError
from fixtures.service import KeyPair
from support import forked_processes
from support.ports import free_port
from support.served_sites import ServedSite, ServedSites
from support.tcp_relay import Relay

pytestmark = pytest.mark.slow

ELASTIC = "/v2/streaming/data/databases/demo/schemas/public/pipes/t-STREAMING/channels/ELASTIC/rows"


class NamedSites:
    """Two sites behind one address with TLS, which a test moves."""

    def __init__(self, folder: Path, key_pair: KeyPair) -> None:
        certs = folder / "certs"
        forked_processes.run(
            [sys.executable, "-m", "snowmelt", "cert", "--out", str(certs)], check=True
        )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certs / "server.pem", certs / "server.key")
        first, second = (ServedSite(folder / name) for name in ("site1", "site2"))
        self.sites = ServedSites(folder, key_pair, first, second)
        self.sites.start()
        self.relay = Relay(first.services[0].port, context)
        self.url = f"https://127.0.0.1:{self.relay.port}"
        self.users = RowService(folder, key_pair, first.services[0], free_port())
        trust = ssl.create_default_context(cafile=certs / "ca.pem")
        self.requests = httpx.Client(
            base_url=self.url,
            verify=trust,
            timeout=60,
            # A move closes connections that are open.
            headers=self.users.authorization() | {"connection": "close"},
        )

    def move_to(self, site: ServedSite) -> None:
        """Let the name lead to a site."""
        self.relay.turn_to(site.services[0].port)

    def insert(self, number: int) -> int:
        """Insert a row without a channel. The number identifies the request. Returns the status."""
        response = self.requests.post(
            ELASTIC, content=f'{{"id":{number}}}', params={"requestId": f"request {number}"}
        )
        return response.status_code

    def write_until_invalid(self, writer: OfficialWriter, number: int) -> None:
        """Append rows, as an application that has not noticed anything, until the SDK tells it."""
        writer.tell("append_range", "c", number, number + 5, 5)
        with pytest.raises(SdkError) as raised:
            writer.tell("commit", "c", str(number + 4), 120)
        assert "timed out" not in str(raised.value)

    def close(self) -> None:
        """End everything."""
        self.requests.close()
        for writer in self.users.writers:
            writer.kill()
        self.relay.close()
        self.sites.stop()


@pytest.fixture
def named(tmp_path: Path, key_pair: KeyPair) -> Iterator[NamedSites]:
    found = NamedSites(tmp_path, key_pair)
    yield found
    found.close()


def test_writers_go_on_when_their_name_moves(named: NamedSites) -> None:
    sites = named.sites
    writer = named.users.writer(url=named.url, retry_init_backoff_ms="50")
    writer.tell("open", "c")
    writer.tell("append_range", "c", 0, 10, 5)
    # A token that is reported is at the other site, with all commits before it.
    assert named.insert(1000) == 200
    writer.tell("append_range", "c", 10, 20, 5)
    writer.tell("commit", "c", "19", 120)

    sites.first.kill()
    sites.second.sql("ALTER FAILOVER GROUP g PRIMARY")
    named.move_to(sites.second)
    # A repeated request, whose answer may have been lost, inserts nothing.
    assert named.insert(1000) == 200
    assert named.insert(1001) == 200
    # The channel is invalid, as after any other fencing. The same client opens it again.
    named.write_until_invalid(writer, 20)
    assert writer.tell("reopen", "c") == "19"
    writer.tell("append_range", "c", 20, 30, 5)
    writer.tell("commit", "c", "29", 120)

    sites.first.start()
    sites.wait_for_role(sites.first, "secondary")
    # A service that starts again accepts no connection for some seconds.
    sites.wait_until_started_again(sites.first)
    sites.wait_until_followed()
    sites.first.sql("ALTER FAILOVER GROUP g PRIMARY PLANNED")
    sites.wait_for_role(sites.first, "primary")
    # Until the name moves, the former primary accepts nothing.
    assert named.insert(1002) == 503
    named.move_to(sites.first)
    assert named.insert(1002) == 200
    assert writer.tell("reopen", "c") == "29"
    writer.tell("append_range", "c", 30, 40, 5)
    writer.tell("commit", "c", "39", 120)
    expected = [*range(40), 1000, 1001, 1002]
    sites.wait_until_equal()
    for site in sites.sites:
        assert sites.read_state(site)[0] == expected
        assert sites.find_errors(site) == []

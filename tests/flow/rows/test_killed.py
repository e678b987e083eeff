"""Client and two services behind one address are killed repeatedly: each row is there once."""

from __future__ import annotations

import ssl
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from fixtures.rows import RowService, SdkError, row_service_in
from fixtures.service import KeyPair, ServiceProcess
from support.ports import free_port
from support.tcp_relay import Relay

pytestmark = pytest.mark.slow
CHANNEL = "/v2/streaming/databases/demo/schemas/public/pipes/t-STREAMING/channels/c"
ROWS = CHANNEL.replace("/streaming/", "/streaming/data/") + "/rows"


# Rows per request. 20,000 rows are sent as a file.
@pytest.mark.parametrize(("point", "some"), [("inside_commit", 10), ("committed", 20_000)])
def test_a_service_killed_around_the_commit(
    own_row_service: RowService, point: str, some: int
) -> None:
    service = own_row_service
    service.service.stop()
    service.start(fault=f"rows.{point}=kill:2")
    writer = service.writer(retry_init_backoff_ms="50")
    writer.tell("open", "c")
    writer.tell("append_range", "c", 0, some, some)
    writer.tell("flush")
    writer.tell("append_range", "c", some, 2 * some, some)
    writer.begin("commit", "c", str(2 * some - 1), 120)
    service.service.wait_for_death()
    service.start()
    writer.result()
    assert service.ids() == list(range(2 * some))
    # A response means that the rows are committed, so the last rows must be on disk.
    writer.tell("append_range", "c", 2 * some, 3 * some, some)
    writer.tell("flush")
    service.service.kill()
    assert service.ids() == list(range(3 * some))


def test_a_writer_killed_goes_on_from_its_committed_token(own_row_service: RowService) -> None:
    service = own_row_service
    first = service.writer()
    first.tell("open", "c")
    first.tell("append_range", "c", 0, 100, 10)
    first.tell("commit", "c", "99")
    first.tell("append_range", "c", 100, 20_000, 50)
    first.kill()
    second = service.writer()
    token = second.tell("open", "c")
    assert service.ids() == list(range(int(token) + 1))
    second.tell("append_range", "c", int(token) + 1, 20_000, 5_000)
    second.tell("commit", "c", "19999")
    assert service.ids() == list(range(20_000))
    with pytest.raises(SdkError, match=r"timed out|[Tt]imeout"):
        second.tell("commit", "c", "no such token", 2)


@pytest.fixture
def pair(
    tmp_path: Path, key_pair: KeyPair, catalog_url: str
) -> Iterator[tuple[RowService, ServiceProcess]]:
    """Two services on one catalog, with SQLite and with PostgreSQL."""
    first = row_service_in(tmp_path, key_pair, catalog_url)
    second = ServiceProcess(
        tmp_path / "second", free_port(), catalog_url=catalog_url, ca_file=first.service.ca_file
    )
    data = first.service.data_dir
    second.start(
        tls_cert=tmp_path / "certs" / "server.pem",
        tls_key=tmp_path / "certs" / "server.key",
        stage_url=data / "stage",
        warehouse_url=data / "warehouse",
        keys_dir=data / "keys",
        s3_port=free_port(),
    )
    yield first, second
    first.close()
    assert second.process is not None
    if second.process.poll() is None:
        second.kill()


def test_two_services_behind_one_address(pair: tuple[RowService, ServiceProcess]) -> None:
    first, second = pair
    relay = Relay(first.service.port)
    try:
        writer = first.writer(url=f"https://127.0.0.1:{relay.port}")
        writer.tell("open", "c")
        writer.tell("append_range", "c", 0, 10, 5)
        writer.tell("flush")
        relay.turn_to(second.port)
        writer.tell("append_range", "c", 10, 20, 5)
        writer.tell("commit", "c", "19")
        second.kill()
        relay.turn_to(first.service.port)
        writer.tell("append_range", "c", 20, 30, 5)
        writer.tell("commit", "c", "29", 120)
        assert first.ids() == list(range(30))
        writer.tell("close")
    finally:
        relay.close()


def test_what_a_repeated_or_stale_request_is_told_by_either_service(
    pair: tuple[RowService, ServiceProcess],
) -> None:
    first, second = pair
    trust = ssl.create_default_context(cafile=first.service.ca_file)
    with httpx.Client(verify=trust, timeout=60, headers=first.authorization()) as client:

        def ask(
            service: ServiceProcess, method: str, path: str, body: bytes = b"", **query: Any
        ) -> httpx.Response:
            return client.request(method, service.url + path, content=body, params=query)

        one, other = first.service, second
        opening = {"requestId": "open-1"}
        opened = ask(one, "PUT", CHANNEL, b"{}", **opening).json()
        # Repeating an open through the other service fences no client.
        assert ask(other, "PUT", CHANNEL, b"{}", **opening).json() == opened
        token = opened["next_continuation_token"]
        query = {"continuationToken": token, "requestId": str(uuid.uuid4()), "endOffsetToken": "1"}
        answers = [ask(each, "POST", ROWS, b'{"id":1}\n\n', **query) for each in (one, other, one)]
        assert len({answer.text for answer in answers}) == 1
        assert answers[0].status_code == 200
        # A request with only rejected rows also advances the channel, once.
        following = answers[0].json()["next_continuation_token"]
        query = {"continuationToken": following, "requestId": "empty", "endOffsetToken": "2"}
        moved = [ask(each, "POST", ROWS, b'{"id":"x"}', **query) for each in (other, one)]
        assert [answer.status_code for answer in moved] == [200, 200]
        again = ask(one, "POST", ROWS, b'{"id":2}', continuationToken=token, requestId="late")
        assert (again.status_code, again.json()["code"]) == (
            400,
            "ERR_CHANNEL_HAS_INVALID_ROW_SEQUENCER",
        )
        ask(other, "PUT", CHANNEL, b"{}", requestId="open-2")
        last = moved[0].json()["next_continuation_token"]
        stale = ask(one, "POST", ROWS, b'{"id":3}', continuationToken=last, requestId="stale")
        assert (stale.status_code, stale.json()["code"]) == (
            400,
            "STALE_CONTINUATION_TOKEN_SEQUENCER",
        )
        elastic = ROWS.replace("/channels/c/", "/channels/ELASTIC/")
        for each in (one, other, one):
            assert ask(each, "POST", elastic, b'{"id":9}', requestId="loose").status_code == 200
    assert first.ids() == [1, 9]
